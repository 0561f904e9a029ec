"""The plan of a job on nodes of a map: which GPUs take part, how they talk, and what their engines are told."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

from fabricd.errors import FabricError, InputError, UnknownNameError
from fabricd.graph.nccl_xml_corrected import corrected_document
from fabricd.graph.nccl_xml_merge import topology_of
from fabricd.graph.nccl_xml_types import NcclTopology
from fabricd.model.collective import CollectivePlan
from fabricd.model.observation import Outcome
from fabricd.model.path import Policy, Transport
from fabricd.model.plan import Island
from fabricd.model.plan_request import MAX_NODES, MAX_RANKS, PlanRequest
from fabricd.model.snapshot import Snapshot
from fabricd.plan.group_islands import find_islands
from fabricd.plan.job_topologies import check_joined, nvlink_domains, topologies_of
from fabricd.plan.settings import settings_for
from fabricd.plan.settings.from_file import settings_of_file
from fabricd.plan.settings.job import job_of
from fabricd.plan.what_if import WhatIf, changed, parse_link
from fabricd.units import format_names, format_ranges

_SHOWN = 8


def nodes_of(request: PlanRequest, nodes: Mapping[str, Snapshot]) -> dict[str, Snapshot]:
    """Return the nodes that take part, by display name, in the order in which they are first named.

    Args:
        request: the question.
        nodes: all that are known, by node_id, the daemon's own first.

    Raises:
        UnknownNameError: a node that is not known.
        InputError: two nodes of one name; then the node_id tells them apart.
    """
    own = next(iter(nodes.values()))
    by_name: dict[str, list[Snapshot]] = {}
    for snapshot in nodes.values():
        by_name.setdefault(snapshot.node.name, []).append(snapshot)
    found: dict[str, Snapshot] = {}
    for rank in request.ranks or (own.node.name,):
        name = _node_part(rank)
        known = [own] if name is None else [nodes[name]] if name in nodes else by_name.get(name, [])
        if not known:
            raise UnknownNameError("node", str(name), sorted(by_name))
        if len(known) > 1:
            ids = ", ".join(snapshot.node.node_id for snapshot in known)
            raise InputError(f"{len(known)} nodes are called {name!r}", hint=f"name one by its node_id: {ids}")
        if len(found) >= MAX_NODES:
            raise InputError(
                f"more than {MAX_NODES} nodes are not planned by a daemon",
                hint="fabricctl capture-cluster FILE, then fabricctl plan --from FILE; or name fewer nodes",
            )
        found.setdefault(known[0].node.name if len(by_name[known[0].node.name]) == 1 else str(name), known[0])
    return found


def with_own_node(request: PlanRequest, node_id: str) -> PlanRequest:
    """Return a question for another daemon: GPUs without a node are those of the one that was asked first."""
    return replace(
        request, ranks=tuple(f"{node_id}/{rank}" if _node_part(rank) is None else rank for rank in request.ranks)
    )


def plan_job(request: PlanRequest, nodes: Mapping[str, Snapshot]) -> CollectivePlan:
    """Return the plan.

    Args:
        request: the question.
        nodes: those that take part, in order, by the names that ranks use.

    Raises:
        InputError: a GPU that is not there, too many of them, a collective or kind that there is not.
    """
    from fabricd.plan.collective.machines import machines_of
    from fabricd.plan.collective.plan import collective_plan
    from fabricd.plan.collective.planner import Request
    from fabricd.plan.predict import virtual_of

    what_if = WhatIf(
        without=request.without,
        links_down=tuple(parse_link(text) for text in request.links_down),
        port_speeds=dict(request.port_speeds),
    )
    what_if.check_nodes(nodes)
    chosen = _chosen(request.ranks, nodes)
    if request.view == "nccl":  # without being told, NCCL takes every port
        topologies = {name: topology_of(snapshot) for name, snapshot in nodes.items()}
    else:
        topologies = topologies_of(nodes)
    named = [(name, changed(topology, what_if.of_node(name))) for name, topology in topologies.items()]
    machines = machines_of(named, chosen, domains=nvlink_domains(nodes))
    check_joined(nodes, len(machines.order))
    asked = replace(
        Request.of(machines),
        collective=request.collective,
        size=request.bytes,
        routes=request.routes,
        virtual=virtual_of(next(iter(nodes.values()))),
    )
    plan = collective_plan(asked, view=request.view, kind=request.kind)
    plan = replace(plan, because=(*what_if.in_words(list(topologies.items())), *plan.because))
    return with_reach(plan, nodes) if request.view == "nccl" else with_settings(plan, nodes, request.policy)


def with_settings(
    plan: CollectivePlan, nodes: Mapping[str, Snapshot], policy: Policy = Policy.FASTEST
) -> CollectivePlan:
    """Return the plan with what engines are told on its nodes; without a network, the reason says so."""
    try:
        settings = settings_for(nodes, policy=policy)
    except FabricError as error:
        return replace(plan, because=(*plan.because, f"no settings: {error.message}"))
    islands = _islands(plan, nodes)
    because = (*plan.because, *_about_links(nodes), *_about_islands(islands))
    return replace(plan, settings=settings, islands=islands, because=because)


def with_reach(plan: CollectivePlan, nodes: Mapping[str, Snapshot]) -> CollectivePlan:
    """Return NCCL's own plan, and that it does not get through where its adapters do not reach each other."""
    if plan.nodes < 2:
        return plan
    told = next((one for one in settings_for(nodes, engines=["nccl"]) if one.name == "NCCL_NET"), None)
    if told is None or told.value != "Socket":
        return plan
    return replace(plan, because=(*plan.because, f"it does not get through without NCCL_NET=Socket: {told.because}"))


