"""``fabricctl order``: in which order ranks should be numbered over the nodes, and what that gains."""

from collections.abc import Sequence
from typing import Annotated

import typer

from fabric_client.cli.clean import clean
from fabric_client.cli.job_nodes import JobNodesOption, job_nodes
from fabric_client.cli.placement_option import PlacementOption, read_all
from fabric_client.cli.ranks_option import parse_ranks
from fabric_client.cli.show import console, print_json, table
from fabric_client.cli.source import FromOption, JsonOption, load, read_input
from fabricd.errors import InputError
from fabricd.model.codec import from_json
from fabricd.placement.hostlist import expand
from fabricd.placement.imported import Imported
from fabricd.plan.order import PairBandwidth, RankOrder, RankPlace, rank_order
from fabricd.plan.order.from_map import named_places, rank_places
from fabricd.plan.order.mesh import Mesh
from fabricd.plan.order.mesh_order import MeshOrder, mesh_order
from fabricd.plan.order.pairs_csv import read_pairs
from fabricd.units import format_bandwidth, format_count, format_ranges, format_size, parse_size

HostsOption = Annotated[
    str,
    typer.Option(
        "--hosts", help="Nodes by name, as a hostlist (gpu[001-064]), without a map; SLURM_JOB_NODELIST is one."
    ),
]
PerNodeOption = Annotated[int, typer.Option("--per-node", min=1, max=1024, help="Ranks on each of --hosts.")]
BandwidthOption = Annotated[
    str, typer.Option("--bandwidth", metavar="FILE", help="Measured pairs of nodes (CSV: src,dst or nodes; a figure).")
]
WhereOption = Annotated[
    list[str] | None, typer.Option("--where", metavar="COLUMN=VALUE", help="Use only these rows of --bandwidth.")
]
FixOption = Annotated[str, typer.Option("--fix", metavar="RANKS", help="Ranks that keep their number: 0 or 0-7,16.")]
MeshOption = Annotated[
    str, typer.Option("--mesh", metavar="FILE", help="Groups of parallel training (JSON), to be served together.")
]
AnyRankOption = Annotated[bool, typer.Option("--move-ranks", help="With --mesh: single ranks may leave their node's.")]
BytesOption = Annotated[
    str, typer.Option("--bytes", "-b", metavar="SIZE", help="Of the all_reduce whose time is told: 1GiB, 16M.")
]
_SHOWN_NODES = 64


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("order")(order)


def order(
    *,
    origin: FromOption = None,
    nodes: JobNodesOption = None,
    hosts: HostsOption = "",
    per_node: PerNodeOption = 8,
    placement: PlacementOption = None,
    bandwidth: BandwidthOption = "",
    where: WhereOption = None,
    fix: FixOption = "",
    mesh: MeshOption = "",
    move_ranks: AnyRankOption = False,
    size: BytesOption = "1GiB",
    as_json: JsonOption = False,
) -> None:
    """Order ranks over nodes: fewest crossings of switches and NVLink domains, then the fastest pairs."""
    if move_ranks and not mesh:
        raise InputError("--move-ranks bears on --mesh only", hint="an order of whole nodes is enough for one ring")
    if where and not bandwidth:
        raise InputError("--where chooses rows of --bandwidth", hint="add --bandwidth FILE")
    imports = read_all(placement)
    places = named_places(expand(hosts), per_node, imports) if hosts else _places(origin, nodes, imports)
    pairs = _pairs(bandwidth, where or ())
    fixed = parse_ranks(fix, "--fix")
    if mesh:
        wanted = from_json(read_input(mesh), Mesh, what=mesh)
        found = mesh_order(places, wanted, bandwidth=pairs, fixed=fixed, whole_nodes=not move_ranks)
        print_json(found) if as_json else _show_mesh(found, places)
        return
    best = rank_order(places, bandwidth=pairs, fixed=fixed, size=parse_size(size))
    print_json(best) if as_json else _show(best, places)


def _places(origin: str | None, nodes: str | None, imports: Sequence[Imported]) -> list[RankPlace]:
    source = load(origin)
    job = job_nodes(source, nodes)
    return rank_places({snapshot.node.node_id: snapshot for snapshot in job.values()}, imports)


