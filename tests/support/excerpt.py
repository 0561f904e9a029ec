"""Prints what a snapshot says in lines that a person can review in a diff."""

import re
from collections.abc import Callable, Iterable
from itertools import groupby

from fabricd.model.device import Gpu, GpuPeer, Hca, NetInterface, NvLink, PciDevice, PcieLink
from fabricd.model.snapshot import Snapshot
from fabricd.units import format_bandwidth, format_ranges


def excerpt(snapshot: Snapshot, *, root: str = "") -> str:
    """Return the excerpt.

    Args:
        snapshot: of a rendered machine.
        root: folder of the rendered tree, cut out of all texts.
    """
    lines = [*_node(snapshot), "", *_probes(snapshot), ""]
    for part in (_numa(snapshot), _pci(snapshot), _gpus(snapshot), _hcas(snapshot), _interfaces(snapshot)):
        lines += [*part, ""] if part else []
    text = "\n".join(lines).rstrip() + "\n"
    return text.replace(root, "") if root else text


def _node(snapshot: Snapshot) -> list[str]:
    node = snapshot.node
    cpu = node.cpu
    lines = [f"node {node.name or '?'}"]
    lines += [f"  {node.vendor} {node.product}".rstrip()] if node.product else []
    kind = "bare metal" if node.virtualization == "none" else node.virtualization or "?"
    lines.append(f"  {node.os or '?'}, kernel {node.kernel or '?'}, {kind}{_container(snapshot)}")
    name = cpu.name or cpu.vendor or "?"
    lines.append(f"  {cpu.sockets or '?'} x {name}, {cpu.architecture or '?'}, CPUs {cpu.logical or '?'}")
    return [*lines, f"  memory {_gib(node.memory_bytes)}"]


def _container(snapshot: Snapshot) -> str:
    return f", in a container ({snapshot.node.container})" if snapshot.node.container else ""


def _probes(snapshot: Snapshot) -> list[str]:
    lines = []
    for report in snapshot.probes:
        lines.append(f"probe {report.name} {report.outcome}" + (f": {report.reason}" if report.reason else ""))
        lines += [f"  {note}" for note in report.notes]
    return lines


def _numa(snapshot: Snapshot) -> list[str]:
    return [
        f"numa {node.index}  CPUs {format_ranges(node.cpus) or '-'}  {_gib(node.memory_bytes)}"
        f"  distances {' '.join(map(str, node.distances)) or '?'}"
        for node in snapshot.numa
    ]


def _pci(snapshot: Snapshot) -> list[str]:
    known = {device.address for device in snapshot.pci}
    children: dict[str, list[PciDevice]] = {}
    for device in snapshot.pci:
        children.setdefault(device.parent if device.parent in known else device.root, []).append(device)
    lines: list[str] = []

    def show(parent: str, indent: int) -> None:
        for virtual, group in groupby(children.get(parent, []), key=lambda device: device.physical_function):
            devices = list(group)
            if virtual and len(devices) > 3:
                ends = f"{devices[0].address} ... {devices[-1].address}"
                lines.append(f"{'  ' * indent}{ends}  {len(devices)} virtual functions of {virtual}")
                continue
            for device in devices:
                lines.append("  " * indent + _pci_line(device))
                show(device.address, indent + 1)

    for root in sorted({device.root for device in snapshot.pci}):
        lines.append(f"pci {root or '?'}")
        show(root, 1)
    return lines


def _pci_line(device: PciDevice) -> str:
    ids = ":".join("?" if number is None else f"{number:04x}" for number in (device.vendor_id, device.device_id))
    code = "?" if device.class_code is None else f"{device.class_code:06x}"
    extra = [f"driver {device.driver}"] if device.driver else []
    extra += [f"bar {_gib(device.largest_bar_bytes)}"] if device.largest_bar_bytes else []
    extra += [f"iommu {device.iommu_group}"] if device.iommu_group is not None else []
    extra += [f"{device.virtual_function_count} VFs"] if device.virtual_function_count else []
    extra += [f"VF of {device.physical_function}"] if device.physical_function else []
    return "  ".join([f"{device.address} {code} {ids}", f"numa {_or(device.numa_node)}", _link(device.link), *extra])


def _link(link: PcieLink) -> str:
    now, most = _speed(link.speed_gts, link.width), _speed(link.max_speed_gts, link.max_width)
    return f"link {now}" if now == most else f"link {now} of {most}"


def _speed(rate: float | None, width: int | None) -> str:
    return "?" if rate is None and width is None else f"{'?' if rate is None else format(rate, 'g')}x{_or(width)}"


def _gpus(snapshot: Snapshot) -> list[str]:
    lines = []
    driver = snapshot.gpu_driver
    if driver is not None:
        lines.append(f"driver {driver.driver_version}  NVML {driver.nvml_version}  CUDA {driver.cuda_version}")
        lines += [f"imex channels {format_ranges(driver.imex_channels)}"] if driver.imex_channels else []
    for gpu in snapshot.gpus:
        lines += ["", *_gpu(gpu)]
    return lines


