"""``fabricctl plan``: how ranks should talk, how good that is, and what NCCL would do by itself."""

from collections.abc import Mapping
from dataclasses import replace
from enum import StrEnum
from typing import Annotated

import typer

from fabric_client.cli.calibrate import load_calibration
from fabric_client.cli.job_machines import JobMachines, job_machines
from fabric_client.cli.job_nodes import JobNodesOption, copies_in, job_nodes
from fabric_client.cli.paths import EnvOption, View, nccl_variables
from fabric_client.cli.plan_daemon import plan_by_daemon
from fabric_client.cli.plan_show import show_nccl, show_rings, show_trees
from fabric_client.cli.ranks_option import RanksOption, parse_ranks
from fabric_client.cli.show import print_json
from fabric_client.cli.source import FromOption, JsonOption, Source, load
from fabric_client.cli.topology_option import TopologyOption, with_topology
from fabric_client.cli.what_if_option import (
    LinkDownOption,
    PortSpeedOption,
    WithoutOption,
    asking,
    what_if_of,
)
from fabricd.errors import InputError, UnavailableError
from fabricd.install import install_line
from fabricd.model.collective import CollectivePlan
from fabricd.model.plan_request import PlanRequest
from fabricd.paths.nccl.environment import parse_environment
from fabricd.plan.job_plan import with_file_settings, with_reach, with_settings
from fabricd.plan.predict import virtual_of
from fabricd.units import parse_size


class Routes(StrEnum):
    """Which ways data may take."""

    ENGINE = "engine"
    FREE = "free"


class Kind(StrEnum):
    """What is packed."""

    RINGS = "rings"
    TREES = "trees"


CollectiveOption = Annotated[
    str, typer.Option("--collective", help="all_reduce, all_gather, reduce_scatter, broadcast or reduce.")
]
BytesOption = Annotated[str, typer.Option("--bytes", "-b", metavar="SIZE", help="Of the message: 1GiB, 16M.")]
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
    nodes: JobNodesOption = None,
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
    chosen = parse_ranks(ranks, "--ranks")
    environment = nccl_variables(nccl_env or ())
    question = PlanRequest(
        collective=collective, bytes=parse_size(size), view=view.value, kind=kind.value, routes=routes.value
    )
    by_daemon = source.connection is not None and copies_in(nodes) is None
    if source.connection is not None and by_daemon and not (calibration or environment):
        answer = plan_by_daemon(source.connection, job_nodes(source, nodes), chosen, asking(question, what_if))
    else:
        job = job_machines(source, nodes, chosen, what_if=what_if, every_port=view is View.NCCL)
        answer = _planned(source, job, question, environment, calibration)
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


def _planned(
    source: Source, job: JobMachines, question: PlanRequest, environment: Mapping[str, str], calibration: str | None
) -> CollectivePlan:
    try:
        # numpy and scipy take half a second to import, and only this needs them.
        from fabricd.plan.collective.plan import collective_plan
        from fabricd.plan.collective.planner import Request
    except ModuleNotFoundError as error:
        raise UnavailableError(f"planning needs {error.name}", hint=install_line("plan")) from error
    machines = job.machines
    one = next(iter(job.nodes.values()), None) or (source.node() if source.nodes else None)
    request = replace(
        Request.of(machines),
        collective=question.collective,
        size=question.bytes,
        routes=question.routes,
        environment=parse_environment(environment),
        virtual=virtual_of(one) if one else None,
        calibration=load_calibration(calibration) if calibration else None,
    )
    plan = collective_plan(request, view=question.view, kind=question.kind)
    plan = replace(plan, because=(*job.assumed, *plan.because))
    if question.view == View.NCCL:
        return with_reach(plan, job.nodes) if job.nodes else plan
    if job.nodes:
        return with_settings(plan, job.nodes)
    return with_file_settings(plan, machines.topologies[machines.order[0]], len(machines.order))
