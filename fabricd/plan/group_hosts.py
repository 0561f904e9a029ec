"""Which ranks of a group share memory, and which share a network: from what each of them sees.

Neither a host's name nor its machine-id decides: containers on one host need not share memory, and golden images
share a machine-id. Ranks share memory only where boot, ``/dev/shm``, IPC and PID namespace and user are the same;
what a rank could not see counts as its own.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from ipaddress import ip_interface

from fabricd.localview import LocalView, ViewInterface
from fabricd.model.device import Hca, InterfaceKind, IpAddress, NetInterface
from fabricd.model.identity import NodeIdentity
from fabricd.model.network import NetworkRule
from fabricd.model.snapshot import Snapshot
from fabricd.units import format_ranges


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A network namespace that some ranks are in: they have the same interfaces, under the same names."""

    name: str  #: unique within the group: the node's name, or the host's
    ranks: tuple[int, ...]
    view: LocalView  #: of its first rank
    node_id: str = ""  #: of the daemon that knows this host; "" where none does
    #: What the ranks see, with what the daemon knows of it, in the names of the ranks.
    facts: Snapshot

    def __str__(self) -> str:
        return f"rank {format_ranges(self.ranks)} on {self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Hosts:
    """Where the ranks of a group are."""

    places: tuple[Place, ...]
    place_of: Mapping[int, int]  #: rank -> index into ``places``
    host_of: tuple[int, ...]  #: rank -> index of the host; ranks of one host share memory

    @property
    def count(self) -> int:
        """How many groups of ranks share memory."""
        return max(self.host_of) + 1

    @property
    def several_share(self) -> bool:
        """Whether any two ranks share memory."""
        return self.count < len(self.host_of)


def find_hosts(views: Mapping[int, LocalView], nodes: Mapping[str, Snapshot]) -> Hosts:
    """Return where the ranks are.

    Args:
        views: of all ranks 0 to n - 1.
        nodes: snapshots by node_id, of the daemons that are known.
    """
    by_place: dict[tuple[str, ...], list[int]] = {}
    by_memory: dict[tuple[str, ...], int] = {}
    host_of = []
    for rank in sorted(views):
        view = views[rank]
        by_place.setdefault(_key(rank, view.boot_id, view.net_namespace), []).append(rank)
        shared = (view.boot_id, view.shm_device, view.ipc_namespace, view.pid_namespace)
        host_of.append(by_memory.setdefault((*_key(rank, *shared), str(view.uid)), len(by_memory)))
    places: list[Place] = []
    for ranks in by_place.values():
        places.append(_place(tuple(ranks), views[ranks[0]], nodes, {place.name for place in places}))
    place_of = {rank: index for index, place in enumerate(places) for rank in place.ranks}
    return Hosts(places=tuple(places), place_of=place_of, host_of=tuple(host_of))


def _key(rank: int, *facts: str) -> tuple[str, ...]:
    return facts if all(facts) else (f"rank {rank}",)


def process_mapping(host_of: Sequence[int]) -> str:
    """Return PMI's form of ``host_of``: ``"(vector,(first host, hosts, ranks on each),...)"``.

    Each triple stands for so many hosts, counted up from the first, with so many consecutive ranks on each.

    Examples:
        ``[0, 0, 1, 1]`` is ``"(vector,(0,2,2))"``, ``[0, 1, 0]`` is ``"(vector,(0,2,1),(0,1,1))"``.
    """
    runs: list[list[int]] = []
    for host in host_of:
        if runs and runs[-1][0] == host:
            runs[-1][1] += 1
        else:
            runs.append([host, 1])
    triples: list[list[int]] = []
    for host, ranks in runs:
        if triples and triples[-1][0] + triples[-1][1] == host and triples[-1][2] == ranks:
            triples[-1][1] += 1
        else:
            triples.append([host, 1, ranks])
    return "(vector," + ",".join(f"({first},{hosts},{ranks})" for first, hosts, ranks in triples) + ")"


def _place(ranks: tuple[int, ...], view: LocalView, nodes: Mapping[str, Snapshot], taken: set[str]) -> Place:
    node_id = node_of(view, nodes)
    known = nodes.get(node_id)
    base = known.node.name if known else view.hostname or f"rank {ranks[0]}"
    name = next(text for text in (base, f"{base} (rank {ranks[0]})") if text not in taken)
    facts = _facts(name, view, known)
    return Place(name=name, ranks=ranks, view=view, node_id=node_id, facts=facts)


