"""What one node says of its ports: all that networks are found from. Good while its snapshot is."""

from collections.abc import Mapping, Sequence
from functools import cached_property, lru_cache

from fabricd.graph.networks_efa import efa_ports, stands_in
from fabricd.graph.networks_fabric import FabricPort, Leaf, fabric_ports, leaves_of, roce_ports, roce_zone
from fabricd.graph.networks_gpudirect import gpudirect_cards
from fabricd.graph.networks_ip import IpPort, ip_ports
from fabricd.graph.networks_nvlink import DomainPort, domain_ports
from fabricd.graph.networks_rails import RailPort, port_interfaces, rail_ports
from fabricd.graph.networks_roles import Surroundings, surroundings
from fabricd.model.network import NetworkPort
from fabricd.model.path import Rejected
from fabricd.model.snapshot import Snapshot


class NodePorts:
    """The ports of one node, by what they may be on. Each part is worked out once, when it is asked for.

    Maps hold thousands of these: what is the same on many nodes is one object for all of them.

    Args:
        node_id: of the node.
        snapshot: of the node.
    """

    def __init__(self, node_id: str, snapshot: Snapshot) -> None:
        self.node_id = node_id
        self.snapshot = snapshot

    @cached_property
    def ip(self) -> tuple[list[IpPort], list[Rejected]]:
        """Addresses, and interfaces that are on no network."""
        return ip_ports(self.node_id, self.snapshot)

    @cached_property
    def infiniband(self) -> tuple[list[FabricPort], list[Rejected]]:
        """InfiniBand ports, and those that are on no fabric."""
        return fabric_ports(self.node_id, self.snapshot, self.leaves)

    @cached_property
    def roce(self) -> Mapping[str, Sequence[NetworkPort]]:
        """RoCE ports by the interfaces on them."""
        return roce_ports(self.node_id, self.snapshot, self.interfaces)

    @cached_property
    def roce_zone(self) -> str:
        """The zone that its RDMA network does not leave, "" where nothing is known of that."""
        return roce_zone(self.snapshot)

    @cached_property
    def efa(self) -> list[NetworkPort]:
        """EFA ports."""
        return list(efa_ports(self.node_id, self.snapshot))

    @cached_property
    def stands_in(self) -> tuple[str, str]:
        """Virtual network and zone, "" for what nobody tells."""
        return stands_in(self.snapshot)

    @cached_property
    def nvlink(self) -> list[DomainPort]:
        """GPUs in NVLink domains."""
        return list(domain_ports(self.node_id, self.snapshot))

    @cached_property
    def gpudirect(self) -> list[str]:
        """Interfaces of cards for GPUDirect-TCP."""
        return gpudirect_cards(self.snapshot)

    @cached_property
    def surroundings(self) -> Surroundings:
        """What tells which ports sit beside GPUs."""
        return surroundings(self.snapshot, self.interfaces)

    @cached_property
    def rails(self) -> tuple[RailPort, ...]:
        """The ports for jobs' data."""
        return _as_one(rail_ports(self.snapshot))

    @cached_property
    def places(self) -> Mapping[str, int]:
        """The rail of each port for jobs' data, by the port's name and those of its interfaces."""
        return _places(self.rails)

    @cached_property
    def interfaces(self) -> Mapping[str, Sequence[str]]:
        """Network interfaces on each RDMA port."""
        return port_interfaces(self.snapshot)

    @cached_property
    def leaves(self) -> Mapping[str, Leaf]:
        """The switch that each InfiniBand port goes into, where the node has walked over the fabric."""
        return leaves_of(self.snapshot)

    def read(self) -> None:
        """Work out all that networks are found from, but for their rails."""
        _ = self.ip, self.infiniband, self.roce, self.efa, self.stands_in, self.nvlink, self.gpudirect
        _ = self.surroundings, self.roce_zone


@lru_cache(maxsize=1024)
def _as_one(rails: tuple[RailPort, ...]) -> tuple[RailPort, ...]:
    return rails


@lru_cache(maxsize=1024)
def _places(rails: tuple[RailPort, ...]) -> Mapping[str, int]:
    return {name: port.rail for port in rails for name in (*port.interfaces, port.name)}


class KnownPorts:
    """The ports of many nodes, of which few change from one question to the next: those are worked out anew.

    Threads may share it; what two of them ask for at once may be worked out twice.
    """

    def __init__(self) -> None:
        self._known: dict[str, NodePorts] = {}

    def of_node(self, node_id: str, snapshot: Snapshot) -> NodePorts:
        """Return the ports of one node."""
        known = self._known.get(node_id)
        if known is None or known.snapshot is not snapshot:
            known = self._known[node_id] = NodePorts(node_id, snapshot)
        return known

    def has(self, node_id: str, snapshot: Snapshot) -> bool:
        """Tell whether somebody has asked for the ports of a node that is still the same."""
        known = self._known.get(node_id)
        return known is not None and known.snapshot is snapshot

    def keep_to(self, nodes: Mapping[str, Snapshot]) -> None:
        """Forget the ports of nodes that are not among some, by node_id."""
        for node_id in self._known.keys() - nodes.keys():
            self._known.pop(node_id, None)

    def of(self, nodes: Mapping[str, Snapshot]) -> Mapping[str, NodePorts]:
        """Return the ports of nodes, by node_id; what is known of others is forgotten."""
        self.keep_to(nodes)
        return {node_id: self.of_node(node_id, snapshot) for node_id, snapshot in nodes.items()}
