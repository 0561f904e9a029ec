"""A host's topology as NCCL should know it: where NCCL itself would take what a link could do, what it does now.

NCCL reads the highest speed and width that both ends of a PCIe link could have (2.30, graph/xml.cc), so a link that
came up narrower or slower, or a port that was measured slower than its rate, counts as healthy. On virtual machines
that hide the host's tree, the file that describes it is the base.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from fabricd.graph.nccl_xml import Element, render
from fabricd.graph.nccl_xml_host import kernel_address
from fabricd.graph.nccl_xml_merge import document_of
from fabricd.graph.nccl_xml_read import read
from fabricd.graph.nccl_xml_types import NcclTopology
from fabricd.graph.template import placement
from fabricd.model.device import PciDevice, PcieLink
from fabricd.model.snapshot import Snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class Corrected:
    """A topology document, and where it differs from what NCCL would find by itself."""

    root: Element
    template: str = ""  #: what the file did that describes a virtual machine; "" without one
    changes: tuple[str, ...] = ()  #: links and ports that do less than NCCL would take them for, one sentence each


def corrected_document(
    snapshot: Snapshot, *, ranks: Mapping[int, int] | None = None, measured: Mapping[str, float] | None = None
) -> Corrected:
    """Return a host's topology for ``NCCL_TOPO_FILE``.

    Args:
        snapshot: the host's facts.
        ranks: rank by GPU index; by default the index itself.
        measured: bytes/s by name of an adapter or interface, where it was measured slower than its rate.
    """
    placed = placement(snapshot)
    changes: list[str] = []
    pci, gpus = _devices(snapshot)

    def correct(element: Element) -> Element:
        if element.tag == "pci":
            return _link(element, pci, gpus, changes)
        return _port(element, measured or {}, changes) if element.tag == "net" else element

    root = _mapped(document_of(snapshot, ranks=ranks), correct)
    template = placed.notes[-1] if placed.template is not None and placed.notes else ""
    return Corrected(root=root, template=template, changes=tuple(changes))


def corrected_topology(snapshot: Snapshot) -> NcclTopology:
    """Return what NCCL would read of a host that was given this file; ranks are the GPUs' indices.

    Raises:
        ParseError: facts that no topology can hold, such as two GPUs at one address.
    """
    root = corrected_document(snapshot).root
    return read(render(root), source=f"topology of {snapshot.node.name or 'this host'}")


def _mapped(element: Element, change: Callable[[Element], Element]) -> Element:
    """Return an element with a change made to it and to all below; documents are at most some dozen levels deep."""
    changed = change(element)
    return changed.with_children(tuple(_mapped(child, change) for child in changed.children))


def _devices(snapshot: Snapshot) -> tuple[dict[str, PciDevice], dict[str, PcieLink]]:
    pci = {device.address: device for device in snapshot.pci}
    return pci, {gpu.pci_address: gpu.pcie for gpu in snapshot.gpus}


def _link(element: Element, pci: Mapping[str, PciDevice], gpus: Mapping[str, PcieLink], changes: list[str]) -> Element:
    """Return a device with the speed and width that its link has, where that is less than what is written."""
    values, told = _worse(kernel_address(element.attributes.get("busid", "")), pci, gpus)
    if told:
        changes.append(told)
    return replace(element, attributes={**element.attributes, **values}) if values else element


def _worse(address: str, pci: Mapping[str, PciDevice], gpus: Mapping[str, PcieLink]) -> tuple[dict[str, str], str]:
    """Return the attributes of a link that does less than it could, and a sentence about it; neither for others."""
    device = pci.get(address)
    if device is None:
        return {}, ""
    port = pci[device.parent].link if device.parent in pci else PcieLink()
    width = device.link.width or port.width
    # A GPU lowers its speed while it idles, but never its width.
    speed = None if address in gpus else device.link.speed_gts or port.speed_gts
    ends = (device.link, port)
    most_width = min((end.max_width for end in ends if end.max_width), default=None)
    most_speed = min((end.max_speed_gts for end in ends if end.max_speed_gts), default=None)
    values = {}
    if width and most_width and width < most_width:
        values["link_width"] = str(width)
    if speed and most_speed and speed < most_speed:
        values["link_speed"] = f"{speed:.1f} GT/s PCIe"
    if not values:
        return {}, ""
    now, could = f"{_rate(speed or most_speed)} x{width}", f"{_rate(most_speed)} x{most_width}"
    return values, f"the PCIe link of {address} runs at {now}, and NCCL would take it for {could}"


def _rate(speed: float | None) -> str:
    return f"{speed:g} GT/s" if speed else "? GT/s"


def _port(element: Element, measured: Mapping[str, float], changes: list[str]) -> Element:
    name = element.attributes.get("name", "")
    told = int(element.attributes.get("speed", "0") or 0)
    found = round(measured[name] / 125_000) if name in measured else told
    if not 0 < found < told:
        return element
    changes.append(f"{name} was measured at {found} Mb/s, and NCCL would take it for {told} Mb/s")
    return replace(element, attributes={**element.attributes, "speed": str(found)})