def node_of(view: LocalView, nodes: Mapping[str, Snapshot]) -> str:
    """Return the node that a rank is on: as its host's daemon told it, else the one that has its MACs and addresses.

    Args:
        view: what the rank sees.
        nodes: by node_id.

    Returns:
        Its node_id, ``""`` for a node that is none of these.
    """
    if view.node_id in nodes:
        return view.node_id
    mine = {(one.mac, address) for one in view.interfaces for address in one.addresses if not one.loopback and one.mac}
    for node_id, snapshot in nodes.items():
        theirs = {
            (one.mac, f"{address.address}/{address.prefix_length}")
            for one in snapshot.interfaces
            for address in one.addresses
        }
        if mine & theirs:
            return node_id
    return ""


def _facts(name: str, view: LocalView, known: Snapshot | None) -> Snapshot:
    """Return the place as if it were a node: what the ranks see, with what their host's daemon knows of it."""
    identity = NodeIdentity(node_id=name, name=name, hostname=view.hostname, boot_id=view.boot_id)
    interfaces = tuple(_interface(number, one, known) for number, one in enumerate(view.interfaces))
    if known is None:
        return Snapshot(node=identity, interfaces=interfaces)
    hcas = tuple(_hcas(view, known))
    same_namespace = any(
        one.kind is not InterfaceKind.OTHER for one in interfaces if one.kind is not InterfaceKind.LOOPBACK
    )
    guids = {(hca.node_guid, hca.name) for hca in known.hcas}
    same_devices = all((hca.node_guid, hca.name) in guids for hca in hcas)
    return Snapshot(
        node=identity,
        numa=known.numa,
        interfaces=interfaces,
        # By the names of the host's interfaces: in another namespace the same name may be another interface.
        routes=known.routes if same_namespace else (),
        routing_rules=known.routing_rules if same_namespace else (),
        lldp=known.lldp if same_namespace else (),
        hcas=hcas,
        ib_fabrics=known.ib_fabrics if same_devices else (),
        site_networks=known.site_networks if same_namespace else _elsewhere(known.site_networks, view, same_devices),
    )


def _elsewhere(rules: Sequence[NetworkRule], view: LocalView, same_devices: bool) -> tuple[NetworkRule, ...]:
    """Return what a site's rules say in another namespace: those by name only where the name is an RDMA device's."""
    names = [one.name for one in view.interfaces]
    return tuple(
        rule
        for rule in rules
        if not rule.interface or (same_devices and not any(fnmatchcase(name, rule.interface) for name in names))
    )


def as_ranks_see(known: Snapshot, facts: Snapshot) -> Snapshot:
    """Return a node with the network that its ranks see; GPUs and PCIe are the host's.

    Args:
        known: the node, as its daemon knows it.
        facts: of the ranks' place on it.
    """
    return replace(
        known,
        interfaces=facts.interfaces,
        routes=facts.routes,
        routing_rules=facts.routing_rules,
        lldp=facts.lldp,
        hcas=facts.hcas,
        ib_fabrics=facts.ib_fabrics,
        site_networks=facts.site_networks,
    )


def _interface(number: int, seen: ViewInterface, known: Snapshot | None) -> NetInterface:
    addresses = tuple(found for text in seen.addresses if (found := _address(text)))
    state = "up" if seen.up else "down"
    for one in known.interfaces if known else ():
        # Name and MAC alone do not do: an ipvlan in a container may have both of its host's card.
        if (one.name, one.mac) == (seen.name, seen.mac) and _overlap(one.addresses, addresses):
            return replace(one, addresses=addresses, admin_up=one.admin_up and seen.up)
    kind = InterfaceKind.LOOPBACK if seen.loopback else InterfaceKind.OTHER
    return NetInterface(
        name=seen.name,
        index=number,
        kind=kind,
        mac=seen.mac,
        admin_up=seen.up,
        oper_state=state,
        addresses=addresses,
    )


def _overlap(a: Sequence[IpAddress], b: Sequence[IpAddress]) -> bool:
    return not (a or b) or bool({one.address for one in a} & {one.address for one in b})


def _address(text: str) -> IpAddress | None:
    try:
        parsed = ip_interface(text)
    except ValueError:
        return None
    scope = "link" if parsed.is_link_local else "host" if parsed.is_loopback else "global"
    return IpAddress(address=str(parsed.ip), prefix_length=parsed.network.prefixlen, family=parsed.version, scope=scope)


def _hcas(view: LocalView, known: Snapshot) -> list[Hca]:
    """Return the RDMA devices that the ranks may open, under the ranks' names for them."""
    usable = {one.node_guid: one for one in view.hcas if one.usable and one.node_guid}
    return [
        replace(
            hca,
            name=usable[hca.node_guid].name,
            ports=tuple(port for port in hca.ports if port.port in usable[hca.node_guid].ports),
        )
        for hca in known.hcas
        if hca.node_guid in usable
    ]


def first_address(interface: NetInterface, family: int) -> str:
    """Return an interface's first address of a family, ``""`` for none."""
    return next((one.address for one in interface.addresses if one.family == family), "")