def _gpu(gpu: Gpu) -> list[str]:
    state = "" if gpu.outcome == "ok" else f"  {gpu.outcome}: {gpu.reason}"
    compute = "?" if gpu.compute_capability is None else ".".join(map(str, gpu.compute_capability))
    lines = [
        f"gpu{gpu.index} {gpu.pci_address or '?'}  {gpu.name or '?'}{state}",
        f"  {gpu.uuid or 'no UUID'}",
        f"  compute {compute}  memory {_gib(gpu.memory_bytes)}  BAR1 {_gib(gpu.bar1_bytes)}  {_link(gpu.pcie)}",
        f"  numa {_or(gpu.numa_node)}  own memory {_or(gpu.memory_numa_node)}"
        f"  CPUs {format_ranges(gpu.cpu_affinity) or '-'}",
        f"  mig {gpu.mig_mode or '?'}  persistence {_or(gpu.persistence)}"
        f"  ecc {gpu.ecc_mode or '?'} uncorrected {_or(gpu.ecc_uncorrected)}",
    ]
    lines += [
        f"  mig {instance.profile} {instance.uuid} {_gib(instance.memory_bytes)}"
        f"  instance {_or(instance.gpu_instance)}/{_or(instance.compute_instance)}"
        for instance in gpu.mig
    ]
    lines += _grouped("nvlink", [(link.index, _nvlink(link)) for link in gpu.links])
    if gpu.c2c_links is not None:
        lines.append(f"  c2c {gpu.c2c_links} links, {format_bandwidth(gpu.c2c_bytes_per_second)}")
    if gpu.fabric is not None:
        fabric = gpu.fabric
        lines.append(
            f"  fabric {fabric.state} {fabric.status}  domain {fabric.cluster_uuid or '-'}"
            f"  clique {_or(fabric.clique_id)}  health {_or(fabric.health_mask)} {fabric.health}".rstrip()
        )
    lines += _grouped("peer", [(peer.gpu, _peer(peer)) for peer in gpu.peers])
    return [*lines, *(f"  note {note}" for note in gpu.notes)]


def _nvlink(link: NvLink) -> str:
    if not link.active:
        return f"v{_or(link.version)} inactive"
    speed = format_bandwidth(link.speed_bytes_per_second)
    assumed = "" if link.speed_evidence == "reported" else f" ({link.speed_evidence})"
    errors = " ".join(f"{name} {count}" for name, count in link.errors if count)
    p2p = "" if link.peer_to_peer else f"  p2p {_or(link.peer_to_peer)}"
    target = f"{link.remote_type or '?'} {link.remote_pci_address or '?'}"
    return f"v{_or(link.version)} {speed}{assumed} -> {target}{p2p}{'  errors ' + errors if errors else ''}"


def _peer(peer: GpuPeer) -> str:
    return "  ".join(
        f"{name} {getattr(peer, name) or '?'}" for name in ("read", "write", "nvlink", "atomics", "topology")
    )


def _grouped(word: str, numbered: Iterable[tuple[int, str]]) -> list[str]:
    """Return a line for each text with all the numbers that bear it."""
    by_text: dict[str, list[int]] = {}
    for number, text in numbered:
        by_text.setdefault(text, []).append(number)
    return [f"  {word} {format_ranges(numbers)}: {text}" for text, numbers in by_text.items()]


def _hcas(snapshot: Snapshot) -> list[str]:
    lines = []
    for hca in sorted(snapshot.hcas, key=_natural(lambda hca: hca.name)):
        lines += _hca(hca)
    return lines


def _natural(name_of: Callable[[Hca], str]) -> Callable[[Hca], list[tuple[int, str]]]:
    return lambda hca: [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name_of(hca))]


def _hca(hca: Hca) -> list[str]:
    lines = [
        f"hca {hca.name} {hca.kind}  {hca.pci_address or '-'}  numa {_or(hca.numa_node)}  guid {hca.node_guid or '?'}"
        f"  firmware {hca.firmware or '?'}  board {hca.board_id or '?'}"
        f"  dma-buf {_or(hca.dmabuf)}"
    ]
    for port in hca.ports:
        lines.append(
            f"  port {port.port} {port.state or '?'}/{port.physical_state or '?'} {port.link_layer or '?'}"
            f" {format_bandwidth(port.rate_bytes_per_second)} x{_or(port.width)}"
            f" lid {_or(port.lid)} sm {_or(port.sm_lid)} mtu {_or(port.active_mtu)}"
        )
        lines += [f"    gid {gid.index} {gid.gid} {gid.type or '?'} {gid.interface}".rstrip() for gid in port.gids]
        counted = [f"{name} {value}" for name, value in (*port.counters, *port.hw_counters) if value]
        lines += ["    " + "  ".join(counted)] if counted else []
    return lines


def _interfaces(snapshot: Snapshot) -> list[str]:
    return [_interface(interface) for interface in snapshot.interfaces]


def _interface(interface: NetInterface) -> str:
    words = [f"net {interface.name} {interface.kind}", interface.driver or "-", interface.pci_address or "-"]
    words += [interface.oper_state or "?", format_bandwidth(interface.speed_bytes_per_second)]
    words += [f"mtu {_or(interface.mtu)}", f"numa {_or(interface.numa_node)}"]
    words += [f"rdma {interface.rdma_device}"] if interface.rdma_device else []
    words += [f"{address.address}/{address.prefix_length}" for address in interface.addresses]
    return "  ".join(words)


def _or(value: object) -> str:
    return "?" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _gib(count: int | None) -> str:
    return "?" if count is None else f"{count / 2**30:.4g} GiB"
