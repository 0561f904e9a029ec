"""``fabricctl export``: the map in forms that NCCL, Slurm, mpirun and Graphviz read."""

import sys
from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from fabric_client.cli.clean import clean
from fabric_client.cli.job_machines import JobMachines, job_machines
from fabric_client.cli.job_nodes import JobNodesOption, job_nodes
from fabric_client.cli.placement_option import PlacementOption, read_all
from fabric_client.cli.ranks_option import RanksOption, parse_ranks
from fabric_client.cli.source import FromOption, Source, load, read_input
from fabric_client.cli.topology_option import TopologyOption, with_topology
from fabricd.errors import InputError, UnavailableError, UnknownNameError
from fabricd.graph.from_nccl import graph_from_nccl
from fabricd.graph.placement import placement
from fabricd.install import install_line
from fabricd.model.codec import from_json
from fabricd.model.snapshot import Snapshot
from fabricd.plan.export import NODE_FORMATS, Exported, export_cluster, export_node
from fabricd.plan.export.dot import dot
from fabricd.units import format_count


class ExportFormat(StrEnum):
    """What is written."""

    NCCL_TOPO = "nccl-topo"
    NCCL_GRAPH = "nccl-graph"
    SLURM_TOPOLOGY = "slurm-topology"
    HOSTFILE = "hostfile"
    RANKFILE = "rankfile"
    DOT = "dot"
    MATRIX = "matrix"


FormatOption = Annotated[ExportFormat, typer.Option("--format", "-f", help="What to write.")]
NodeOption = Annotated[
    str, typer.Option("--node", help="Of a form for one node, and of nccl-graph: which, by default the first.")
]
OrderOption = Annotated[
    str, typer.Option("--order", metavar="FILE", help="Answer of `fabricctl order --json`, for hostfile and rankfile.")
]
OutOption = Annotated[str, typer.Option("--out", "-o", help="Takes the text; by default standard output.")]


class _Order(msgspec.Struct):
    """What is needed of an order."""

    order: list[int]
    nodes: list[str]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("export")(export)


def export(
    *,
    form: FormatOption,
    origin: FromOption = None,
    node: NodeOption = "",
    nodes: JobNodesOption = None,
    topology: TopologyOption = None,
    placement_files: PlacementOption = None,
    order: OrderOption = "",
    ranks: RanksOption = "",
    out: OutOption = "",
) -> None:
    """Write a node or the cluster in a form of NCCL, Slurm, mpirun or Graphviz. Notes go to standard error."""
    source = with_topology(load(origin), topology)
    if ranks and form is not ExportFormat.NCCL_GRAPH:
        raise InputError("--ranks is of nccl-graph", hint="leave it out")
    if order and form not in (ExportFormat.HOSTFILE, ExportFormat.RANKFILE):
        raise InputError("--order is of hostfile and rankfile", hint="leave it out")
    if form is ExportFormat.NCCL_GRAPH:
        found = _graph(job_machines(source, nodes, parse_ranks(ranks, "--ranks"), node=node))
    elif source.topology is not None:
        found = _of_file(source, form)
    elif form.value in NODE_FORMATS:
        found = export_node(form.value, source.node(node))
    else:
        found = _cluster(form, job_nodes(source, nodes), placement_files or (), order)
    for note in found.notes:
        sys.stderr.write(f"fabricctl: {clean(note)}\n")
    if out:
        Path(out).write_text(found.text, encoding="utf-8")
    else:
        sys.stdout.write(found.text)


def _of_file(source: Source, form: ExportFormat) -> Exported:
    if form is ExportFormat.DOT and source.topology is not None:
        return Exported(text=dot(graph_from_nccl(source.topology)))
    raise InputError(f"a topology file cannot be written as {form}", hint="dot and nccl-graph can be made of it")


def _cluster(form: ExportFormat, nodes: Mapping[str, Snapshot], files: Sequence[str], order: str) -> Exported:
    if order:
        given = from_json(read_input(order), _Order, what=order)
        unknown = [name for name in given.nodes if name not in nodes]
        if unknown or len(set(given.nodes)) != len(nodes):
            raise UnknownNameError("node", unknown[0] if unknown else f"{len(given.nodes)} nodes", list(nodes))
        if form is ExportFormat.HOSTFILE:
            return export_cluster(form.value, {name: nodes[name] for name in given.nodes}, places={})
        return export_cluster(form.value, nodes, places={}, order=given.order)
    imports = read_all(files)
    places = {}
    if form is ExportFormat.SLURM_TOPOLOGY:
        by_id = placement({snapshot.node.node_id: snapshot for snapshot in nodes.values()}, imports)
        places = {name: by_id[snapshot.node.node_id] for name, snapshot in nodes.items()}
    return export_cluster(form.value, nodes, places=places)


def _graph(job: JobMachines) -> Exported:
    """Return NCCL's graph file of our rings for a job: of one node, or of the first of several."""
    try:
        # numpy and scipy take half a second to import, and only this needs them.
        from fabricd.plan.collective.graph_file import graph_file
        from fabricd.plan.collective.planner import Planner, Request
    except ModuleNotFoundError as error:
        raise UnavailableError(f"planning needs {error.name}", hint=install_line("plan")) from error
    machines = job.machines
    planner = Planner(Request.of(machines))
    notes = [
        f"for {format_count(len(machines.ranks), 'rank')} on {format_count(len(machines.order), 'machine')}; "
        "NCCL_GRAPH_FILE binds every communicator of a process, and those that lack one of these GPUs fail"
    ]
    if len(set(machines.order)) > 1:
        notes.append(f"the machines differ: this is for those like {machines.names[0]}")
    return Exported(text=graph_file(planner), media_type="application/xml", notes=tuple(notes))
