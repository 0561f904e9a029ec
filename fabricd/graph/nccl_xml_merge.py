"""A snapshot as NCCL's topology XML, and a cloud image's template completed with a live host's facts.

A template has the structure that a virtual machine hides: which devices share a switch and a NUMA node. It need not
have more than PCI addresses. As in NCCL (2.30, graph/xml.cc), what the file says stays; what it lacks is filled in
from the host, and devices that it does not name are placed where the host shows them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from fabricd.errors import InputError
from fabricd.graph.nccl_xml import Element, render
from fabricd.graph.nccl_xml_host import cpu_attributes, gpu_element, kernel_address, net_elements, pci_attributes
from fabricd.graph.nccl_xml_read import read
from fabricd.graph.nccl_xml_types import NcclTopology
from fabricd.graph.template import placement
from fabricd.model.device import PciDevice
from fabricd.model.observation import Outcome
from fabricd.model.snapshot import Snapshot

#: More switches in a row than any machine has; composable fabrics reach 10.
_MAX_CHAIN = 48
#: What NCCL writes of the link of a device that the file has and the host has not.
_NO_LINK = {"link_speed": "", "link_width": "0"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Merged:
    """A template with a host's facts.

    Attributes:
        root: the whole document.
        matched: addresses of GPUs and cards that stand in the template and on the host.
        added: addresses of those that the template lacks, placed as the host shows them.
        absent: addresses of the template's innermost devices that the host lacks. NCCL drops those.
    """

    root: Element
    matched: tuple[str, ...] = ()
    added: tuple[str, ...] = ()
    absent: tuple[str, ...] = ()


def document_of(snapshot: Snapshot, *, ranks: Mapping[int, int] | None = None) -> Element:
    """Return the topology that NCCL would find on a host, as it would write it.

    On a virtual machine that hides it, with the topology file that describes it as ``NCCL_TOPO_FILE``.

    Args:
        snapshot: the host's facts.
        ranks: rank by GPU index; by default the index itself.
    """
    template = placement(snapshot).template or Element("system", {"version": "1"})
    return merge_template(template, snapshot, ranks=ranks).root


def topology_of(snapshot: Snapshot) -> NcclTopology:
    """Return what NCCL would read of a host; ranks are the GPUs' indices.

    Raises:
        ParseError: facts that no topology can hold, such as two GPUs at one address.
    """
    return read(render(document_of(snapshot)), source=f"topology of {snapshot.node.name or 'this host'}")


def merge_template(template: Element, snapshot: Snapshot, *, ranks: Mapping[int, int] | None = None) -> Merged:
    """Complete a template with a host's facts, device by device, by PCI address.

    Args:
        template: outermost element of a topology file.
        snapshot: the host's facts.
        ranks: as for ``document_of``.

    Raises:
        InputError: not a topology file.
    """
    if template.tag != "system":
        raise InputError(f"<{template.tag[:40]}> is not a topology", hint="the outermost element is <system>")
    return _Merger(template, snapshot).run(ranks or {})


@dataclass(slots=True, eq=False)
class _Branch:
    """An element that can still grow."""

    tag: str
    attributes: dict[str, str] = field(default_factory=dict)
    children: list["_Branch"] = field(default_factory=list)
    line: int = 0

    def child(self, tag: str) -> "_Branch":
        """Return the first child of a tag, a new one if there is none."""
        for child in self.children:
            if child.tag == tag:
                return child
        self.children.append(_Branch(tag))
        return self.children[-1]

    def fill(self, values: Mapping[str, str]) -> None:
        """Add the attributes that are missing."""
        for name, value in values.items():
            self.attributes.setdefault(name, value)


def _thaw(element: Element) -> _Branch:
    return _Branch(element.tag, dict(element.attributes), [_thaw(child) for child in element.children], element.line)


def _freeze(branch: _Branch) -> Element:
    return Element(branch.tag, branch.attributes, tuple(_freeze(child) for child in branch.children), branch.line)


class _Merger:
    def __init__(self, template: Element, snapshot: Snapshot) -> None:
        self._root = _thaw(template)
        self._snapshot = snapshot
        self._devices = {device.address: device for device in snapshot.pci}
        self._cpus: dict[str, _Branch] = {}
        self._pcis: dict[str, _Branch] = {}
        self._innermost = []
        for branch in _walk(self._root):
            if branch.tag == "cpu":
                self._cpus.setdefault(branch.attributes.get("numaid", ""), branch)
            elif branch.tag == "pci":
                address = kernel_address(branch.attributes.get("busid", ""))
                self._pcis.setdefault(address, branch)
                if not any(child.tag == "pci" for child in branch.children):
                    self._innermost.append(address)
        self._matched: list[str] = []
        self._added: list[str] = []

    def run(self, ranks: Mapping[int, int]) -> Merged:
        for gpu in self._snapshot.gpus:
            if gpu.pci_address and gpu.outcome is Outcome.OK:
                found = gpu_element(gpu, ranks.get(gpu.index, gpu.index), self._snapshot)
                own = self._place_end(gpu.pci_address).child("gpu")
                own.fill(found.attributes)
                if not own.children:
                    own.children = [_thaw(child) for child in found.children]
        for address, net in net_elements(self._snapshot):
            if self._find_net(net.attributes["name"]) is None:
                card = self._place_end(address) if address else self._first_cpu()
                card.child("nic").children.append(_thaw(net))
        for numaid, branch in self._cpus.items():
            self._fill_cpu(branch, numaid)
        for address, branch in self._pcis.items():
            known = self._devices.get(address)
            branch.fill(self._facts(known) if known is not None else _NO_LINK)
        return Merged(
            root=_freeze(self._root),
            matched=tuple(dict.fromkeys(self._matched)),
            added=tuple(dict.fromkeys(self._added)),
            absent=tuple(address for address in self._innermost if address not in self._devices),
        )

    def _place_end(self, address: str) -> _Branch:
        """Return the branch of a GPU or card, and note whether the template had it."""
        (self._matched if address in self._pcis and address not in self._added else self._added).append(address)
        chain = self._missing_above(address)
        top = self._upstream(chain[-1]) if chain else ""
        branch = self._pcis.get(address if not chain else top) or self._cpu(self._numa(chain[-1]))
        for missing in reversed(chain):
            branch.children.append(_Branch("pci", {"busid": missing}))
            branch = self._pcis[missing] = branch.children[-1]
        return branch

    def _missing_above(self, address: str) -> list[str]:
        """Return an address and those of the switches above it, up to the first that is there already."""
        chain: list[str] = []
        while address and address not in self._pcis and address not in chain and len(chain) < _MAX_CHAIN:
            chain.append(address)
            address = self._upstream(address)
        return chain

    def _upstream(self, address: str) -> str:
        """Return the address of the switch above a device, ``""`` directly under a CPU.

        NCCL counts a switch once, by its upstream port, so each step goes over the port above and stops at the
        next; a root port belongs to the CPU.
        """
        device = self._devices.get(address)
        port = self._devices.get(device.parent) if device is not None else None
        above = self._devices.get(port.parent) if port is not None else None
        return above.address if above is not None else ""

    def _numa(self, address: str) -> int | None:
        device = self._devices.get(address)
        return device.numa_node if device is not None else None

    def _facts(self, device: PciDevice) -> dict[str, str]:
        return pci_attributes(device, self._devices.get(device.parent))

    def _cpu(self, numa: int | None) -> _Branch:
        """Return a NUMA node's branch. Like NCCL, take node 0 where the kernel does not know."""
        key = str(numa or 0)
        if key not in self._cpus:
            self._cpus[key] = _Branch("cpu", {"numaid": key})
            self._root.children.append(self._cpus[key])
        return self._cpus[key]

    def _first_cpu(self) -> _Branch:
        return next(iter(self._cpus.values()), None) or self._cpu(None)

    def _fill_cpu(self, branch: _Branch, numaid: str) -> None:
        snapshot = self._snapshot
        numa = next((node for node in snapshot.numa if str(node.index) == numaid), None)
        count = max((cpu + 1 for node in snapshot.numa for cpu in node.cpus), default=0)
        branch.fill(cpu_attributes(snapshot.node.cpu, numa, count))

    def _find_net(self, name: str) -> _Branch | None:
        return next((one for one in _walk(self._root) if one.tag == "net" and one.attributes.get("name") == name), None)


def _walk(root: _Branch) -> list[_Branch]:
    found = [root]
    for branch in found:
        found.extend(branch.children)
    return found
