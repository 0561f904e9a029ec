"""Places a virtual machine's devices as a topology file says, for the tree that its kernel shows hides the host's.

Structure is the file's: switches, and the NUMA node above them. Facts stay the machine's; what it does not tell of a
link is taken from the file and marked assumed. A file that names none of the machine's devices changes nothing.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from fabricd.errors import InputError, ParseError
from fabricd.graph.flattened import flattened
from fabricd.graph.graph import Conflict
from fabricd.graph.nccl_xml import Element, parse
from fabricd.graph.nccl_xml_host import card_address, kernel_address
from fabricd.graph.nccl_xml_read import read_document
from fabricd.graph.nccl_xml_types import NcclPci, NcclTopology
from fabricd.model.device import Gpu, Hca, NetInterface, PciDevice, PcieLink
from fabricd.model.observation import Evidence
from fabricd.model.snapshot import Snapshot
from fabricd.model.topology_file import MAX_CHARACTERS, TopologyFile
from fabricd.units import format_names, parse_transfer_rate

_HINT = (
    "a file in NCCL's XML that tells can be given: by --topology, or in topology_files of the daemon's configuration"
)
_SHOWN = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """A machine whose devices hang together as well as is known.

    Attributes:
        snapshot: with the devices where they are; the same object where no file applies.
        template: the file's outermost element where it applies.
        notes: what is odd with this machine, and what was done about it.
        conflicts: where file and kernel do not agree; ``where`` is a PCI address.
    """

    snapshot: Snapshot
    template: Element | None = None
    notes: tuple[str, ...] = ()
    conflicts: tuple[Conflict, ...] = ()


def placement(snapshot: Snapshot) -> Placed:
    """Return a machine as its topology file says; as it is where it has none, or hides nothing and none was given."""
    facts = flattened(snapshot)
    why = f"this virtual machine hides how its devices hang together: {facts}" if facts else ""
    file = snapshot.topology_file
    if file is None or not (why or file.given):
        return Placed(snapshot=snapshot, notes=(f"{why}; {_HINT}",) if why else ())
    try:
        if len(file.text) > MAX_CHARACTERS:
            raise InputError(f"{file.path}: more than {MAX_CHARACTERS} characters")
        document = parse(file.text, source=file.path)
        topology = read_document(document, source=file.path)
    except (ParseError, InputError) as error:
        return Placed(snapshot=snapshot, notes=_notes(why, f"the topology file is not used: {error.message}"))
    placer = _Placer(snapshot, topology, file)
    notes = _notes(why, placer.said())
    if not placer.placed:
        return Placed(snapshot=snapshot, notes=notes)
    devices = tuple(placer.devices.values())
    return Placed(
        snapshot=replace(snapshot, pci=devices),
        template=document.root,
        notes=notes,
        conflicts=tuple(placer.conflicts),
    )


class _Placer:
    """Finds every GPU, adapter and interface in the file, and builds what the file has above it."""

    def __init__(self, snapshot: Snapshot, topology: NcclTopology, file: TopologyFile) -> None:
        self.devices = {device.address: device for device in snapshot.pci}
        self.conflicts: list[Conflict] = []
        self.placed: list[str] = []
        self._missing: list[str] = []
        self._path = file.path
        self._numa = {numa.index for numa in snapshot.numa}
        self._gpus = {gpu.pci_address: gpu for gpu in snapshot.gpus}
        self._places = {kernel_address(chain[-1].busid): (numa, chain) for numa, chain in _chains(topology)}
        ends: tuple[Gpu | Hca | NetInterface, ...] = (*snapshot.gpus, *snapshot.hcas, *snapshot.interfaces)
        for address in sorted({end.pci_address for end in ends} & self.devices.keys()):
            self._place(address)

    def said(self) -> str:
        """Return what the file did, in a sentence."""
        absent = [
            address
            for address, (_, chain) in self._places.items()
            if not chain[-1].children and address not in self.devices
        ]
        if not self.placed:
            return f"{self._path} names none of its devices, so it changes nothing; it names {_some(absent)}"
        lacks = f"; not {_some(self._missing)}" if self._missing else ""
        more = f"; it names {_some(absent)} too, which this machine lacks" if absent else ""
        return f"{self._path} says where {len(self.placed)} of its devices are{lacks}{more}"

    def _place(self, address: str) -> None:
        # NCCL knows a card by the first of its functions.
        found = self._places.get(address) or self._places.get(card_address(address))
        if found is None:
            self._missing.append(address)
            return
        numa, chain = found
        self.placed.append(address)
        device = self.devices[address]
        if device.numa_node not in (None, numa) and numa in self._numa:
            problem = f"NUMA node {device.numa_node} by the kernel, {numa} by {self._path}"
            self.conflicts.append(Conflict(where=address, problem=problem, taken="the file's"))
        # The file does not say which devices share a host bridge, so each that it has below the CPU has its own.
        place = _Place(f"pci-above-{kernel_address(chain[0].busid)}", numa)
        upper = ""
        for switch in chain[:-1]:
            upper = self._add_switch(switch, self._port_below(upper, switch.busid, place), place)
        link = device.link
        if link == PcieLink() and (address not in self._gpus or self._gpus[address].pcie == PcieLink()):
            link = _link_of(chain[-1])
        port = self._port_below(upper, address, place) if upper else ""
        self.devices[address] = self._at(place, port, replace(device, link=link))

    def _port_below(self, upper: str, lower: str, place: "_Place") -> str:
        """Add the port that something hangs on: of a switch, or of the root where there is none above."""
        name = f"port above {kernel_address(lower)}"
        self.devices[name] = self._at(place, upper, PciDevice(address=name))
        return name

    def _add_switch(self, switch: NcclPci, port: str, place: "_Place") -> str:
        address = kernel_address(switch.busid)
        known = self.devices.get(address) or PciDevice(
            address=address,
            vendor_id=switch.vendor,
            device_id=switch.device,
            subsystem_vendor_id=switch.subsystem_vendor,
            subsystem_device_id=switch.subsystem_device,
        )
        link = _link_of(switch) if known.link == PcieLink() else known.link
        self.devices[address] = self._at(place, port, replace(known, link=link))
        return address

    def _at(self, place: "_Place", parent: str, device: PciDevice) -> PciDevice:
        known = place.numa if place.numa in self._numa else device.numa_node
        return replace(device, parent=parent, root=place.root, numa_node=known)


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a tree of the file begins."""

    root: str
    numa: int


