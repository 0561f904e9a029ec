"""What a plan of one collective is made of: packed rings, what no schedule can exceed, and NCCL's own plan."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from fabricd.errors import InputError
from fabricd.graph.nccl_xml_types import NcclTopology
from fabricd.model.collective import Channel, Prediction
from fabricd.model.path import Hop
from fabricd.paths.nccl.environment import NcclEnvironment
from fabricd.paths.nccl.system import HOST_SHIFT
from fabricd.paths.nccl.view import HOP_NAMES, node_names
from fabricd.plan.collective.bound import Bound, bound, reducing_bound
from fabricd.plan.collective.cluster import ENGINE, FREE, EqualSpeed, Part, joined, joined_at_one_speed, packed_parts
from fabricd.plan.collective.fabric import Fabric, Floats
from fabricd.plan.collective.lanes import Lane, channels_over, off_rails
from fabricd.plan.collective.machines import Machines, ranks_of
from fabricd.plan.nccl.emulate import plan_cluster
from fabricd.plan.nccl.job import COLLECTIVES
from fabricd.plan.predict import Calibration, conditions_of, merge_ports, predict

ROUTES = (ENGINE, FREE)
#: A plan names the tightest links, not all of a rack's.
_MAX_BOTTLENECKS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What is to be planned.

    Attributes:
        topologies: one for each kind of machine; the ranks are the GPUs that have one in the file.
        order: the kind of each machine, in the order of the ranks.
        names: of the machines; empty for a single one, whose ranks need no prefix.
        ranks: the GPU of each rank; by default named by its machine and its rank in the file.
        collective: one of ``COLLECTIVES``.
        size: bytes of the larger of the whole send and receive buffer.
        routes: ``ENGINE`` or ``FREE``, see ``fabricd.plan.collective.fabric``.
        environment: NCCL's settings to assume.
        virtual: whether the machines are, where that is known; for the prediction.
        calibration: results of these machines, likewise.
    """

    topologies: Sequence[NcclTopology]
    order: Sequence[int]
    names: Sequence[str] = ()
    ranks: Sequence[str] = ()
    collective: str = "all_reduce"
    size: int = 1 << 30
    routes: str = ENGINE
    environment: NcclEnvironment | None = None
    virtual: bool | None = None
    calibration: Calibration | None = None

    @classmethod
    def of(cls, machines: Machines) -> "Request":
        """Return the question about a job's machines, with all else as by default."""
        return cls(topologies=machines.topologies, order=machines.order, names=machines.names, ranks=machines.ranks)

    def check(self) -> None:
        """Raise InputError for a collective or routes that do not exist."""
        for what, value, known in (
            ("collective", self.collective, COLLECTIVES),
            ("model of routes", self.routes, ROUTES),
        ):
            if value not in known:
                raise InputError(f"no {what} {value[:40]!r}", hint=f"one of {', '.join(known)}")


