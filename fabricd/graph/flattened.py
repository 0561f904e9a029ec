"""Virtual machines that do not show how their devices hang together, told from those that do: by facts.

Hypervisors pass devices through one by one: each appears on a root bus of the virtual machine, or below an emulated
port, whatever switch and NUMA node of the host it shares with others.
"""

from collections.abc import Mapping

from fabricd.model.device import PciDevice
from fabricd.model.snapshot import Snapshot

#: A switch is two bridges: its upstream port and one of its downstream ports. One alone is a port of the root.
_PORT_OF_THE_ROOT = 1


def flattened(snapshot: Snapshot) -> str:
    """Return the facts by which a machine hides how its GPUs and adapters hang together, ``""`` where it does not.

    It is a virtual machine, has a GPU and another device, and no switch above any of them. That could be the truth, so
    one more thing must be amiss with all of them: no PCI Express device of real hardware sits on a root bus itself, and
    hardware tells link speeds and NUMA nodes.
    """
    if snapshot.node.virtualization in ("", "none"):
        return ""
    pci = {device.address: device for device in snapshot.pci}
    gpus = {gpu.pci_address for gpu in snapshot.gpus} & pci.keys()
    adapters = {hca.pci_address for hca in snapshot.hcas} & pci.keys()
    ends = [pci[address] for address in sorted(gpus | adapters)]
    if not gpus or len(ends) < 2 or any(_bridges_above(end, pci) > _PORT_OF_THE_ROOT for end in ends):
        return ""
    amiss = {
        "directly on a root bus": sum(end.parent not in pci for end in ends),
        "without a PCIe link speed": sum(_has_no_speed(end, pci) for end in ends),
        "without a NUMA node": sum(end.numa_node is None for end in ends),
    }
    if len(ends) not in amiss.values():
        return ""
    told = ", ".join(f"{count} {what}" for what, count in amiss.items() if count)
    return f"GPUs {len(gpus)}, adapters {len(adapters)}, none below a switch; {told}"


def _bridges_above(device: PciDevice, pci: Mapping[str, PciDevice]) -> int:
    """Count up to the two that make a switch."""
    port = pci.get(device.parent)
    return 0 if port is None else 1 + (port.parent in pci)


def _has_no_speed(device: PciDevice, pci: Mapping[str, PciDevice]) -> bool:
    port = pci.get(device.parent)
    ends = [device, *([port] if port is not None else [])]
    return not any(end.link.speed_gts or end.link.max_speed_gts for end in ends)
