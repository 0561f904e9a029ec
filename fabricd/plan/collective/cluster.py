"""The rings of a whole job: each kind of machine packed once, whatever the number of machines."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, inf

from fabricd.plan.collective.bound import Kind, ring_bound
from fabricd.plan.collective.columns import Column, Segment, make_column
from fabricd.plan.collective.equal import GOOD, MAX_CHANNELS, Channels, at_one_speed, levelled
from fabricd.plan.collective.fabric import EngineRoutes, Fabric, FreeRoutes, Routes
from fabricd.plan.collective.lanes import Lane, cut_to, lanes_of, overlaid, rail_of
from fabricd.plan.collective.orders import EXACT_CYCLE, TABLE_PATH
from fabricd.plan.collective.rings import Packing, pack
from fabricd.plan.nccl.emulate import NcclPlan
from fabricd.plan.nccl.graphs import SearchGraph
from fabricd.plan.nccl.limits import fastest_channel

ENGINE, FREE = "engine", "free"


@dataclass(frozen=True, slots=True)
class Part:
    """One kind of machine, packed.

    Attributes:
        fabric: its links.
        routes: the ways that plans may take.
        known: NCCL's own rings on it.
        nccl: what they carry there, GB/s, each at NCCL's speed.
        count: number of machines.
        packing: rings.
    """

    fabric: Fabric
    routes: Routes
    known: tuple[Column, ...]
    nccl: float
    count: int
    packing: Packing

    @property
    def kind(self) -> Kind:
        """The form that bounds are computed from."""
        return Kind(self.fabric, self.count)


@dataclass(frozen=True, slots=True)
class EqualSpeed:
    """Channels of one speed over a whole job.

    Attributes:
        lanes: of each part.
        speed: of each channel, GB/s.
    """

    lanes: list[list[Lane]]
    speed: float

    @property
    def count(self) -> int:
        """Number of channels."""
        return len(self.lanes[0])


def packed_parts(nccl: NcclPlan, routes: str) -> list[Part]:
    """Return all kinds of machines of a job, packed.

    Args:
        nccl: what NCCL would do: its rings are among those to choose from.
        routes: ``ENGINE`` or ``FREE``.
    """
    several = len(nccl.members) > 1
    parts = []
    for number, (table, found) in enumerate(zip(nccl.tables, nccl.found, strict=True)):
        fabric = Fabric(table, between_nodes=several)
        engine = EngineRoutes(fabric)
        known = known_columns(engine, found.ring)
        ways: Routes = engine if routes == ENGINE else FreeRoutes(fabric)
        count = sum(member.part == number for member in nccl.members)
        speed = found.ring.bandwidth_inter if several else found.ring.bandwidth_intra
        limit = inf
        if fabric.ranks > (TABLE_PATH if several else EXACT_CYCLE):  # rings are then found without proof
            limit = ring_bound(Kind(fabric, count), alone=not several)
        packing = levelled(pack(ways, known, limit=limit), known, fabric.capacity)
        parts.append(Part(fabric, ways, tuple(known), speed * len(found.ring.channels), count, packing))
    return parts


def known_columns(engine: EngineRoutes, graph: SearchGraph) -> list[Column]:
    """Return NCCL's rings on one machine as columns; those that come in crossing pairs as one column each pair."""
    places = {gpu.rank: place for place, gpu in enumerate(engine.fabric.gpus)}
    ports: dict[int, int] = {}
    for place, net in enumerate(engine.fabric.nets):
        ports.setdefault(net.key, place)
    segments = []
    for channel in graph.channels:
        entry, leave = (ports[net] for net in channel.nets) if channel.nets else (-1, -1)
        segments.append(Segment(tuple(places[rank] for rank in channel.ranks), entry, leave))
    if graph.cross_nic == 2 and len(segments) % 2 == 0:
        return [make_column(engine, segments[at : at + 2]) for at in range(0, len(segments), 2)]
    return [make_column(engine, [segment]) for segment in segments]


def joined(parts: Sequence[Part]) -> list[list[Lane]]:
    """Return the lanes of all parts: every ring crosses every machine, so the weakest kind decides for all."""
    lanes = [lanes_of(part.packing.columns, part.packing.weights) for part in parts]
    if len(parts) == 1:
        return lanes
    total = min(part.packing.total for part in parts)
    if total <= 0:
        return [[] for _ in parts]
    rails = [[rail_of(part.fabric, lane.even.entry) for lane in one] for part, one in zip(parts, lanes, strict=True)]
    return overlaid([cut_to(one, total) for one in lanes], rails)


def joined_at_one_speed(parts: Sequence[Part]) -> EqualSpeed | None:
    """Return the channels of one speed that carry most; None if the parts share no number of channels.

    Few fast ones are repeated, so that none is faster than what NCCL's search would try.
    """
    total = min(part.packing.total for part in parts)
    best: EqualSpeed | None = None
    for pairs in (False, True) if parts[0].fabric.nets else (False,):
        if not pairs and any(column.value > 1 for part in parts for column in part.packing.columns):
            continue
        found = _at_one_speed(parts, pairs=pairs)
        if found is not None and (best is None or found.speed * found.count > best.speed * best.count):
            best = found
        if best is not None and best.speed * best.count >= GOOD * total:
            break
    return best


def _at_one_speed(parts: Sequence[Part], *, pairs: bool) -> EqualSpeed | None:
    options = [at_one_speed(part.routes, part.packing, part.known, pairs=pairs) for part in parts]
    shared = set.intersection(*(set(one) for one in options))
    if not shared:
        return None

    def total(count: int) -> float:
        return count * min(one[count].speed for one in options)

    count = max(shared, key=lambda count: (round(total(count), 9), -count))
    speed = min(one[count].speed for one in options)
    several = bool(parts[0].fabric.nets)
    fastest = min(fastest_channel(gpu.sm, between_nodes=several) for part in parts for gpu in part.fabric.gpus)
    times = max(1, min(MAX_CHANNELS // count, ceil(speed / fastest)))
    columns = _aligned(parts, [one[count] for one in options])
    return EqualSpeed([lanes_of(one, [speed / times] * len(one)) * times for one in columns], speed / times)


def _aligned(parts: Sequence[Part], chosen: Sequence[Channels]) -> list[list[Column]]:
    """Return the columns of all parts in such an order that as many as can be stand beside others of their rail."""
    rails = [
        [rail_of(part.fabric, column.segments[0].entry) for column in one.columns]
        for part, one in zip(parts, chosen, strict=True)
    ]
    common = Counter(rails[0])
    for names in rails[1:]:
        common &= Counter(names)
    aligned = []
    for one, names in zip(chosen, rails, strict=True):
        first: dict[str, list[Column]] = {}
        rest: list[Column] = []
        for column, name in zip(one.columns, names, strict=True):
            same = first.setdefault(name, [])
            (same if len(same) < common[name] else rest).append(column)
        aligned.append([column for name in common for column in first.get(name, ())] + rest)
    return aligned