class Planner:
    """Answers one request; what is not asked for is not computed.

    Attributes:
        request: what was asked.
        nccl: what NCCL would do.
    """

    def __init__(self, request: Request) -> None:
        """Emulate NCCL.

        Raises:
            InputError: a file that NCCL fails on, an unknown collective, machines without a port to each other.
        """
        request.check()
        self.request = request
        self.nccl = plan_cluster(request.topologies, request.order, environment=request.environment)
        if len(self.nccl.members) > 1 and not all(table.system.nets for table in self.nccl.tables):
            raise InputError("a machine has no network port, so no ring leaves it", hint="NCCL would fail, too")

    @property
    def alone(self) -> bool:
        """Whether there is but one rank, which has nobody to talk to."""
        return self.nccl.job.ranks == 1

    @cached_property
    def engine_parts(self) -> list[Part]:
        """All kinds of machines, packed with NCCL's routes."""
        return packed_parts(self.nccl, ENGINE)

    @cached_property
    def parts(self) -> list[Part]:
        """All kinds of machines, packed with the routes asked for."""
        return self.engine_parts if self.request.routes == ENGINE else packed_parts(self.nccl, FREE)

    @cached_property
    def bound(self) -> Bound:
        """What no schedule exceeds."""
        return bound([part.kind for part in self.parts], self.request.collective)

    @cached_property
    def equal_speed(self) -> EqualSpeed | None:
        """Channels that NCCL could be given; None if some rank cannot be reached."""
        return joined_at_one_speed(self.engine_parts)

    @property
    def weakest(self) -> Part:
        """The kind of machine that holds all rings back."""
        return min(self.parts, key=lambda part: part.packing.total)

    @cached_property
    def channels(self) -> tuple[Channel, ...]:
        """The packed rings."""
        return channels_over(self.nccl.members, self._fabrics, self.lanes)

    @cached_property
    def lanes(self) -> list[list[Lane]]:
        """The parts of the rings on each kind of machine."""
        return joined(self.parts)

    @property
    def _fabrics(self) -> list[Fabric]:
        return [part.fabric for part in self.parts]

    @property
    def off_rails(self) -> float:
        """The share of the rings that changes rails between machines."""
        return off_rails(self.nccl.members, self._fabrics, self.lanes)

    @cached_property
    def equal_channels(self) -> tuple[Channel, ...]:
        """The rings of one speed."""
        if self.equal_speed is None:
            return ()
        return channels_over(self.nccl.members, [part.fabric for part in self.engine_parts], self.equal_speed.lanes)

    @cached_property
    def nccl_channels(self) -> tuple[Channel, ...]:
        """NCCL's own rings."""
        count = self.nccl.channels.searched
        speed = self.nccl.ring_bandwidth / count * 1e9
        mask = (1 << HOST_SHIFT) - 1
        made = []
        for number in range(count):
            nets = [pair for pair in self.nccl.ring_nets(number) if pair is not None]
            nics = tuple((entry & mask, leave & mask) for entry, leave in nets)
            ring = self.nccl.channels.rings[number]
            made.append(Channel(ring=ring, nics=nics or None, bandwidth_bytes_per_second=speed))
        return tuple(made)

    @cached_property
    def predictions(self) -> tuple[Prediction | None, Prediction | None]:
        """What NCCL's own rings will take, and what rings of one speed of ours will; the ports of a card as one."""
        request = self.request
        merged = [merge_ports(topology) for topology in request.topologies]
        basis = self.nccl
        if any(one != other for one, other in zip(merged, request.topologies, strict=True)):
            basis = plan_cluster(merged, request.order, environment=request.environment)
        conditions, operation = conditions_of(merged[0], virtual=request.virtual), COLLECTIVES[request.collective]
        theirs = predict(basis, conditions, operation, request.size, calibration=request.calibration)
        if self.equal_speed is None:
            return theirs, None
        total = self.equal_speed.speed * self.equal_speed.count * 1e9
        ours = predict(basis, conditions, operation, request.size, calibration=request.calibration, bandwidth=total)
        return theirs, ours

    def rank_names(self) -> tuple[str, ...]:
        """Return the GPU of each rank."""
        if self.request.ranks:
            return tuple(self.request.ranks)
        prefixes = [f"{name}/" for name in self.request.names] or [""] * len(self.request.order)
        own = [[f"gpu{rank}" for rank in ranks_of(topology)] for topology in self.request.topologies]
        return tuple(
            f"{prefix}{gpu}" for prefix, kind in zip(prefixes, self.request.order, strict=True) for gpu in own[kind]
        )

    @cached_property
    def reduced_in_network(self) -> float:
        """What bounds an all-reduce if NVSwitches reduce, GB/s of bus bandwidth."""
        return reducing_bound([part.kind for part in self.parts]).busbw

    @cached_property
    def reduced_by_network(self) -> float | None:
        """What bounds an all-reduce if the network reduces (SHARP), GB/s; None unless every port can."""
        nets = [net for table in self.nccl.tables for net in table.system.nets]
        if len(self.nccl.members) < 2 or not nets or not all(net.coll for net in nets):
            return None
        return reducing_bound([part.kind for part in self.parts], network=True).busbw

    def machine_of(self, part: Part) -> str:
        """Return the name of the first machine of a kind."""
        kind = next(kind for kind, one in enumerate(self.parts) if one is part)
        place = next(place for place, member in enumerate(self.nccl.members) if member.part == kind)
        names = self.request.names
        return names[min(place, len(names) - 1)] if names else f"machine {place}"

    def bottleneck(self) -> tuple[Hop, ...]:
        """Return the links that hold the rings back."""
        return self.tightest(self.weakest, self.weakest.packing.prices)

    def tightest(self, part: Part, prices: Floats) -> tuple[Hop, ...]:
        """Return the links of a machine that have a price, the one that matters most first."""
        worth = prices * part.fabric.capacity
        order = (-worth.round(9)).argsort(kind="stable")[:_MAX_BOTTLENECKS]
        return self.hops(part, [int(link) for link in order if worth[link] > 1e-6 * worth.sum()])

    def hops(self, part: Part, links: Sequence[int]) -> tuple[Hop, ...]:
        """Return links of a machine by name, where machines differ with its own name before."""
        table = part.fabric.table
        machine = f"{self.machine_of(part)}/" if len(self.parts) > 1 else ""
        names = node_names(table, frozenset())
        found = [part.fabric.links[link] for link in links]
        return tuple(
            Hop(
                src=machine + names[link.source.position],
                dst=machine + names[link.target.position],
                link=HOP_NAMES[link.type],
                bandwidth_bytes_per_second=round(link.bandwidth * 1e9, 3),
                detail=link.type.name,
            )
            for link in found
        )
