"""Plans for people."""

from collections import Counter
from collections.abc import Iterable, Sequence

from fabric_client.cli.clean import clean
from fabric_client.cli.show import console, table
from fabricd.model.collective import Alternative, Channel, CollectivePlan, Prediction, Search
from fabricd.model.path import Hop
from fabricd.units import format_bandwidth, format_count, format_size

_SHOWN_RANKS = 16
_SHOWN_LINKS = 4
_SHOWN_TREES = 16
#: What reduces in these, which rings and trees do not need.
#: Names of figures are those of nccl-tests.
_COLUMNS = ("", ">BUSBW BY LINKS", "BY", ">PREDICTED TIME", ">ALGBW", ">BUSBW", ">4 OF 5 WITHIN", "WITH")
_REDUCED = {"nvls": "NVSwitches reduce", "sharp": "the network reduces"}


def show_rings(plan: CollectivePlan) -> None:
    """Print a plan of rings, with what else there is beside it."""
    out = console()
    out.print(_title(plan))
    rows: list[tuple[str, ...]] = [
        (
            "this plan",
            format_bandwidth(plan.bandwidth_bytes_per_second),
            format_count(len(plan.channels), "ring"),
            *_told(plan.predicted, plan.bytes),
        )
    ]
    rows += [_alternative(one, plan.bytes) for one in plan.alternatives]
    possible = "possible" + " without it" * any(one.name in _REDUCED for one in plan.alternatives)
    rows.append((possible, format_bandwidth(plan.bound_bytes_per_second), _share(plan), "", "", "", "", ""))
    out.print(table(_COLUMNS, rows))
    out.print("by links: busbw of nccl-tests if the links were the only limit; predicted: what to expect at this size")
    _print_limits(plan.bottleneck)
    out.print()
    out.print(table((">RINGS", ">EACH", "RANKS", "PORTS IN>OUT"), _rings(plan.channels)))
    _print_settings(plan)
    _print_lines(plan.because)


def show_trees(plan: CollectivePlan) -> None:
    """Print a plan of trees."""
    out = console()
    out.print(_title(plan))
    total, bound = map(format_bandwidth, (plan.bandwidth_bytes_per_second, plan.bound_bytes_per_second))
    out.print(f"{format_count(len(plan.trees), 'tree')}, {total} of {bound} possible ({_share(plan)})")
    _print_limits(plan.bottleneck)
    out.print()
    rows = [
        (
            tree.root,
            "reduces" if tree.toward_root else "spreads",
            format_bandwidth(tree.bandwidth_bytes_per_second),
            " ".join(f"{a}>{b}" for a, b in tree.arcs[:_SHOWN_RANKS]) + _more(len(tree.arcs)),
        )
        for tree in plan.trees[:_SHOWN_TREES]
    ]
    out.print(table((">ROOT", "", ">EACH", "ARCS"), rows))
    if len(plan.trees) > _SHOWN_TREES:
        out.print(f"and {len(plan.trees) - _SHOWN_TREES} more; --json has all")
    _print_settings(plan)
    _print_lines(plan.because)


def show_nccl(plan: CollectivePlan) -> None:
    """Print what NCCL will do by itself."""
    out = console()
    out.print(_title(plan))
    if plan.predicted is not None:
        told = format_bandwidth(plan.predicted.busbw_bytes_per_second)
        out.print(f"NCCL takes {_way(plan.predicted)} and reckons with {_time(plan.predicted)}, busbw {told}")
    expected = next((one.predicted for one in plan.alternatives if one.name == "expected"), None)
    if expected is not None:
        busbw, span = format_bandwidth(expected.busbw_bytes_per_second), _span(expected)
        within = f" (4 of 5 within {span})" if span else ""
        out.print(f"expected on such machines: {_time(expected)}, busbw {busbw}{within} with {_way(expected)}")
    for search in plan.searches:
        out.print()
        out.print(_search_title(search))
        shown = Counter((one.ranks, one.nets) for one in search.channels)
        rows = [
            (times, _ranks(ranks), f"{nets[0]}>{nets[1]}" if nets is not None else "")
            for (ranks, nets), times in shown.items()
        ]
        out.print(table((">CHANNELS", "RANKS", "PORTS IN>OUT"), rows))
    _print_lines(plan.because)


def _title(plan: CollectivePlan) -> str:
    count = len(plan.ranks)
    hosts = len({rank.rpartition("/")[0] for rank in plan.ranks})
    where = f"{hosts} nodes" if hosts > 1 else clean(plan.ranks[0])
    if hosts > plan.nodes:
        where += f" in {format_count(plan.nodes, 'NVLink domain')}"
    elif count > 1 and hosts == 1:
        where += f" to {clean(plan.ranks[-1])}"
    return f"{plan.collective} of {format_size(plan.bytes)} over {format_count(count, 'rank')} on {where}"


