"""PCIe: links narrower or slower than both ends could, and what stands in the way between GPUs and adapters."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import pairwise

from fabricd.graph.snapshot_pci import pcie_figure
from fabricd.model.device import PciDevice
from fabricd.model.finding import Finding, Severity
from fabricd.model.observation import Outcome
from fabricd.model.snapshot import Snapshot

_SHOWN = 8
_MAX_DEPTH = 32  #: bridges above one another; the deepest machines have six
_TRANSLATES = frozenset({"DMA", "DMA-FQ"})
_Devices = Mapping[str, PciDevice]


def pci_findings(snapshot: Snapshot) -> Iterator[Finding]:
    """Yield what is wrong with the PCIe tree of a node's GPUs and adapters."""
    known = {device.address: device for device in snapshot.pci}
    names = _names(snapshot)
    yield from _links(snapshot, known, names)
    gpus = {gpu.pci_address for gpu in snapshot.gpus} & known.keys()
    adapters = {hca.pci_address for hca in snapshot.hcas} & known.keys()
    if not gpus or len(gpus | adapters) < 2:
        return
    yield from _acs(_between(gpus | adapters, known))
    ends = {address: known[address] for address in gpus | adapters}
    translated = sorted(address for address, end in ends.items() if end.iommu_mode in _TRANSLATES)
    if translated:
        yield Finding(
            code="iommu-translates",
            severity=Severity.WARNING,
            what="the IOMMU translates what GPUs and adapters read and write",
            evidence=tuple(f"{names[one]} ({one}): {ends[one].iommu_mode}" for one in translated[:_SHOWN]),
            fix="iommu=pt (on ARM iommu.passthrough=1) on the kernel's command line, or the IOMMU off in the firmware, "
            "where no machine is virtual",
        )
    if sum(1 for numa in snapshot.numa if numa.cpus) > 1:  # some have memory alone: of GPUs, of CXL
        lost = sorted(address for address, end in ends.items() if end.numa_node is None)
        if lost:
            yield Finding(
                code="numa-unknown",
                severity=Severity.WARNING,
                what="the firmware does not say which processor GPUs or adapters are near",
                evidence=tuple(f"{names[one]} ({one}): NUMA node -1" for one in lost[:_SHOWN]),
                fix="update the firmware; in a virtual machine, give the topology: fabricctl plan --topology FILE",
            )


def _names(snapshot: Snapshot) -> dict[str, str]:
    """Return what people call each function that something uses."""
    names = {interface.pci_address: interface.name for interface in snapshot.interfaces if interface.pci_address}
    names |= {hca.pci_address: hca.name for hca in snapshot.hcas if hca.pci_address}
    return names | {gpu.pci_address: f"gpu{gpu.index}" for gpu in snapshot.gpus if gpu.pci_address}


def _between(ends: Collection[str], known: _Devices) -> Sequence[PciDevice]:
    """Return the bridges that lie below one where the ways of several devices meet.

    What devices below different root ports exchange passes the processor in any case.
    """
    chains = [[known[end], *_above(known[end], known)] for end in ends]
    below: dict[str, set[str]] = {}
    for chain in chains:
        for device, bridge in pairwise(chain):
            below.setdefault(bridge.address, set()).add(device.address)
    found = {
        bridge.address: bridge
        for chain in chains
        for place, bridge in enumerate(chain[1:], 2)
        if any(len(below[upper.address]) > 1 for upper in chain[place:])
    }
    return list(found.values())


def _above(device: PciDevice, known: _Devices) -> Iterator[PciDevice]:
    """Yield the bridges above a function, nearest first; of a ring that another node tells, as many as there can be."""
    for _ in range(_MAX_DEPTH):
        above = known.get(device.parent)
        if above is None:
            return
        yield above
        device = above


def _links(snapshot: Snapshot, known: _Devices, names: Mapping[str, str]) -> Iterator[Finding]:
    """Judge each link on the way from a GPU or adapter to its host bridge by what both of its ends could do.

    A GPU that hangs on its processor by C2C sends nothing by PCIe.
    """
    gpus = {gpu.pci_address for gpu in snapshot.gpus}
    by_c2c = {gpu.pci_address for gpu in snapshot.gpus if gpu.c2c_links}
    below: dict[str, list[str]] = {}
    for address in names.keys() - by_c2c:
        device = known.get(address)
        if device is None or device.physical_function:
            continue
        # A switch is two bridges deep; between these two there is no link.
        for one in (device, *_above(device, known))[::2]:
            below.setdefault(one.address, []).append(address)
    for address, users in sorted(below.items()):
        device, port = known[address], known.get(known[address].parent)
        if port is None:
            continue
        widths = [end.max_width for end in (device.link, port.link) if end.max_width]
        speeds = [end.max_speed_gts for end in (device.link, port.link) if end.max_speed_gts]
        width, speed = device.link.width, device.link.speed_gts
        narrow = bool(len(widths) == 2 and width and width < min(widths))
        # A GPU, and what stands above it alone, sleeps at a lower speed while nothing runs.
        sleeps = gpus.issuperset(users)
        slow = bool(len(speeds) == 2 and speed and speed < min(speeds) and not sleeps)
        if not narrow and not slow:
            continue
        _, told = pcie_figure(device.link, port.link, sleeps=sleeps)
        subject = names.get(address, address)
        above = ", ".join(sorted(names[user] for user in users)[:_SHOWN])
        where = f"{subject} ({address})" if subject != address else f"{address}, above {above},"
        yield Finding(
            code="pcie-narrow" if narrow else "pcie-slow",
            severity=Severity.ERROR,
            subject=subject,
            what=f"the PCIe link of {where} is {'narrower' if narrow else 'slower'} than both of its ends could be",
            evidence=(told, f"its other end is {port.address}"),
            fix="lspci -vv shows LnkSta 'downgraded'; reseat the card or riser, and see the errors in dmesg | grep AER",
        )


def _acs(bridges: Sequence[PciDevice]) -> Iterator[Finding]:
    redirecting = sorted(one.address for one in bridges if one.acs_redirects)
    denied = [one for one in bridges if one.acs is Outcome.DENIED]
    if redirecting:
        shown = ", ".join(redirecting[:_SHOWN]) + (", ..." if len(redirecting) > _SHOWN else "")
        yield Finding(
            code="acs-redirects",
            severity=Severity.WARNING,
            what="PCIe bridges send what GPUs and adapters exchange up to the processor and back (ACS)",
            evidence=(f"ACS redirects at {len(redirecting)} bridges: {shown}",),
            fix="switch ACS off in the firmware, or by setpci at each boot, where no machine is virtual; NCCL's "
            "troubleshooting guide has the commands",
        )
    elif denied:
        yield Finding(
            code="acs-unknown",
            severity=Severity.NOTE,
            what="whether PCIe bridges redirect what GPUs and adapters exchange (ACS) could not be read",
            evidence=(f"{len(denied)} bridges: denied",),
            fix="as root: fabricd facts, at each boot; the service installed by deploy/install.sh does it",
        )
