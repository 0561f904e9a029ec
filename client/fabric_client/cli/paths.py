"""``fabricctl paths``: which path leads from one device to another, how fast, and why not another."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Annotated

import typer

from fabric_client.cli.paths_show import show_explained, show_table
from fabric_client.cli.show import print_json
from fabric_client.cli.source import FromOption, JsonOption, Source, load
from fabric_client.cli.topology_option import TopologyOption, with_topology
from fabricd.errors import InputError, UnknownNameError
from fabricd.graph.from_nccl import graph_from_nccl
from fabricd.graph.graph import Graph
from fabricd.graph.nccl_xml_merge import topology_of
from fabricd.graph.nccl_xml_types import NcclTopology
from fabricd.graph.template import placement
from fabricd.model.path import PathAnswer, PathType, Policy, Rejected
from fabricd.paths.ends import Ends, ends_of
from fabricd.paths.estimate import Comparison
from fabricd.paths.explain_nccl import given_away
from fabricd.paths.nccl.view import NcclView
from fabricd.paths.query import all_paths, find_paths, paths_from, paths_in
from fabricd.units import parse_size


class View(StrEnum):
    """What decides."""

    PHYSICAL = "physical"
    NCCL = "nccl"


SrcArgument = Annotated[
    str, typer.Argument(metavar="SRC", help="eth0, mlx5_0:1, gpu0, numa0, a PCI address; of another node NODE/eth0.")
]
DstArgument = Annotated[str, typer.Argument(metavar="DST", help="As SRC. Without it, the paths of SRC to all others.")]
ViewOption = Annotated[View, typer.Option("--view", help="What the hardware can do, or what NCCL would decide.")]
ExplainOption = Annotated[bool, typer.Option("--explain", help="Show every hop, and why each candidate lost.")]
EnvOption = Annotated[
    list[str] | None, typer.Option("--nccl-env", metavar="K=V", help="A variable of NCCL to assume; may be repeated.")
]
CapacityOption = Annotated[bool, typer.Option("--capacity", help="Of a pair: what all paths carry at once.")]
PolicyOption = Annotated[Policy, typer.Option("--policy", help="Order by estimated time, or strictly by transport.")]
BytesOption = Annotated[
    str, typer.Option("--bytes", "-b", metavar="SIZE", help="That times are estimated for: 64K, 1G.")
]
FlowsOption = Annotated[int, typer.Option("--flows", min=1, help="Transfers that share the path at once.")]
CandidatesOption = Annotated[int, typer.Option("--candidates", "-k", min=1, max=16, help="At most so many for a pair.")]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("paths")(paths)


def paths(
    src: SrcArgument = "",
    dst: DstArgument = "",
    *,
    origin: FromOption = None,
    topology: TopologyOption = None,
    view: ViewOption = View.PHYSICAL,
    explain: ExplainOption = False,
    as_json: JsonOption = False,
    nccl_env: EnvOption = None,
    candidates: CandidatesOption = 4,
    capacity: CapacityOption = False,
    policy: PolicyOption = Policy.FASTEST,
    size: BytesOption = "1G",
    flows: FlowsOption = 1,
) -> None:
    """Show the best paths of a node, or all candidates between two devices, best first."""
    variables = nccl_variables(nccl_env or ())
    if variables and view is not View.NCCL:
        raise InputError("--nccl-env bears on NCCL's view only", hint="add --view nccl")
    if capacity and (view is View.NCCL or not dst):
        raise InputError("--capacity is of a pair, by what the hardware can do", hint="name SRC and DST")
    comparison = Comparison(policy=policy, bytes=parse_size(size), flows=flows)
    source = with_topology(load(origin), topology)
    wanted = _Wanted(src, dst, explain, candidates, capacity, comparison)
    if view is View.NCCL:
        answer = _nccl(source, src, dst, variables)
    elif source.topology is not None:
        answer = _of_file(source.topology, wanted)
    else:
        answer = _of_nodes(source, wanted)
    if as_json:
        print_json(answer)
    elif explain:
        show_explained(answer)
    else:
        show_table(answer, pair=bool(dst))
    if not any(path.type is not PathType.DIS for path in answer.paths):
        raise typer.Exit(1)


@dataclass(frozen=True, slots=True)
class _Wanted:
    """A question to the physical view."""

    src: str
    dst: str
    explain: bool
    candidates: int
    capacity: bool
    comparison: Comparison

    @property
    def query(self) -> dict[str, str]:
        """The parameters of ``/v1/paths``."""
        fields = asdict(self)
        fields |= fields.pop("comparison")
        return {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in fields.items()}


def nccl_variables(settings: Sequence[str]) -> dict[str, str]:
    """Return what ``--nccl-env`` assumes.

    Raises:
        InputError: not NAME=VALUE.
    """
    found = {}
    for setting in settings:
        name, equals, value = setting.partition("=")
        if not equals or not name:
            raise InputError(f"--nccl-env {setting[:80]!r} is no setting", hint="expected e.g. NCCL_P2P_LEVEL=SYS")
        found[name] = value
    return found


def _nccl(source: Source, src: str, dst: str, variables: Mapping[str, str]) -> PathAnswer:
    topology = source.topology
    notes = topology.notes if topology else placement(source.node()).notes
    nccl = NcclView(topology or topology_of(source.node()), variables)
    if src and dst:
        found = [nccl.path(nccl.find(src), nccl.find(dst))]
    elif src:
        start = nccl.find(src)
        found = [nccl.path(start, other) for other in map(nccl.find, nccl.names()) if other is not start]
    else:
        found = nccl.paths()
    return PathAnswer(src=src, dst=dst, view=View.NCCL, paths=tuple(found), notes=notes)


def _of_file(topology: NcclTopology, wanted: _Wanted) -> PathAnswer:
    graph = graph_from_nccl(topology)
    src = _find(graph, wanted.src) if wanted.src else ""
    if wanted.dst:
        dst = _find(graph, wanted.dst)
        answer = paths_in(
            graph,
            src,
            dst,
            candidates=wanted.candidates,
            with_capacity=wanted.capacity,
            comparison=wanted.comparison,
        )
        answer = replace(answer, notes=tuple(graph.notes))
    else:
        answer = _all(graph, ends_of(graph), src)
    return _against_nccl(answer, topology) if wanted.explain else answer


def _against_nccl(answer: PathAnswer, topology: NcclTopology) -> PathAnswer:
    """Add to the best path of each pair what NCCL's rules give away."""
    try:
        theirs = {(path.src, path.dst): path for path in NcclView(topology).paths()}
    except InputError as error:
        return replace(answer, rejected=(*answer.rejected, Rejected(name="NCCL's view", reason=error.message)))
    compared = []
    for path in answer.paths:
        nccl = theirs.get((path.src, path.dst)) if path.rank <= 1 else None
        why = given_away(path, nccl) if nccl else ""
        compared.append(replace(path, because=(*path.because, why)) if why else path)
    return replace(answer, paths=tuple(compared))


