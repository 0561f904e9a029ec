"""``fabricctl export``: the map in forms that NCCL, Slurm, mpirun and Graphviz read."""

import sys
from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from fabric_client.cli.job_nodes import JobNodesOption, job_nodes
from fabric_client.cli.placement_option import PlacementOption, read_all
from fabric_client.cli.show import clean
from fabric_client.cli.source import FromOption, Source, load, read_input
from fabric_client.cli.topology_option import TopologyOption, with_topology
from fabricd.errors import InputError, UnavailableError, UnknownNameError
from fabricd.graph.from_nccl import graph_from_nccl
from fabricd.graph.nccl_xml_merge import topology_of
from fabricd.graph.placement import placement
from fabricd.install import install_line
from fabricd.model.codec import from_json
from fabricd.model.snapshot import Snapshot
from fabricd.plan.collective.machines import machines_of
from fabricd.plan.export import NODE_FORMATS, Exported, export_cluster, export_node
from fabricd.plan.export.dot import dot
from fabricd.plan.job_topologies import check_joined, nvlink_domains, topologies_of


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
NodeOption = Annotated[str, typer.Option("--node", help="Of a form for one node: which, by default the first.")]
OrderOption = Annotated[
    str, typer.Option("--order", metavar="FILE", help="Answer of `fabricctl order --json`, for hostfile and rankfile.")
]
CopiesOption = Annotated[
    int, typer.Option("--copies", min=1, max=1024, help="nccl-graph: a job on so many such nodes.")
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
    copies: CopiesOption = 1,
    out: OutOption = "",
) -> None:
    """Write a node or the cluster in a form of NCCL, Slurm, mpirun or Graphviz. Notes go to standard error."""
    source = with_topology(load(origin), topology)
    if order and form not in (ExportFormat.HOSTFILE, ExportFormat.RANKFILE):
        raise InputError("--order is of hostfile and rankfile", hint="leave it out")
    if form is ExportFormat.NCCL_GRAPH:
        found = _graph(source, node, nodes, copies)
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


def _graph(source: Source, node: str, nodes: str | None, copies: int) -> Exported:
    """Return NCCL's graph file of our rings for a job: of one node, or of the first of several."""
    chosen: Mapping[str, Snapshot] = {}
    domains: dict[str, str] = {}
    if source.topology is not None:
        named = [(f"node{number}", source.topology) for number in range(copies)]
    elif node or copies > 1:
        one = topology_of(source.node(node))
        named = [(f"node{number}", one) for number in range(copies)]
    else:
        chosen = job_nodes(source, nodes)
        named, domains = list(topologies_of(chosen).items()), nvlink_domains(chosen)
    try:
        # numpy and scipy take half a second to import, and only this needs them.
        from fabricd.plan.collective.graph_file import graph_file
        from fabricd.plan.collective.planner import Planner, Request
    except ModuleNotFoundError as error:
        raise UnavailableError(f"planning needs {error.name}", hint=install_line("plan")) from error
    machines = machines_of(named, domains=domains)
    check_joined(chosen, len(machines.order))
    planner = Planner(Request(topologies=machines.topologies, order=machines.order, names=machines.names))
    notes = [
        f"for {len(named)} node{'s' if len(named) > 1 else ''}; NCCL_GRAPH_FILE binds every communicator of a process, "
        "and those that lack one of these GPUs fail"
    ]
    if len(set(machines.order)) > 1:
        notes.append(f"the nodes differ: this is for those like {named[0][0]}")
    return Exported(text=graph_file(planner), media_type="application/xml", notes=tuple(notes))
