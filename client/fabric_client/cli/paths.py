"""``fabricctl paths``: which path leads from one device to another, how fast, and why not another."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from typing import Annotated

import typer

from fabric_client.cli.show import clean, console, print_json, table, text
from fabric_client.cli.source import FromOption, JsonOption, Source, load
from fabricd.errors import InputError, UnknownNameError
from fabricd.graph.from_nccl import graph_from_nccl
from fabricd.graph.graph import Graph
from fabricd.graph.nccl_xml_merge import topology_of
from fabricd.graph.nccl_xml_types import NcclTopology
from fabricd.graph.snapshot import graph_of
from fabricd.model.path import Path, PathAnswer, PathType, Rejected
from fabricd.paths.explain_nccl import given_away
from fabricd.paths.nccl.view import NcclView
from fabricd.paths.query import all_paths, display_names, ends_of, find_paths, paths_from, paths_in
from fabricd.units import format_bandwidth, format_latency


class View(StrEnum):
    """What decides."""

    PHYSICAL = "physical"
    NCCL = "nccl"


SrcArgument = Annotated[
    str, typer.Argument(metavar="[SRC]", help="eth0, mlx5_0:1, gpu0, numa0, a PCI address; of another node NODE/eth0.")
]
DstArgument = Annotated[
    str, typer.Argument(metavar="[DST]", help="As SRC. Without it, the paths of SRC to all others.")
]
ViewOption = Annotated[View, typer.Option("--view", help="What the hardware can do, or what NCCL would decide.")]
ExplainOption = Annotated[bool, typer.Option("--explain", help="Show every hop, and why each candidate lost.")]
EnvOption = Annotated[
    list[str] | None, typer.Option("--nccl-env", metavar="K=V", help="A variable of NCCL to assume; may be repeated.")
]
CandidatesOption = Annotated[int, typer.Option("--candidates", "-k", min=1, max=16, help="At most so many for a pair.")]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("paths")(paths)


def paths(
    src: SrcArgument = "",
    dst: DstArgument = "",
    *,
    origin: FromOption = None,
    view: ViewOption = View.PHYSICAL,
    explain: ExplainOption = False,
    as_json: JsonOption = False,
    nccl_env: EnvOption = None,
    candidates: CandidatesOption = 4,
) -> None:
    """Show the best paths of a node, or all candidates between two devices, best first."""
    variables = _variables(nccl_env or ())
    if variables and view is not View.NCCL:
        raise InputError("--nccl-env bears on NCCL's view only", hint="add --view nccl")
    source = load(origin)
    if view is View.NCCL:
        answer = _nccl(source, src, dst, variables)
    elif source.topology is not None:
        answer = _of_file(source.topology, src, dst, explain=explain, candidates=candidates)
    else:
        answer = _of_nodes(source, src, dst, explain=explain, candidates=candidates)
    if as_json:
        print_json(answer)
    elif explain:
        _show_explained(answer)
    else:
        _show_table(answer, pair=bool(dst))
    if not any(path.type is not PathType.DIS for path in answer.paths):
        raise typer.Exit(1)


def _variables(settings: Sequence[str]) -> dict[str, str]:
    found = {}
    for setting in settings:
        name, equals, value = setting.partition("=")
        if not equals or not name:
            raise InputError(f"--nccl-env {setting[:80]!r} is no setting", hint="expected e.g. NCCL_P2P_LEVEL=SYS")
        found[name] = value
    return found


def _nccl(source: Source, src: str, dst: str, variables: Mapping[str, str]) -> PathAnswer:
    topology = source.topology or topology_of(source.node())
    nccl = NcclView(topology, variables)
    if src and dst:
        return PathAnswer(src=src, dst=dst, view=View.NCCL, paths=(nccl.path(nccl.find(src), nccl.find(dst)),))
    found = nccl.paths()
    if src:
        start = nccl.find(src)
        found = [nccl.path(start, other) for other in map(nccl.find, nccl.names()) if other is not start]
    return PathAnswer(src=src, dst=dst, view=View.NCCL, paths=tuple(found))


def _of_file(topology: NcclTopology, src: str, dst: str, *, explain: bool, candidates: int) -> PathAnswer:
    graph = graph_from_nccl(topology)
    if not (src and dst):
        answer = _all(graph, ends_of(graph), _find(graph, src) if src else "")
    else:
        answer = paths_in(graph, _find(graph, src), _find(graph, dst), candidates=candidates)
    return _against_nccl(answer, topology) if explain else answer


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


def _of_nodes(source: Source, src: str, dst: str, *, explain: bool, candidates: int) -> PathAnswer:
    if src and dst:
        if source.connection is None:
            return find_paths(source.nodes, src, dst, explain=explain, candidates=candidates)
        # The daemon knows what was measured.
        query = {"src": src, "dst": dst, "explain": str(explain).lower(), "candidates": str(candidates)}
        return source.connection.get("/v1/paths", PathAnswer, params=query)
    names = display_names(source.nodes)
    node, slash, device = src.rpartition("/")
    snapshot = source.node(node if slash else "")
    prefix = names[snapshot.node.node_id]
    graph = graph_of(snapshot, node=prefix)
    return _all(graph, ends_of(graph, snapshot), graph.find(device, node=prefix).name if src else "")


def _all(graph: Graph, ends: Sequence[str], start: str) -> PathAnswer:
    """Return the best path of each pair, or of each that begins at ``start``."""
    wanted = ends if not start or start in ends else [start, *ends]
    place = {end: number for number, end in enumerate(wanted)}
    found = paths_from(graph, start, wanted) if start else all_paths(graph, wanted)
    in_order = sorted(found, key=lambda path: (place[path.src], place[path.dst]))
    return PathAnswer(src=start, dst="", paths=tuple(in_order))


def _find(graph: Graph, name: str) -> str:
    """Return the vertex of a file that bears a name; those of further hosts are written with their host."""
    node, slash, local = name.rpartition("/")
    if name in graph:
        return name
    if slash and not any(vertex.node == node for vertex in graph):
        raise UnknownNameError("host in this file", node, sorted({vertex.node for vertex in graph if vertex.node}))
    return graph.find(local, node=node).name


def _show_table(answer: PathAnswer, *, pair: bool) -> None:
    out = console()
    columns = ["SRC", "DST", "TYPE", "TRANSPORT", ">BANDWIDTH", ">LATENCY", "EVIDENCE", "THROUGH"]
    if answer.paths and pair:
        out.print(table(["RANK", *columns], [[path.rank, *_row(path)] for path in answer.paths]))
    elif answer.paths:
        out.print(table(columns, [_row(path) for path in _one_way(answer.paths)]))
    else:
        out.print(text(f"no path from {answer.src or 'here'} to {answer.dst or 'anything'}", "yellow"))
    for one in answer.rejected if pair else ():
        out.print(text(f"no candidate: {one.name}: {one.reason}", "dim"))


def _one_way(paths: Sequence[Path]) -> list[Path]:
    """Leave out the way back where it is the same, but for an end that was asked for."""
    shown: dict[tuple[str, str], Path] = {}
    for path in paths:
        back = shown.get((path.dst, path.src))
        figures = (path.type, path.bandwidth_bytes_per_second)
        if back is None or figures != (back.type, back.bandwidth_bytes_per_second):
            shown[path.src, path.dst] = path
    return list(shown.values())


def _row(path: Path) -> tuple[object, ...]:
    through = " ".join(hop.dst.removeprefix("network:") for hop in path.hops[:-1])
    bandwidth = format_bandwidth(path.bandwidth_bytes_per_second) + (" virtual" if path.virtual else "")
    latency = format_latency(path.latency_seconds)
    return (path.src, path.dst, path.type, path.transport, bandwidth, latency, path.evidence, through)


def _show_explained(answer: PathAnswer) -> None:
    out = console()
    for path in answer.paths:
        place = f"{path.rank}. " if path.rank else ""
        figures = f"{format_bandwidth(path.bandwidth_bytes_per_second)}, {format_latency(path.latency_seconds)}"
        title = f"{place}{path.src} -> {path.dst}: {path.type} over {path.transport}, {figures}, {path.evidence}"
        out.print(text(title, "bold"))
        for hop in path.hops:
            speed = format_bandwidth(hop.bandwidth_bytes_per_second)
            detail = f", {hop.detail}" if hop.detail else ""
            out.print(text(f"     {hop.src} - {hop.dst}  {hop.link}, {speed}, {hop.evidence}{detail}", "dim"))
        for reason in path.because:
            out.print(text(f"     {reason}"))
    for one in answer.rejected:
        out.print(text(f"no candidate: {one.name}: {one.reason}"))
    if not answer.paths:
        out.print(text(f"no path from {clean(answer.src)} to {clean(answer.dst)}", "yellow"))