def _of_nodes(source: Source, wanted: _Wanted) -> PathAnswer:
    if wanted.dst:
        if source.connection is not None:  # the daemon knows what was measured
            return source.connection.get("/v1/paths", PathAnswer, params=wanted.query)
        return find_paths(
            source.nodes,
            wanted.src,
            wanted.dst,
            explain=wanted.explain,
            candidates=wanted.candidates,
            with_capacity=wanted.capacity,
            comparison=wanted.comparison,
        )
    nodes = source.nodes_around(wanted.src)
    start = Ends().find(nodes, wanted.src or next(iter(nodes)))
    graph = start.graph()
    return _all(graph, ends_of(graph, start.snapshot), start.name if wanted.src else "")


def _all(graph: Graph, ends: Sequence[str], start: str) -> PathAnswer:
    """Return the best path of each pair, or of each that begins at ``start``."""
    wanted = ends if not start or start in ends else [start, *ends]
    place = {end: number for number, end in enumerate(wanted)}
    found = paths_from(graph, start, wanted) if start else all_paths(graph, wanted)
    in_order = sorted(found, key=lambda path: (place[path.src], place[path.dst]))
    return PathAnswer(src=start, dst="", paths=tuple(in_order), notes=tuple(graph.notes))


def _find(graph: Graph, name: str) -> str:
    """Return the vertex of a file that bears a name; those of further hosts are written with their host."""
    node, slash, local = name.rpartition("/")
    if name in graph:
        return name
    if slash and not any(vertex.node == node for vertex in graph):
        raise UnknownNameError("host in this file", node, sorted({vertex.node for vertex in graph if vertex.node}))
    return graph.find(local, node=node).name