def with_file_settings(plan: CollectivePlan, topology: NcclTopology, machines: int) -> CollectivePlan:
    """Return the plan with what engines are told on machines that are all like one that a file describes."""
    settings, why = settings_of_file(topology, machines)
    return replace(plan, settings=settings, because=(*plan.because, why))


def taking_part(nodes: Mapping[str, Snapshot], chosen: Collection[int]) -> tuple[dict[str, Snapshot], list[int]]:
    """Return the nodes that some ranks are on, and these ranks as counted over those nodes alone.

    Args:
        nodes: by name, in the order of the ranks. Those after the last rank's are not looked at.
        chosen: ranks, counted over the GPUs of all nodes.

    Raises:
        InputError: a rank that there is not.
    """
    left = set(chosen)
    kept: dict[str, Snapshot] = {}
    ranks: list[int] = []
    first = skipped = 0
    for name, snapshot in nodes.items():
        own = range(first, first + len(gpus_taking_part(snapshot)))
        first = own.stop
        here = sorted(left.intersection(own))
        if here:
            kept[name] = snapshot
            ranks += [rank - skipped for rank in here]
            left.difference_update(here)
        else:
            skipped += len(own)
        if not left:
            break
    if left:
        known = f"ranks: 0 to {first - 1}" if first else "there is no GPU"
        raise InputError(f"no rank {min(left)} on these machines", hint=known)
    return kept, ranks


def _about_links(nodes: Mapping[str, Snapshot]) -> Iterator[str]:
    """Say which links the plan takes for slower than NCCL does by itself."""
    told = [f"{name}: {one}" for name, snapshot in nodes.items() for one in corrected_document(snapshot).changes]
    yield from told[:_SHOWN]
    if told:
        more = f"and {len(told) - _SHOWN} more; " if len(told) > _SHOWN else ""
        yield f"{more}NCCL plans likewise with the file of fabricctl export --format nccl-topo (NCCL_TOPO_FILE)"


def _islands(plan: CollectivePlan, nodes: Mapping[str, Snapshot]) -> tuple[Island, ...]:
    """Return the nodes that something faster joins than the TCP that joins all of them, with the plan's ranks."""
    if len(nodes) < 2 or job_of(nodes).transport is not Transport.ETHERNET:
        return ()
    numbers: dict[str, list[int]] = {}
    for number, rank in enumerate(plan.ranks):
        numbers.setdefault(rank.rpartition("/")[0], []).append(number)
    found = []
    for network, transport, names in find_islands(nodes):
        ranks = tuple(number for name in names for number in numbers.get(name, ()))
        if ranks:
            found.append(Island(network=network, transport=transport, ranks=ranks, leader=ranks[0]))
    return tuple(found)


def _about_islands(islands: Sequence[Island]) -> Iterator[str]:
    if not islands:
        return
    told = [f"ranks {format_ranges(one.ranks)} over {one.network} ({one.transport})" for one in islands]
    yield f"{len(islands)} islands, with TCP alone between them: {format_names(told, separator='; ')}"
    leaders = format_ranges(one.leader for one in islands)
    yield f"a hierarchy would talk inside the islands, and between them by ranks {leaders} alone"


def _node_part(rank: str) -> str | None:
    """Return the node in a rank's name; None for a GPU of the daemon's own node."""
    node, slash, gpu = rank.rpartition("/")
    if slash:
        return node
    return None if gpu.startswith("gpu") and gpu[3:].isdecimal() else rank


def _chosen(ranks: Sequence[str], nodes: Mapping[str, Snapshot]) -> list[int]:
    """Return the numbers of the GPUs that take part, counted over all of the nodes."""
    first: dict[str, int] = {}
    total = 0
    for name, snapshot in nodes.items():
        first[name] = total
        total += len(gpus_taking_part(snapshot))
    names = {alias: name for name, snapshot in nodes.items() for alias in (snapshot.node.node_id, name)}
    own = next(iter(nodes), "")
    found: dict[int, None] = {}
    for rank in ranks or (own,):
        node = _node_part(rank)
        name = own if node is None else names[node]
        gpus = gpus_taking_part(nodes[name])
        wanted = gpus if node == rank else [_index(rank, gpus)]
        found.update(dict.fromkeys(first[name] + gpus.index(index) for index in wanted))
    if len(found) > MAX_RANKS:
        raise InputError(f"{len(found)} ranks, expected at most {MAX_RANKS}")
    return list(found)


def gpus_taking_part(snapshot: Snapshot) -> list[int]:
    """Return the indices of a node's GPUs that can take part: no lost ones. They are its ranks, in this order."""
    return sorted(gpu.index for gpu in snapshot.gpus if gpu.pci_address and gpu.outcome is Outcome.OK)


def _index(rank: str, gpus: Sequence[int]) -> int:
    digits = rank.rpartition("/")[2].removeprefix("gpu")
    index = int(digits) if digits.isascii() and digits.isdigit() and len(digits) < 6 else -1
    if index not in gpus:
        raise UnknownNameError("GPU", rank[:80], [f"gpu{one}" for one in gpus])
    return index
