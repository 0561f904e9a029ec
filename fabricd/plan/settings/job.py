"""The nodes of a job, and the networks that join them: what every rule about settings starts from."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from fabricd.errors import InputError, NoNetworkError
from fabricd.graph.networks import find_networks
from fabricd.graph.networks_ip import unusable
from fabricd.graph.networks_routed_group import routed_roce
from fabricd.graph.nominal import TCP_BANDWIDTH
from fabricd.localview import LocalView
from fabricd.model.device import Hca, HcaPort, NetInterface
from fabricd.model.network import Network, NetworkPort, role_rank
from fabricd.model.path import Policy, Transport
from fabricd.model.snapshot import Snapshot
from fabricd.plan.group_hosts import as_ranks_see, find_hosts

#: By RDMA or another way past the kernel; the order is the order of preference.
RDMA = (
    Transport.INFINIBAND,
    Transport.ROCE,
    Transport.EFA,
    Transport.SLINGSHOT,
    Transport.GPUDIRECT_TCP,
)
_BY_IP = frozenset({Transport.ETHERNET, Transport.SLINGSHOT})
#: A port this many times slower than the job's fastest is not one of those that carry its data.
_MUCH_SLOWER = 2
#: Classes that differ by less than this count as equal: figures are nominal.
_ABOUT_EQUAL = 1.25
#: Of a port whose rate is not known; what NCCL, too, takes it for.
_UNKNOWN_SPEED = 1.25e9
#: Prefixes from here on hold two hosts at most: a port and its switch.
_POINT_TO_POINT = {4: 30, 6: 126}
#: What is meant for jobs' data, before what is there for something else.
_FOR_DATA = role_rank("data")


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What a job runs on.

    Attributes:
        nodes: by name, as its ranks see them.
        data: networks that carry its data: one, or one for each rail. None on one node.
        control: network by which its ranks find each other, by IP; None on one node, or where only routes join them.
        networks: all that were found, also those that join some nodes only.
        left_out: networks that could have carried data and do not, with the reason.
        routed: whether its data go over RoCE networks that routers join.
    """

    nodes: Mapping[str, Snapshot]
    data: tuple[Network, ...] = ()
    control: Network | None = None
    networks: tuple[Network, ...] = ()
    left_out: tuple[tuple[str, str], ...] = ()
    routed: bool = False

    @property
    def transport(self) -> Transport:
        """What carries the data between nodes; SELF on one node."""
        return self.data[0].transport if self.data else Transport.SELF

    def ports(self, node: str) -> list[NetworkPort]:
        """Return a node's ports for data, in order of rail."""
        return [port for network in self.data for port in network.ports if port.node == node]

    def rdma_ports(self, node: str) -> Iterator[tuple[Hca, HcaPort, NetworkPort]]:
        """Yield a node's RDMA ports for data, with their devices."""
        for port in self.ports(node):
            for name, hca, own in self.nodes[node].hca_ports():
                if name == port.interface:
                    yield hca, own, port

    def control_port(self, node: str) -> NetworkPort | None:
        """Return a node's port on the network by which ranks find each other."""
        ports = self.control.ports if self.control else ()
        return next((port for port in ports if port.node == node), None)


def job_of(
    nodes: Mapping[str, Snapshot],
    *,
    policy: Policy = Policy.FASTEST,
    unreachable: Mapping[str, str] = MappingProxyType({}),
) -> Job:
    """Return a job on all of some nodes.

    Args:
        nodes: by name; as the ranks see them, where that is known.
        policy: fastest: by what the ports of a class carry together, and by class where that is about equal; priority:
            by class alone.
        unreachable: networks that do not join the nodes whatever the facts say, by name, with why: as measured.

    Raises:
        InputError: no node.
        NoNetworkError: several nodes that no network joins.
    """
    if not nodes:
        raise InputError("a job without nodes", hint="name nodes that the map knows")
    if len(nodes) == 1:
        return Job(nodes=nodes)
    networks = find_networks(nodes).networks
    left_out: list[tuple[str, str]] = []
    left_out += [(network.name, unreachable[network.name]) for network in networks if network.name in unreachable]
    networks = tuple(network for network in networks if network.name not in unreachable)
    joining = [network for network in networks if _joins(network, nodes, left_out)]
    routed: list[Network] = []
    if not any(network.transport is Transport.ROCE for network in joining):
        routed = routed_roce(networks, nodes) or _behind_routers(networks, nodes)
        left_out += [(network.name, unreachable[network.name]) for network in routed if network.name in unreachable]
        joining += [network for network in routed if network.name not in unreachable]
    data = _data(joining, left_out, policy)
    if not data:
        told = "; ".join(f"{name}: {why}" for name, why in left_out[:8])
        raise NoNetworkError(f"no network joins the {len(nodes)} nodes of the job", hint=told or "none has any network")
    return Job(
        nodes=nodes,
        data=data,
        control=_control(joining, nodes, data),
        networks=networks,
        left_out=tuple(left_out),
        routed=any(network in routed for network in data),
    )


def _joins(network: Network, nodes: Mapping[str, Snapshot], left_out: list[tuple[str, str]]) -> bool:
    here = {port.node for port in network.ports}
    without = [name for name in nodes if name not in here]
    if without and len(here) > 1 and network.transport is not Transport.NVLINK:
        left_out.append(
            (network.name, f"{without[0]} is not on it" if len(without) == 1 else f"{len(without)} nodes are not on it")
        )
    return not without


