"""Why a plan is as it is, in sentences."""

from collections.abc import Iterator

from fabricd.plan.collective.cluster import FREE
from fabricd.plan.collective.planner import Planner
from fabricd.plan.collective.trees import MAX_RANKS, TreePacking
from fabricd.units import format_bandwidth, format_count

#: Less than this is no gain.
_WORTH_TELLING = 1.02
_SHOWN_LINKS = 2
#: So near to what was proved, the rest is the proof's.
_PROVED = 0.998


def ring_reasons(planner: Planner, trees: TreePacking | None) -> Iterator[str]:
    """Yield what there is to know of a plan of rings; ``trees`` are those beside it, if any."""
    total, bound = planner.weakest.packing.total, planner.bound
    if not planner.channels:
        yield "no ring: some rank cannot be reached from another"
        return
    for words in dict.fromkeys(part.packing.unsolved for part in planner.parts if part.packing.unsolved):
        yield unsolved_reason(words, "rings")
    limit = min(part.packing.limit for part in planner.parts)
    least = "" if total > _PROVED * limit else "at least "
    proof = f"{least}{percent(total, limit)} of what any rings on these routes carry"
    yield f"{format_count(len(planner.channels), 'ring')} of ours, {in_gb(total)} in all: {proof}"
    yield f"no schedule exceeds {in_gb(bound.busbw)}, whatever its routes: {bound.because}{_over(planner)}"
    yield from _why_below(planner)
    yield from _against_nccl(planner)
    if trees is not None and trees.busbw > _WORTH_TELLING * total:
        gain = f"{trees.busbw / total:.2f} times as much (--kind trees)"
        yield f"trees could carry {in_gb(trees.busbw)} on these routes, {gain}"
    elif trees is None and len(planner.nccl.members) > 1 and bound.busbw > _WORTH_TELLING * total:
        most = f"at most {in_gb(bound.busbw)}, {bound.busbw / total:.2f} times as much"
        ways = (
            "--kind trees packs them"
            if planner.nccl.job.ranks <= MAX_RANKS
            else f"beyond {MAX_RANKS} ranks they are not packed"
        )
        yield f"trees could carry {most} ({ways})"


def unsolved_reason(words: str, what: str) -> str:
    """Return what is said of a packing of rings or trees whose linear program was not solved."""
    return f"the search for better {what} was cut short, for its linear program was not solved ({words[:200]})"


def _over(planner: Planner) -> str:
    """Return which links the bound's cut consists of, if they are few."""
    bound = planner.bound
    if not 0 < len(bound.links) <= _SHOWN_LINKS:
        return ""
    hops = planner.hops(planner.parts[bound.kind], bound.links)
    return ", over " + " and ".join(f"{hop.src} > {hop.dst}" for hop in hops)


def _why_below(planner: Planner) -> Iterator[str]:
    nodes, ranks = len(planner.nccl.members), planner.nccl.job.ranks
    if nodes > 1:
        share = (nodes - 1) * ranks / nodes / (ranks - 1)
        if share < 1 / _WORTH_TELLING:
            yield (
                f"a ring takes all it carries through every machine's ports, an all-gather only {share:.1%} of that: "
                f"where ports are the limit, rings over {nodes} machines reach {share:.1%} of the best schedule"
            )
    totals = [part.packing.total for part in planner.parts]
    if max(totals) > _WORTH_TELLING * min(totals):
        weakest = planner.machine_of(planner.weakest)
        yield f"every ring crosses every machine, so {weakest}, the weakest of {nodes}, decides for all"
    if len(planner.nccl.members) > len(planner.request.order):
        yield "NCCL splits a machine where its GPUs reach each other faster through their ports; so does the plan"
    if nodes > 1 and planner.off_rails > 0.001:
        why = "their machines differ" if len(planner.parts) > 1 else "the number of machines is odd"
        yield f"rings with {planner.off_rails:.1%} of the bandwidth change rails somewhere, since {why}"


def _against_nccl(planner: Planner) -> Iterator[str]:
    theirs, equal = planner.nccl.ring_bandwidth, planner.equal_speed
    count = planner.nccl.channels.searched
    total = planner.weakest.packing.total
    gain = total / theirs
    told = "the same" if gain < _WORTH_TELLING else f"our rings carry {gain:.2f} times as much"
    yield f"NCCL by itself: {format_count(count, 'ring')} of {in_gb(theirs / count)}, {in_gb(theirs)} in all; {told}"
    yield from _disagreement(planner)
    if equal is not None and equal.speed * equal.count > theirs * _WORTH_TELLING:
        told = f"{format_count(equal.count, 'channel')} of {in_gb(equal.speed)}"
        together = in_gb(equal.speed * equal.count)
        yield f"NCCL obeys {told}, {together} in all, by a graph file (fabricctl export --format nccl-graph)"
    if planner.request.routes == FREE:
        yield "predicted for channels of one speed on NCCL's own routes, for it takes no others"
    predicted = planner.predictions[1]
    if predicted is not None and predicted.algorithm != "Ring":
        yield f"at this size NCCL takes {predicted.algorithm}, not rings"


def _disagreement(planner: Planner) -> Iterator[str]:
    """Say what it costs NCCL that all machines take the fewest channels and the lowest speed of any."""
    least = min(part.nccl for part in planner.parts)
    if len(planner.parts) > 1 and planner.nccl.ring_bandwidth * _WORTH_TELLING < least:
        yield (
            f"NCCL finds at least {in_gb(least)} on each machine, but all take the fewest channels and the lowest "
            "speed found on any"
        )


def nccl_reasons(planner: Planner) -> Iterator[str]:
    """Yield what there is to know of what NCCL does by itself."""
    plan = planner.nccl
    if len(plan.members) > len(planner.request.order):
        yield f"NCCL splits a machine: it sees {len(plan.members)} where there are {len(planner.request.order)}"
    used = len(plan.channels.rings)
    again = ": NCCL runs each more than once" if used > plan.channels.searched else ""
    yield f"{format_count(plan.channels.searched, 'ring')} found, {format_count(used, 'channel')} in use{again}"
    if not planner.alone:
        bound = planner.bound.busbw
        yield f"its rings carry {percent(plan.ring_bandwidth, bound)} of {in_gb(bound)}, which no schedule exceeds"


def in_gb(value: float) -> str:
    """Return GB/s as text."""
    return format_bandwidth(value * 1e9)


def percent(value: float, of: float) -> str:
    """Return a share as text."""
    return f"{100 * value / of:.3g} %"