def _chains(topology: NcclTopology) -> Iterator[tuple[int, tuple[NcclPci, ...]]]:
    """Yield each device of a file: its NUMA node, and what leads to it from there, itself last.

    Of an address that stands twice the first counts, as it does to NCCL.
    """
    seen: set[str] = set()
    waiting: list[tuple[int, tuple[NcclPci, ...]]] = [
        (cpu.numaid, (child,))
        for cpu in reversed(topology.cpus)
        for child in reversed(cpu.children)
        if isinstance(child, NcclPci)
    ]
    while waiting:
        numa, chain = waiting.pop()
        waiting += [(numa, (*chain, child)) for child in reversed(chain[-1].children)]
        if kernel_address(chain[-1].busid) not in seen:
            seen.add(kernel_address(chain[-1].busid))
            yield numa, chain


def _link_of(device: NcclPci) -> PcieLink:
    """Return a link upwards as the file has it; empty where it does not say, or not in words that are known."""
    try:
        speed = parse_transfer_rate(device.link_speed or "")
    except ParseError:
        return PcieLink()
    width = device.link_width or None
    return PcieLink(speed_gts=speed, width=width, max_speed_gts=speed, max_width=width, evidence=Evidence.ASSUMED)


def _notes(*said: str) -> tuple[str, ...]:
    return tuple(filter(None, said))


def _some(addresses: list[str]) -> str:
    return format_names(addresses, _SHOWN) or "none"