def _share(plan: CollectivePlan) -> str:
    if not plan.bound_bytes_per_second:
        return ""
    return f"the plan has {100 * plan.bandwidth_bytes_per_second / plan.bound_bytes_per_second:.3g} % of it"


def _alternative(one: Alternative, size: int) -> tuple[str, ...]:
    names = {"nccl": "NCCL by itself", "equal speed": "as a graph file"} | {
        name: f"possible by {name.upper()}" for name in _REDUCED
    }
    by = ({"trees": "another plan"} | _REDUCED).get(one.name, format_count(one.count, "ring"))
    return (
        names.get(one.name, one.name),
        format_bandwidth(one.bandwidth_bytes_per_second),
        by,
        *_told(one.predicted, size),
    )


def _told(predicted: Prediction | None, size: int) -> tuple[str, str, str, str, str]:
    if predicted is None:
        return "", "", "", "", ""
    algbw, busbw = format_bandwidth(size / predicted.time_seconds), format_bandwidth(predicted.busbw_bytes_per_second)
    return _time(predicted), algbw, busbw, _span(predicted), _way(predicted)


def _span(predicted: Prediction) -> str:
    low, high = predicted.busbw_low_bytes_per_second, predicted.busbw_high_bytes_per_second
    if low is None or high is None:
        return ""
    return f"{format_bandwidth(low)} to {format_bandwidth(high)}"


def _way(predicted: Prediction) -> str:
    return f"{predicted.algorithm}/{predicted.protocol}"


def _time(predicted: Prediction) -> str:
    seconds = predicted.time_seconds
    return f"{seconds * 1e3:.3g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.3g} us"


def _rings(channels: Sequence[Channel]) -> list[tuple[object, ...]]:
    """Return a row for each different ring, the widest first."""
    rings: dict[tuple[tuple[int, ...], tuple[tuple[int, int], ...] | None], list[float]] = {}
    for one in channels:
        rings.setdefault((one.ring, one.nics), []).append(one.bandwidth_bytes_per_second)
    return [
        (len(each), format_bandwidth(sum(each) / len(each)), _ranks(ring), _ports(nics))
        for (ring, nics), each in sorted(rings.items(), key=lambda item: -sum(item[1]))
    ]


def _ranks(ring: Iterable[int]) -> str:
    ranks = list(ring)
    return " ".join(map(str, ranks[:_SHOWN_RANKS])) + _more(len(ranks))


def _more(count: int) -> str:
    return f" ... {count} in all" if count > _SHOWN_RANKS else ""


def _ports(nics: Sequence[tuple[int, int]] | None) -> str:
    """Return the ports on the first two nodes, or once if they are the same, and where others are used."""
    if nics is None:
        return ""
    usual = [Counter(nics[first::2]).most_common(1)[0][0] for first in range(min(2, len(nics)))]
    others = [place for place, ports in enumerate(nics) if ports != usual[place % 2]]
    shown = " ".join(f"{entry}>{leave}" for entry, leave in dict.fromkeys(usual))
    if others:
        entry, leave = nics[others[0]]
        shown += f"; node {others[0]}: {entry}>{leave}" + (f" and {len(others) - 1} more" if len(others) > 1 else "")
    return shown


def _search_title(search: Search) -> str:
    speeds = f"{format_bandwidth(search.bandwidth_intra_bytes_per_second)} over {search.type_intra}"
    if any(one.nets is not None for one in search.channels):
        speeds += (
            f", {format_bandwidth(search.bandwidth_inter_bytes_per_second)} to the network over {search.type_inter}"
        )
    crossing = ", in pairs that cross" if search.crossing else ""
    where = f" on {clean(search.machine)}" if search.machine else ""
    return f"{search.algorithm}{where}: {format_count(len(search.channels), 'channel')} of {speeds}{crossing}"


def _print_limits(links: Sequence[Hop]) -> None:
    out = console()
    for hop in links[:_SHOWN_LINKS]:
        width = format_bandwidth(hop.bandwidth_bytes_per_second)
        out.print(f"limited by {clean(hop.src)} > {clean(hop.dst)}, {hop.link}, {width}")
    if len(links) > _SHOWN_LINKS:
        out.print(f"and {len(links) - _SHOWN_LINKS} links like these; --json has them")


def _print_settings(plan: CollectivePlan) -> None:
    if plan.settings:
        names = ", ".join(dict.fromkeys(one.name for one in plan.settings))
        console().print(f"\nto be set: {clean(names)} (--json has the values, fabricctl env those of each node)")


def _print_lines(lines: Sequence[str]) -> None:
    out = console()
    out.print()
    for line in lines:
        out.print(f"- {clean(line)}")
