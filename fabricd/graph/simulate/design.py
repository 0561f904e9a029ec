"""What a simulated cluster is to be: which machine, how many, how wired, what is broken."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count

from fabricd.errors import InputError
from fabricd.model.cluster_file import MAX_NODES
from fabricd.model.device import Hca, HcaPort, InterfaceKind, NetInterface
from fabricd.model.snapshot import Snapshot

#: Devices of each kind that a template may have: their numbers go into the addresses that are made up.
MAX_DEVICES = 256
#: Ethernet networks: each is a /14 of 10.0.0.0/8.
MAX_NETWORKS = 64
#: Ports of a node on one rail: with the most nodes their addresses fill a /14.
MAX_RAIL_WIDTH = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Design:
    """A cluster of equal machines."""

    template: Snapshot
    name: str  #: beginning of every node's name
    nodes: int
    leaf: int = 32  #: nodes whose ports of one rail go into one leaf switch
    rails: int = 0  #: 0: one for each GPU, or for each of the fastest ports where they are fewer
    spines: int = 4  #: switches that join the leaves of a fabric
    domain: int = 18  #: nodes of one NVLink domain, where the template is in one that spans nodes
    seed: int = 0
    degraded: int = 0  #: ports that run at half their rate
    missing: int = 0  #: ports whose adapter is not there
    down: int = 0  #: ports without a link


@dataclass(frozen=True, slots=True)
class Port:
    """A port of the template that leads to a switch."""

    name: str  #: "mlx5_0:1", or the interface
    speed: int  #: bytes/s each direction; 0 unknown, as of some virtual cards
    infiniband: bool
    hca: int | None  #: place in ``template.hcas``
    hca_port: int
    interface: int | None  #: place in ``template.interfaces``
    rail: int | None = None  #: None: of the front network, beside the rails
    lane: int = 0  #: which of the node's ports on its rail


@dataclass(frozen=True, slots=True)
class Ports:
    """The ports of the template."""

    rails: tuple[Port, ...]  #: the fastest, all of one kind
    front: tuple[Port, ...]  #: the others
    rail_count: int
    width: int  #: of a node's ports on one rail, the most


def ports_of(design: Design) -> Ports:
    """Return the template's ports, each with its rail.

    Raises:
        InputError: a design that is not possible; says why, and what is.
    """
    _check(design)
    found = list(_found(design.template))
    if not found:
        raise InputError("the template has no port that is up", hint="a cluster needs a network")
    best = max(found, key=lambda port: (port.speed, port.infiniband, port.hca is not None))
    fast = [port for port in found if _like(port, best)]
    rails = design.rails or min(len(fast), len(design.template.gpus) or len(fast))
    if rails > len(fast):
        raise InputError(f"{rails} rails need {rails} ports, the template has {len(fast)} of its fastest kind")
    width = -(-len(fast) // rails)
    front = tuple(port for port in found if not _like(port, best))
    if width > MAX_RAIL_WIDTH or rails + len(front) > MAX_NETWORKS:
        raise InputError(
            f"{len(fast)} ports on {rails} rails and {len(front)} others",
            hint=f"at most {MAX_RAIL_WIDTH} ports of a node on one rail, and {MAX_NETWORKS} networks in all",
        )
    lanes: dict[int, count[int]] = {}
    placed = []
    for number, port in enumerate(fast):
        rail = number * rails // len(fast)
        lane = next(lanes.setdefault(rail, count()))
        placed.append(Port(port.name, port.speed, port.infiniband, port.hca, port.hca_port, port.interface, rail, lane))
    return Ports(tuple(placed), front, rails, width)


def _check(design: Design) -> None:
    template = design.template
    for what, value, least, most in (
        ("nodes", design.nodes, 1, MAX_NODES),
        ("nodes under a leaf", design.leaf, 1, 1024),
        ("rails", design.rails, 0, MAX_NETWORKS),
        ("spines", design.spines, 0, 1024),
        ("nodes in an NVLink domain", design.domain, 1, MAX_NODES),
        ("broken ports", min(design.degraded, design.missing, design.down), 0, MAX_NODES * MAX_DEVICES),
    ):
        if not least <= value <= most:
            raise InputError(f"{value} {what}", hint=f"between {least} and {most}")
    if max(len(template.gpus), len(template.hcas), len(template.interfaces)) > MAX_DEVICES:
        raise InputError(f"a template of more than {MAX_DEVICES} GPUs, HCAs or interfaces")


def _found(template: Snapshot) -> Iterator[Port]:
    """Yield every port that is up: of RDMA devices, then of the other cards.

    A virtual function is a port where it is all that a virtual machine has of a card.
    """
    taken: set[int] = set()
    virtual = template.node.virtualization not in ("", "none")
    for place, hca in enumerate(template.hcas):
        for name, port in hca.named_ports():
            interface = _interface_of(template, hca, port, virtual=virtual)
            if interface is not None:
                taken.add(interface)
            if port.state == "active" and (virtual or not hca.virtual_function):
                infiniband = port.link_layer == "infiniband"
                yield Port(name, port.rate_bytes_per_second or 0, infiniband, place, port.port, interface)
    for place, nic in enumerate(template.interfaces):
        if place not in taken and _is_up(nic) and _is_card(nic, virtual=virtual):
            yield Port(nic.name, nic.speed_bytes_per_second or 0, False, None, 0, place)


def _interface_of(template: Snapshot, hca: Hca, port: HcaPort, *, virtual: bool) -> int | None:
    names = {gid.interface for gid in port.gids if gid.interface}
    for place, nic in enumerate(template.interfaces):
        own = nic.name in names if names else nic.rdma_device == hca.name
        if own and _is_card(nic, virtual=virtual):
            return place
    return None


def _is_card(nic: NetInterface, *, virtual: bool) -> bool:
    function = nic.kind is InterfaceKind.VIRTUAL_FUNCTION and virtual
    return bool(nic.pci_address) and (function or nic.kind is InterfaceKind.PHYSICAL)


def _is_up(nic: NetInterface) -> bool:
    return nic.admin_up and nic.carrier is not False and nic.oper_state == "up"


def _like(port: Port, best: Port) -> bool:
    return (port.speed, port.infiniband, port.hca is None) == (best.speed, best.infiniband, best.hca is None)
