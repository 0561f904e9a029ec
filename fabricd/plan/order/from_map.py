"""The ranks of a job from a cluster's map: one for each GPU, and where each of them is."""

from collections import Counter
from collections.abc import Mapping, Sequence

from fabricd.graph.disjoint import DisjointSets
from fabricd.graph.networks import find_networks
from fabricd.graph.placement import placement
from fabricd.model.network import role_rank
from fabricd.model.path import Transport
from fabricd.model.placement import Place
from fabricd.model.snapshot import Snapshot
from fabricd.placement.imported import Imported
from fabricd.plan.order.places import RankPlace

_FABRICS = frozenset({Transport.INFINIBAND, Transport.ROCE, Transport.EFA, Transport.SLINGSHOT})


def rank_places(nodes: Mapping[str, Snapshot], imports: Sequence[Imported] = ()) -> list[RankPlace]:
    """Return the ranks of a job on all GPUs of some nodes, node by node; a node without GPUs has one.

    Args:
        nodes: by node_id.
        imports: files that say where nodes stand.
    """
    places = placement(nodes, imports)
    fabrics = _fabrics(nodes)
    names = node_names(nodes)
    found: list[RankPlace] = []
    for node_id, snapshot in nodes.items():
        for _ in range(len(snapshot.gpus) or 1):
            found.append(rank_place(len(found), names[node_id], places[node_id], fabrics.get(node_id, "")))
    return found


def named_places(names: Sequence[str], ranks_per_node: int, imports: Sequence[Imported] = ()) -> list[RankPlace]:
    """Return the ranks of a job on nodes that are known by name alone.

    Args:
        names: of the nodes, in order of their ranks.
        ranks_per_node: on each.
        imports: files that say where nodes stand.
    """
    found: list[RankPlace] = []
    for name in names:
        said = next((one for imported in imports if (one := imported.of((name,))) is not None), None)
        place = Place(node=name)
        if said is not None:
            place = Place(
                node=name,
                switches=said.switches,
                block=said.block,
                rack=said.rack,
                zone=said.zone,
                region=said.region,
                nvlink_domain=said.nvlink_domain,
            )
        found += [rank_place(len(found) + own, name, place, "") for own in range(ranks_per_node)]
    return found


def node_names(nodes: Mapping[str, Snapshot]) -> dict[str, str]:
    """Return a name for each node by node_id: its own, or where several bear it, the node_id."""
    return distinct_names({node_id: snapshot.node.name for node_id, snapshot in nodes.items()})


def distinct_names(names: Mapping[str, str]) -> dict[str, str]:
    """Return by node_id the name of each node, or its node_id where several bear the name."""
    owners = Counter(names.values())
    return {node_id: name if owners[name] == 1 else node_id for node_id, name in names.items()}


def rank_place(rank: int, name: str, place: Place, fabric: str) -> RankPlace:
    """Return where a rank is.

    Args:
        rank: its number.
        name: of its node.
        place: of its node.
        fabric: that its node is on, "" for not known.
    """
    return RankPlace(
        rank=rank,
        node=name,
        domain=place.nvlink_domain,
        rack=place.rack,
        leaf=place.leaf,
        block=place.block,
        spine=place.spine,
        core=place.core,
        fabric=fabric,
        zone="/".join(filter(None, (place.region, place.zone))),
    )


def _fabrics(nodes: Mapping[str, Snapshot]) -> dict[str, str]:
    """Return by node_id the name of the first of the networks by which it reaches others past the kernel's IP.

    Nodes that share such a network, or are joined by several in a row, are in one.
    """
    together = DisjointSets[str]()
    name: dict[str, str] = {}
    for network in find_networks(nodes).networks if len(nodes) > 1 else ():
        if network.transport not in _FABRICS or role_rank(network.role) > role_rank("data"):
            continue
        members = list(dict.fromkeys(port.node for port in network.ports))
        for other in members[1:]:
            together.join(members[0], other)
        name.setdefault(together.leader(members[0]), network.name)
    leaders = {node: together.leader(node) for node in together}
    return {node: name.get(leader, leader) for node, leader in leaders.items()}
