"""GPUs, their NVLinks, and the NVLink domain that they are in."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

from fabricd.model.device import Gpu, GpuPeer, NvlinkFabric
from fabricd.model.finding import Finding, Severity
from fabricd.model.observation import Outcome
from fabricd.model.snapshot import Snapshot
from fabricd.units import format_bandwidth, format_count, format_ranges

_RESET = "nvidia-smi --gpu-reset -i {gpu} while no job runs on it, else reboot the node"
_FABRIC_WAITS = frozenset({"not-started", "in-progress"})
_RECOVERIES = "recovery"
_NVIDIA, _DISPLAY, _DRIVER = 0x10DE, 0x03, "nvidia"


def gpu_findings(snapshot: Snapshot) -> Iterator[Finding]:
    """Yield what is wrong with the GPUs of a node."""
    yield from _missing(snapshot)
    for gpu in snapshot.gpus:
        if gpu.outcome is Outcome.FAILED:
            yield _of(gpu, "gpu-lost", Severity.ERROR, "does not answer", [gpu.reason], f"dmesg | grep Xid; {_RESET}")
        if gpu.ecc_uncorrected:
            told = f"{format_count(gpu.ecc_uncorrected, 'uncorrected ECC error')} since its driver was loaded"
            fix = f"nvidia-smi -q -d ECC,ROW_REMAPPER -i {{gpu}}; {_RESET}: rows are remapped then"
            yield _of(gpu, "gpu-ecc", Severity.WARNING, "has memory that fails", [told], fix)
        if gpu.fabric is not None:
            yield from _fabric(gpu, gpu.fabric)
        if gpu.mig_mode == "enabled":
            evidence = [format_count(len(gpu.mig), "instance")]
            fix = "nvidia-smi -i {gpu} -mig 0 while no job runs on it, where a job is to have it whole"
            yield _of(
                gpu, "gpu-divided", Severity.NOTE, "is divided (MIG): no direct access to other GPUs", evidence, fix
            )
    yield from _split_domain(snapshot.gpus)
    yield from _links_down(snapshot.gpus)
    for gpu in snapshot.gpus:
        yield from _link_speeds(gpu)
        yield from _link_errors(gpu)
    yield from _peers(snapshot.gpus)


def _of(gpu: Gpu, code: str, severity: Severity, what: str, evidence: Sequence[str], fix: str) -> Finding:
    name = f"gpu{gpu.index}"
    return Finding(
        code=code,
        severity=severity,
        subject=name,
        what=f"{name} {what}",
        evidence=tuple(filter(None, evidence)),
        fix=fix.format(gpu=gpu.index),
    )


def _missing(snapshot: Snapshot) -> Iterator[Finding]:
    """A GPU that the driver holds and NVML does not list could not be started, or is hidden from a container."""
    if not any(report.name == "nvml" and report.outcome is Outcome.OK for report in snapshot.probes):
        return
    listed = {gpu.pci_address for gpu in snapshot.gpus}
    if "" in listed:  # of a GPU that is lost NVML may not know where it was
        return
    missing = [
        device.address
        for device in snapshot.pci
        if device.vendor_id == _NVIDIA
        and (device.class_code or 0) >> 16 == _DISPLAY
        and device.driver == _DRIVER
        and device.address not in listed
        and not device.physical_function
    ]
    if missing:
        hidden = bool(snapshot.node.container)
        fix = "dmesg | grep -e NVRM -e Xid; switch the node off and on: a reset alone may not bring it back"
        yield Finding(
            code="gpu-missing",
            severity=Severity.NOTE if hidden else Severity.ERROR,
            subject=", ".join(missing[:8]),
            what="GPUs are on the PCI bus, and NVML does not list them",
            evidence=(f"{len(missing)} with the driver {_DRIVER}", f"NVML lists {format_count(len(listed), 'GPU')}"),
            fix=f"nothing is wrong where this container was given the others; else {fix}" if hidden else fix,
        )


def _fabric(gpu: Gpu, fabric: NvlinkFabric) -> Iterator[Finding]:
    told = [f"NVML: fabric {fabric.state}, {fabric.status or 'no status'}"]
    if fabric.state in _FABRIC_WAITS:
        fix = "systemctl status nvidia-fabricmanager: CUDA does not start on this GPU before it has registered"
        yield _of(gpu, "fabric-not-ready", Severity.ERROR, "is not registered with its NVSwitches", told, fix)
    elif fabric.state == "completed" and fabric.status not in ("", "success"):
        fix = "journalctl -u nvidia-fabricmanager; NVLink carries nothing for this GPU until it has registered"
        yield _of(gpu, "fabric-failed", Severity.ERROR, "could not register with its NVSwitches", told, fix)
    if fabric.health in ("unhealthy", "limited-capacity"):
        mask = "" if fabric.health_mask is None else f"health mask {fabric.health_mask:#x}"
        severity = Severity.ERROR if fabric.health == "unhealthy" else Severity.WARNING
        fix = "nvidia-smi -q -i {gpu} | grep -A9 Fabric names what fails: bandwidth, route recovery, or access"
        evidence = [f"NVML: fabric health {fabric.health}", mask]
        yield _of(gpu, "fabric-unhealthy", severity, "has an NVLink fabric that is not whole", evidence, fix)


def _split_domain(gpus: Sequence[Gpu]) -> Iterator[Finding]:
    seen: dict[str, list[int]] = defaultdict(list)
    for gpu in gpus:
        if gpu.fabric and gpu.fabric.cluster_uuid:
            seen[f"{gpu.fabric.cluster_uuid} clique {gpu.fabric.clique_id}"].append(gpu.index)
    if len(seen) > 1:
        yield Finding(
            code="fabric-split",
            severity=Severity.WARNING,
            what="GPUs of this node are in several NVLink domains or cliques",
            evidence=tuple(f"gpu{format_ranges(members)}: {domain}" for domain, members in seen.items()),
            fix="the fabric manager's partitions decide this; a job on all of them does not use NVLink between them",
        )


def _active(gpu: Gpu) -> list[int]:
    return [link.index for link in gpu.links if link.active]


def _is_bridged(gpu: Gpu) -> bool:
    """Tell whether all of its links that are up go to one other GPU."""
    return len({link.remote_pci_address for link in gpu.links if link.active and link.remote_type == "gpu"}) == 1


def _links_down(gpus: Sequence[Gpu]) -> Iterator[Finding]:
    """A link is down that knows its other end, or that GPUs alike have which hang on switches or bridges, too.

    A GPU without any may stand beside a bridge that joins two others. In a mesh of GPUs, as of V100s, numbers of links
    differ by design where a virtual machine has some of them. A GPU that is divided has none: A100s' are trained off
    with MIG. Source: NVIDIA's Fabric Manager user guide.
    """
    divided = {gpu.pci_address for gpu in gpus if gpu.mig_mode == "enabled"}
    judged = [gpu for gpu in gpus if gpu.outcome is Outcome.OK and gpu.links and gpu.mig_mode != "enabled"]
    alike: dict[str, list[Gpu]] = defaultdict(list)
    for gpu in judged:
        alike[gpu.name].append(gpu)
    for gpu in judged:
        active = _active(gpu)
        down = [link for link in gpu.links if link.active is False]
        known = [link for link in down if link.remote_pci_address and link.remote_pci_address not in divided]
        switched = any(link.remote_type == "switch" and link.active for one in alike[gpu.name] for link in one.links)
        equal = [one for one in alike[gpu.name] if switched or _is_bridged(one)]
        most = max((len(_active(one)) for one in equal), default=0)
        fewer = gpu in equal and len(active) < most
        if not known and not fewer:
            continue
        numbers = format_ranges(link.index for link in known or down)
        others = [f"gpu{one.index} has {len(_active(one))}" for one in equal if len(_active(one)) == most]
        yield _of(
            gpu,
            "nvlink-down",
            Severity.ERROR,
            f"has NVLinks that are down: {numbers}" if numbers else "has fewer NVLinks than its like",
            [f"{len(active)} of {len(gpu.links)} are active", *(others[:1] if fewer else ())],
            f"nvidia-smi nvlink -s -i {{gpu}}; dmesg | grep Xid (74 is NVLink); {_RESET}",
        )


def _link_speeds(gpu: Gpu) -> Iterator[Finding]:
    speeds = Counter(link.speed_bytes_per_second for link in gpu.links if link.active and link.speed_bytes_per_second)
    if len(speeds) < 2:
        return
    best = max(speeds)
    slow = [link for link in gpu.links if link.active and (link.speed_bytes_per_second or best) < best]
    told = [f"link {link.index}: {format_bandwidth(link.speed_bytes_per_second)}" for link in slow]
    fix = f"nvidia-smi nvlink -s -i {{gpu}}; {_RESET}: links are trained anew then"
    evidence = [*told, f"the others {format_bandwidth(best)}"]
    yield _of(gpu, "nvlink-slow", Severity.WARNING, "has NVLinks slower than its others", evidence, fix)


def _link_errors(gpu: Gpu) -> Iterator[Finding]:
    told = [
        f"link {link.index}: {_RECOVERIES} {count}"
        for link in gpu.links
        for name, count in link.errors
        if name == _RECOVERIES and count
    ]
    if told:
        fix = "nvidia-smi nvlink -e -i {gpu}, twice: only a count that grows is trouble; then reseat the GPU or bridge"
        yield _of(gpu, "nvlink-errors", Severity.NOTE, "had NVLinks that trained anew since its reset", told, fix)


def _peers(gpus: Sequence[Gpu]) -> Iterator[Finding]:
    by_index = {gpu.index: gpu for gpu in gpus}
    for gpu in gpus:
        off: dict[str, list[int]] = defaultdict(list)
        regkey: list[int] = []
        for peer in gpu.peers:
            other = by_index.get(peer.gpu)
            if other is not None and _joined(gpu, other) and (told := _refused(peer)):
                off[told].append(peer.gpu)
            elif "disabled-by-regkey" in (peer.read, peer.write):
                regkey.append(peer.gpu)
        if off:
            evidence = [f"to gpu{format_ranges(members)}: {why}" for why, members in off.items()]
            fix = "nvidia-smi topo -p2p n; the fabric manager or a driver's setting keeps it off: NCCL goes over PCIe"
            what = "has NVLinks that are up, and no direct access over them"
            yield _of(gpu, "nvlink-p2p", Severity.ERROR, what, evidence, fix)
        if regkey:
            evidence = [f"to gpu{format_ranges(regkey)}: disabled-by-regkey"]
            fix = "see NVreg_RegistryDwords in /proc/driver/nvidia/params: data goes through the host's memory"
            what = "may not reach other GPUs: its driver was told so"
            yield _of(gpu, "p2p-disabled", Severity.WARNING, what, evidence, fix)


def _joined(one: Gpu, other: Gpu) -> bool:
    """Tell whether NVLinks that are up join two whole GPUs, by themselves or by switches."""
    if "enabled" in (one.mig_mode, other.mig_mode):
        return False
    ends = {link.remote_pci_address for link in one.links if link.active and link.remote_type == "gpu"}
    by_switch = all(any(link.active and link.remote_type == "switch" for link in gpu.links) for gpu in (one, other))
    return by_switch or bool(other.pci_address and other.pci_address in ends)


def _refused(peer: GpuPeer) -> str:
    """Return what the driver says against access over NVLink, "" for nothing."""
    return ", ".join(
        f"{what} {told}"
        for what, told in (("NVLink", peer.nvlink), ("read", peer.read), ("write", peer.write))
        if told not in ("", "ok")
    )