def _pairs(file: str, where: Sequence[str]) -> PairBandwidth | None:
    if not file:
        return None
    chosen = {}
    for text in where:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise InputError(f"--where {text[:80]!r} chooses nothing", hint="expected e.g. test=sendrecv_perf")
        chosen[name] = value
    return read_pairs(read_input(file).decode("utf-8", "replace"), where=chosen, source=file)


def _show(found: RankOrder, places: Sequence[RankPlace]) -> None:
    out = console()
    count = len(found.order)
    proven = "no order is better" if found.optimal else "the best found; a better one is not ruled out"
    where = f"{format_count(count, 'rank')} on {format_count(len(found.nodes), 'node')}"
    out.print(f"{where}, {found.moved} get another number; {proven} ({found.method})")
    rows: list[tuple[object, ...]] = [
        (f"{one.level} crossings", one.before, one.after, f"at least {one.least} ({one.groups} groups)")
        for one in found.crossings
    ]
    if found.slowest_before and found.slowest_after:
        rows.append(
            (
                "slowest edge",
                format_bandwidth(found.slowest_before.bandwidth_bytes_per_second),
                format_bandwidth(found.slowest_after.bandwidth_bytes_per_second),
                f"at most {format_bandwidth(found.bound_bytes_per_second)}",
            )
        )
        rows.append(
            (
                f"all_reduce of {format_size(found.bytes)}, ring",
                _milliseconds(found.seconds_before),
                _milliseconds(found.seconds_after),
                _gain(found.seconds_before, found.seconds_after),
            )
        )
    if rows:
        out.print(table(("", ">BEFORE", ">AFTER", "POSSIBLE"), rows))
    for line in found.because[len(found.crossings) :]:  # the table tells of those
        out.print(clean(line))
    _show_ranks(found.order, places)


def _show_mesh(found: MeshOrder, places: Sequence[RankPlace]) -> None:
    out = console()
    gain = _gain(found.weighted_seconds_before, found.weighted_seconds)
    out.print(
        f"{len(found.order)} ranks; weighted time {_milliseconds(found.weighted_seconds_before)} before, "
        f"{_milliseconds(found.weighted_seconds)} now ({gain})"
    )
    columns = ("AXIS", ">SIZE", ">GROUPS", ">IN NVLINK", ">MEAN BEFORE", ">MEAN", ">SLOWEST BEFORE", ">SLOWEST")
    rows = [
        (
            axis.name,
            axis.size,
            axis.groups,
            f"{axis.inside_nvlink_before} > {axis.inside_nvlink}",
            _milliseconds(axis.mean_seconds_before),
            _milliseconds(axis.mean_seconds),
            _milliseconds(axis.slowest_seconds_before),
            _milliseconds(axis.slowest_seconds),
        )
        for axis in found.axes
    ]
    out.print(table(columns, rows))
    for line in found.because:
        out.print(clean(line))
    _show_ranks(found.order, places)


def _show_ranks(order: Sequence[int], places: Sequence[RankPlace]) -> None:
    """Print the nodes by new rank, with the ranks as they were."""
    node_of = {place.rank: place.node for place in places}
    runs: list[tuple[str, list[int], list[int]]] = []
    for new, old in enumerate(order):
        if not runs or runs[-1][0] != node_of[old]:
            runs.append((node_of[old], [], []))
        runs[-1][1].append(new)
        runs[-1][2].append(old)
    rows = [(node, format_ranges(new), format_ranges(old)) for node, new, old in runs[:_SHOWN_NODES]]
    out = console()
    out.print(table(("NODE", "RANKS", "WERE"), rows))
    if len(runs) > _SHOWN_NODES:
        out.print(f"and {len(runs) - _SHOWN_NODES} more; --json has all")


def _milliseconds(seconds: float | None) -> str:
    return "?" if seconds is None else f"{seconds * 1e3:.3g} ms"


def _gain(before: float | None, after: float | None) -> str:
    if not before or not after:
        return ""
    return "the same" if before == after else f"{before / after:.2f} times faster"
