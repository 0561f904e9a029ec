"""``fabricctl plan``: how ranks should talk, how good that is, and what NCCL would do by itself."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from typing import Annotated

import typer

from fabric_client.cli.calibrate import load_calibration
from fabric_client.cli.paths import EnvOption, View, nccl_variables
from fabric_client.cli.plan_show import show_nccl, show_rings, show_trees
from fabric_client.cli.ranks_option import parse_ranks
from fabric_client.cli.show import print_json
from fabric_client.cli.source import FromOption, JsonOption, Source, load
from fabric_client.cli.topology_option import TopologyOption, with_topology
from fabric_client.cli.what_if_option import (
    LinkDownOption,
    PortSpeedOption,
    WithoutOption,
    as_it_would_be,
    what_if_of,
)
from fabricd.errors import InputError, UnavailableError
from fabricd.graph.nccl_xml_merge import topology_of
from fabricd.graph.nccl_xml_types import NcclTopology
from fabricd.install import install_line
from fabricd.model.collective import CollectivePlan
from fabricd.model.snapshot import Snapshot
from fabricd.paths.nccl.environment import NcclEnvironment, parse_environment
from fabricd.plan.collective.machines import Machines, machines_of
from fabricd.plan.job_plan import taking_part, with_file_settings, with_reach, with_settings
from fabricd.plan.job_topologies import check_joined, nvlink_domains, topologies_of
from fabricd.plan.nccl.emulate import MAX_RANKS
from fabricd.plan.predict import Calibration, virtual_of
from fabricd.units import parse_size


class Routes(StrEnum):
    """Which ways data may take."""

    ENGINE = "engine"
    FREE = "free"


class Kind(StrEnum):
    """What is packed."""

    RINGS = "rings"
    TREES = "trees"


NodesOption = Annotated[int, typer.Option("--nodes", min=1, max=MAX_RANKS, help="So many copies of a one-node file.")]
RanksOption = Annotated[
    str, typer.Option("--ranks", metavar="LIST", help="Only these GPUs, counted over all nodes: 0-6,8-14.")
]
CollectiveOption = Annotated[
    str, typer.Option("--collective", help="all_reduce, all_gather, reduce_scatter, broadcast or reduce.")
]
BytesOption = Annotated[str, typer.Option("--bytes", help="Size of the message: 1GiB, 16M.")]
ViewOption = Annotated[View, typer.Option("--view", help="The best plan, or what NCCL will do by itself.")]
RoutesOption = Annotated[
    Routes, typer.Option("--routes", help="One route a pair, as an engine obeys; or any routes, for what is possible.")
]
KindOption = Annotated[Kind, typer.Option("--kind", help="What to pack; trees are data to compare with.")]
CalibrationOption = Annotated[
    str | None,
    typer.Option("--calibration", metavar="FILE", help="What `fabricctl calibrate` wrote, for the prediction."),
]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("plan")(plan)


def plan(
    *,
    origin: FromOption = None,
    topology: TopologyOption = None,
    nodes: NodesOption = 1,
    ranks: RanksOption = "",
    collective: CollectiveOption = "all_reduce",
    size: BytesOption = "1GiB",
    view: ViewOption = View.PHYSICAL,
    routes: RoutesOption = Routes.ENGINE,
    kind: KindOption = Kind.RINGS,
    calibration: CalibrationOption = None,
    nccl_env: EnvOption = None,
    without: WithoutOption = None,
    link_down: LinkDownOption = None,
    port_speed: PortSpeedOption = None,
    as_json: JsonOption = False,
) -> None:
    """Plan a collective: rings, their ports, what holds them back, what is possible at all, and the time it takes."""
    if view is View.NCCL and (kind is not Kind.RINGS or routes is not Routes.ENGINE):
        raise InputError("--kind and --routes are of our plan", hint="NCCL's view has NCCL's own")
    source = with_topology(load(origin), topology)
    what_if = what_if_of(without, link_down, port_speed)
    chosen: Sequence[int] = parse_ranks(ranks, "--ranks")
    snapshots = _nodes(source)
    if nodes > 1 and len(snapshots) > 1:
        raise InputError(f"--nodes copies one machine, and {source.name} has {len(snapshots)}", hint="leave it out")
    copied = nodes > 1 or source.topology is not None
    if chosen and not copied:
        snapshots, chosen = taking_part(snapshots, chosen)
    machines = machines_of(
        as_it_would_be(_topologies(source, snapshots, nodes, view), what_if),
        chosen,
        domains=None if copied else nvlink_domains(snapshots),
    )
    if not copied:
        check_joined(snapshots, len(machines.order))
    environment = parse_environment(nccl_variables(nccl_env or ()))
    known = load_calibration(calibration) if calibration else None
    virtual = virtual_of(source.node()) if source.nodes else None
    answer = _plan(
        machines, collective, parse_size(size), environment, known, virtual, view=view, routes=routes, kind=kind
    )
    if view is View.PHYSICAL:
        first, of = machines.topologies[machines.order[0]], len(machines.order)
        answer = with_file_settings(answer, first, of) if copied else with_settings(answer, snapshots)
    elif not copied:
        answer = with_reach(answer, snapshots)
    answer = replace(answer, because=(*what_if.in_words(), *answer.because))
    if as_json:
        print_json(answer)
    elif view is View.NCCL:
        show_nccl(answer)
    elif kind is Kind.TREES:
        show_trees(answer)
    else:
        show_rings(answer)
    if not (answer.channels or answer.trees):
        raise typer.Exit(1)


def _nodes(source: Source) -> dict[str, Snapshot]:
    return {name: source.nodes[node_id] for node_id, name in source.names().items()}


def _topologies(
    source: Source, nodes: Mapping[str, Snapshot], copies: int, view: View
) -> list[tuple[str, NcclTopology]]:
    if source.topology is not None:
        return [(f"node{number}", source.topology) for number in range(copies)]
    if view is View.NCCL:  # without being told, NCCL takes every port
        found = [(name, topology_of(snapshot)) for name, snapshot in nodes.items()]
    else:
        found = list(topologies_of(nodes).items())
    if copies == 1:
        return found
    return [(f"node{number}", found[0][1]) for number in range(copies)] if found else []


def _plan(
    machines: Machines,
    collective: str,
    size: int,
    environment: NcclEnvironment,
    calibration: Calibration | None,
    virtual: bool | None,
    *,
    view: View,
    routes: Routes,
    kind: Kind,
) -> CollectivePlan:
    try:
        # numpy and scipy take half a second to import, and only this needs them.
        from fabricd.plan.collective.plan import nccl_view, ring_plan, tree_plan
        from fabricd.plan.collective.planner import Planner, Request
    except ModuleNotFoundError as error:
        raise UnavailableError(f"planning needs {error.name}", hint=install_line("plan")) from error
    planner = Planner(
        Request(
            topologies=machines.topologies,
            order=machines.order,
            names=machines.names,
            ranks=machines.ranks,
            collective=collective,
            size=size,
            routes=routes.value,
            environment=environment,
            virtual=virtual,
            calibration=calibration,
        )
    )
    if view is View.NCCL:
        return nccl_view(planner)
    return tree_plan(planner) if kind is Kind.TREES else ring_plan(planner)