def _behind_routers(networks: Sequence[Network], nodes: Mapping[str, Snapshot]) -> list[Network]:
    """Return the RoCE ports of all nodes as one network, where each is in a subnet of its own up to a router.

    For nodes whose routes are not known, or go by rules that are not read: the facts are subnets that hold no other
    host, or a route by a gateway. That it leads to the others is assumed.
    """
    ports = [
        port
        for network in networks
        if network.transport is Transport.ROCE and role_rank(network.role) <= _FOR_DATA
        for port in network.ports
        if not port.virtual and _leads_to_a_router(nodes[port.node], port.address)
    ]
    if {port.node for port in ports} != set(nodes):
        return []
    reason = "each node's ports are in subnets of their own, up to a router; that it leads to the others is assumed"
    return [Network(name="roce:routed", transport=Transport.ROCE, ports=tuple(ports), reason=reason)]


def _leads_to_a_router(snapshot: Snapshot, address: str) -> bool:
    for interface in snapshot.interfaces:
        for own in interface.addresses:
            if own.address == address:
                alone = own.prefix_length >= _POINT_TO_POINT[own.family]
                return alone or any(route.gateway and route.interface == interface.name for route in snapshot.routes)
    return False


def _data(joining: Sequence[Network], left_out: list[tuple[str, str]], policy: Policy) -> tuple[Network, ...]:
    """Return the networks of the best class that are meant for data; of those that are not, the best one."""
    fit = [network for network in joining if network.transport in RDMA or network.transport is Transport.ETHERNET]
    hard = [network for network in fit if not any(port.virtual for port in network.ports)]
    for wanted in (
        [network for network in hard if role_rank(network.role) <= _FOR_DATA],
        hard,
        fit,
    ):
        best = _best_class(wanted, policy)
        if best:
            break
    else:
        return ()
    fastest = max(_speed(network) for network in best)
    slow = [network for network in best if _speed(network) * _MUCH_SLOWER < fastest]
    left_out += [(network.name, f"more than {_MUCH_SLOWER} times slower than the fastest") for network in slow]
    left_out += [
        (network.name, f"{network.transport}, and {best[0].transport} joins the nodes")
        for network in joining
        if network not in best and network.transport is not Transport.NVLINK
    ]
    chosen = [network for network in best if network not in slow]
    return tuple(chosen if best[0].transport in RDMA else sorted(chosen, key=_order)[:1])


def _best_class(networks: Sequence[Network], policy: Policy) -> list[Network]:
    """Return the networks of the class that is best by a policy, those of the best role and rail first."""
    by_class = [
        sorted((network for network in networks if network.transport is transport), key=_order)
        for transport in (*RDMA, Transport.ETHERNET)
    ]
    present = [found for found in by_class if found]
    if policy is Policy.PRIORITY or not present:
        return present[0] if present else []
    carried = [_carried(found) for found in present]
    return next(found for found, speed in zip(present, carried, strict=True) if speed * _ABOUT_EQUAL >= max(carried))


def _carried(networks: Sequence[Network]) -> float:
    """Return what networks of one class carry between two nodes: RDMA all rails, TCP what processors can copy."""
    speeds = [min(port.speed_bytes_per_second or _UNKNOWN_SPEED for port in network.ports) for network in networks]
    return float(sum(speeds)) if networks[0].transport in RDMA else min(max(speeds), TCP_BANDWIDTH)


def _order(network: Network) -> tuple[int, int, float, bool, str]:
    rail = network.rail.index if network.rail else 0
    return role_rank(network.role), rail, -_speed(network), ":" in network.name, network.name


def _speed(network: Network) -> float:
    """Return the rate of the slowest port; 0 where none is known."""
    return min((port.speed_bytes_per_second or 0 for port in network.ports), default=0)


def _control(joining: Sequence[Network], nodes: Mapping[str, Snapshot], data: Sequence[Network]) -> Network | None:
    """Return the network for what is small: that of the data where it is IP, else the best that has addresses."""
    if data[0].transport in _BY_IP:
        return data[0]
    fit = [network for network in joining if network.transport in _BY_IP and _all_usable(network, nodes)]
    hard = [network for network in fit if not any(port.virtual for port in network.ports)]
    busy = {one.name.partition(":")[2] for one in data}  # an IP network by whose interfaces the data go, past IP

    def order(network: Network) -> tuple[int, bool, float, bool, str]:
        return max(role_rank(network.role), _FOR_DATA), network.name in busy, *_order(network)[2:]

    return min(hard or fit, key=order, default=None)


def _all_usable(network: Network, nodes: Mapping[str, Snapshot]) -> bool:
    for port in network.ports:
        by_name = {one.name: one for one in nodes[port.node].interfaces}
        own = by_name.get(port.interface)
        if own is None or unusable(own, by_name):
            return False
    return True


def as_seen(snapshot: Snapshot, view: LocalView) -> Snapshot:
    """Return a node as one of its own processes sees it: in a container names differ, and devices are missing."""
    node_id = snapshot.node.node_id
    facts = find_hosts({0: replace(view, node_id=node_id)}, {node_id: snapshot}).places[0].facts
    driver = snapshot.gpu_driver
    if driver is not None and view.imex_channels is not None:
        driver = replace(driver, imex_channels=view.imex_channels)
    return replace(as_ranks_see(snapshot, facts), gpu_driver=driver)


def interface_named(snapshot: Snapshot, name: str) -> NetInterface | None:
    """Return an interface of a node by its name."""
    return next((one for one in snapshot.interfaces if one.name == name), None)
