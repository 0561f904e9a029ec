"""What changes from one plan to another: figures, rings, ports, bottlenecks and settings."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from fabricd.model.collective import Channel, CollectivePlan
from fabricd.model.plan import Setting
from fabricd.units import format_bandwidth, format_latency, format_size


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One thing that is not the same; ``""`` is "not there"."""

    what: str
    before: str
    after: str
    ratio: float | None = None  #: of figures, after by before


def plan_diff(before: CollectivePlan, after: CollectivePlan) -> tuple[Difference, ...]:
    """Return the differences of two plans, what was asked first, then figures, then what makes them so."""
    asked = [
        ("collective", before.collective, after.collective),
        ("bytes", format_size(before.bytes), format_size(after.bytes)),
        ("ranks", _ranks(before), _ranks(after)),
        ("view", before.view, after.view),
        ("kind", before.kind, after.kind),
        ("routes", before.routes, after.routes),
    ]
    found = [Difference(what=what, before=a, after=b) for what, a, b in asked if a != b]
    return (*found, *_figures(before, after), *_structure(before, after))


def _ranks(plan: CollectivePlan) -> str:
    return f"{len(plan.ranks)} on {plan.nodes} node{'s' if plan.nodes > 1 else ''}"


def _figures(before: CollectivePlan, after: CollectivePlan) -> Iterator[Difference]:
    for what in ("bandwidth_bytes_per_second", "bound_bytes_per_second", "limit_bytes_per_second"):
        a, b = getattr(before, what), getattr(after, what)
        if a != b:
            name = what.removesuffix("_bytes_per_second")
            yield Difference(what=name, before=format_bandwidth(a), after=format_bandwidth(b), ratio=_ratio(a, b))
    old, new = before.predicted, after.predicted
    a, b = (one.time_seconds if one else None for one in (old, new))
    if a != b:
        yield Difference(what="time", before=format_latency(a), after=format_latency(b), ratio=_ratio(a, b))
    way = [f"{one.algorithm} {one.protocol}".strip() if one else "" for one in (old, new)]
    if way[0] != way[1]:
        yield Difference(what="algorithm", before=way[0], after=way[1])


def _ratio(before: float | None, after: float | None) -> float | None:
    return after / before if before and after is not None else None


def _structure(before: CollectivePlan, after: CollectivePlan) -> Iterator[Difference]:
    if len(before.channels) != len(after.channels):
        yield Difference(what="channels", before=str(len(before.channels)), after=str(len(after.channels)))
    yield from _sets("ring", map(_ring, before.channels), map(_ring, after.channels))
    yield from _sets("port", _ports(before), _ports(after))
    links = [[f"{hop.src} - {hop.dst}" for hop in plan.bottleneck] for plan in (before, after)]
    yield from _sets("bottleneck", links[0], links[1])
    yield from _sets("setting", map(_setting, before.settings), map(_setting, after.settings))


def _ring(channel: Channel) -> str:
    """Return a ring from rank 0 on: rings that begin elsewhere are the same."""
    ring = channel.ring
    start = ring.index(min(ring)) if ring else 0
    return " ".join(map(str, ring[start:] + ring[:start]))


def _ports(plan: CollectivePlan) -> set[str]:
    return {f"net{dev}" for channel in plan.channels for pair in channel.nics or () for dev in pair}


def _setting(setting: Setting) -> str:
    where = setting.node or ("" if setting.rank is None else f"rank {setting.rank}")
    return f"{setting.name}={setting.value}" + (f" ({where})" if where else "")


def _sets(what: str, before: Iterable[str], after: Iterable[str]) -> Iterator[Difference]:
    """Yield what stands on one side only, or more often on one."""
    old, new = Counter(before), Counter(after)
    for one in dict.fromkeys([*old, *new]):
        if old[one] != new[one]:
            yield Difference(what=what, before=_times(one, old[one]), after=_times(one, new[one]))


def _times(what: str, count: int) -> str:
    return "" if not count else what if count == 1 else f"{count} x {what}"
