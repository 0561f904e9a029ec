"""Why a better class of network does not join two nodes: the facts of their ports that rule it out."""

from collections.abc import Iterator, Sequence

from fabricd.graph.graph import VertexKind
from fabricd.graph.networks import NetworkMap
from fabricd.graph.networks_nvlink import domain_of, out_of_domain
from fabricd.model.device import Gpu, HcaPort
from fabricd.model.observation import Outcome
from fabricd.model.path import Rejected, Transport
from fabricd.model.snapshot import Snapshot
from fabricd.paths.ends import End
from fabricd.paths.explain_classes import left_out
from fabricd.units import format_names

_TITLE = {
    Transport.NVLINK: "NVLink",
    Transport.INFINIBAND: "InfiniBand",
    Transport.ROCE: "RoCE",
    Transport.EFA: "EFA",
    Transport.SLINGSHOT: "Slingshot",
    Transport.ETHERNET: "Ethernet",
}
#: Kinds of RDMA devices by the class of network that they make.
_KINDS = {
    Transport.INFINIBAND: frozenset({"infiniband"}),
    Transport.ROCE: frozenset({"roce", "soft-roce", "mana"}),
    Transport.EFA: frozenset({"efa"}),
    Transport.SLINGSHOT: frozenset({"slingshot"}),
}
_SHOWN = 4
_PROBE = "rdma"


def better_classes_between(found: NetworkMap, start: End, goal: End, used: Sequence[Transport]) -> Iterator[Rejected]:
    """Yield why each class of network better than the best candidate's does not join two nodes.

    Args:
        found: the networks of the two.
        start: where the paths start.
        goal: where they end.
        used: transports of the candidates, the best one's first.
    """
    for transport in left_out(tuple(_TITLE), used):
        if transport is Transport.NVLINK:
            yield Rejected(name=transport, reason=_why_no_nvlink(start, goal))
        else:
            yield Rejected(name=transport, reason=_why_no_network(found, transport, start, goal))


def _why_no_nvlink(start: End, goal: End) -> str:
    """Return which condition of an NVLink domain of several hosts does not hold."""
    gpus = []
    for end in (start, goal):
        if not end.snapshot.gpus:
            return f"{end.node} has no GPU{_probe(end.snapshot, 'nvml')}"
        gpu = _gpu_of(end)
        if gpu is None:
            return f"NVLink joins GPUs, and {end.name} is none"
        gpus.append((end, gpu))
    for end, gpu in gpus:
        if fault := out_of_domain(gpu):
            return f"{end.node}/gpu{gpu.index}: {fault}"
    (a, one), (b, other) = gpus
    here, there = domain_of(one), domain_of(other)
    if here is None or there is None:  # then it is out of any domain, and was told above
        return "one of the two is in no NVLink domain"
    if here[0] != there[0]:
        return f"the two are in different NVLink domains: {a.node} in {here[0]}, {b.node} in {there[0]}"
    if here[1] != there[1]:
        cliques = f"{a.node} in clique {here[1]}, {b.node} in clique {there[1]}"
        return f"the two are in one NVLink domain, but its partitions do not reach each other: {cliques}"
    return "a measurement found the NVLink domain dead"


def _gpu_of(end: End) -> Gpu | None:
    if end.vertex.kind is not VertexKind.GPU:
        return None
    return next((gpu for gpu in end.snapshot.gpus if f"gpu{gpu.index}" == end.vertex.name), None)


def _why_no_network(found: NetworkMap, transport: Transport, start: End, goal: End) -> str:
    title = _TITLE[transport]
    on = {
        end.node: [net.name for net, _ in found.of(end.node_id) if net.transport is transport] for end in (start, goal)
    }
    for end in (start, goal):
        if not on[end.node]:
            return _why_not_on(end, transport)
    if set(on[start.node]) & set(on[goal.node]):
        return f"what was asked for reaches no {title} network that both nodes are on, or a measurement found it dead"
    sides = "; ".join(f"{node}: {format_names(dict.fromkeys(names), _SHOWN)}" for node, names in on.items())
    return f"the nodes are on different {title} networks ({sides})"


def _why_not_on(end: End, transport: Transport) -> str:
    """Return why a node is on no network of a class."""
    title, snapshot = _TITLE[transport], end.snapshot
    if transport not in _KINDS:
        return f"{end.node} has no {title} interface that is up and has an address"
    ports = list(snapshot.hca_ports())
    mine = [(name, port) for name, hca, port in ports if hca.kind in _KINDS[transport]]
    cards = [one.name for one in snapshot.interfaces if one.driver.startswith("cxi")]
    if transport is Transport.SLINGSHOT and cards:
        return (
            f"{end.node} has Slingshot cards ({format_names(cards, _SHOWN)}), but none that is up and has an IP address"
        )
    if not mine:
        others = sorted({hca.kind for _, hca, _ in ports} - {"other"})
        instead = f": its RDMA ports are {', '.join(others)} ({format_names((name for name, _, _ in ports), _SHOWN)})"
        return f"{end.node} has no {title} port{instead if others else _probe(snapshot, _PROBE)}"
    active = [name for name, port in mine if port.state == "active"]
    if not active:
        states = [f"{name} is {_state(port)}" for name, port in mine]
        return f"{end.node} has no {title} port that is up ({format_names(states, _SHOWN)})"
    names = format_names(active, _SHOWN)
    if transport is Transport.EFA:
        return (
            f"{end.node} has {title} ports that are up ({names}), but no IP address that shows which subnet they reach"
        )
    return f"{end.node} has {title} ports that are up ({names}), but none whose interface is up and has an IP address"


def _state(port: HcaPort) -> str:
    state = port.state or "in unknown state"
    return f"{state}, link {port.physical_state}" if port.physical_state not in ("", "linkup") else state


def _probe(snapshot: Snapshot, name: str) -> str:
    """Say so where a probe could not look: then nothing is known, which is not nothing."""
    report = next((report for report in snapshot.probes if report.name == name), None)
    if report is None or report.outcome in (Outcome.OK, Outcome.ABSENT):
        return ""
    return f" that is known (probe {name}: {report.outcome}" + (f", {report.reason})" if report.reason else ")")
