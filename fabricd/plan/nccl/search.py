"""NCCL's search for channels: attempts at falling speeds and loosening limits, then at rising speeds.

First pass: from the highest speed that could be, loosen one limit after another, then lower the speed, until the
channels found would fill the widest GPU. Then channels are doubled where that helps, and in a second pass speeds are
raised again as far as the same number of channels allows. Source: NCCL 2.30, graph/search.cc, ncclTopoCompute.
"""

from dataclasses import dataclass

from fabricd.paths.nccl.kinds import PathKind
from fabricd.plan.nccl.explorer import Explorer
from fabricd.plan.nccl.graphs import Channel, Pattern, SearchGraph
from fabricd.plan.nccl.limits import Limits, is_split
from fabricd.plan.nccl.machine import Machine
from fabricd.plan.nccl.working import Budget, Working

_MAX_CHANNELS = 32
_MAX_NVLS_HEADS = 32
_NVLS_MIN_SM = 90
_STEPS = 1 << 14
_STEPS_SAME_CHANNELS = 1 << 8
_STEPS_IN_ALL = 1 << 19
#: NCCL goes on for as long as it has found nothing, which on odd machines would be minutes here. After so many steps an
#: attempt gets few, and what is found may differ from NCCL's: whether there is a solution, the first steps mostly tell.
_STEPS_WITHOUT_ANY = 1 << 19
_FALLBACK_SPEED = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The results of the three searches."""

    ring: SearchGraph
    tree: SearchGraph
    nvls: SearchGraph


def search_all(machine: Machine) -> Found:
    """Return what NCCL finds on a machine: rings, as many trees, and NVLS."""
    ring = search(machine, Pattern.RING)
    tree = search(machine, Pattern.BALANCED_TREE, channels=len(ring.channels))
    return Found(ring=ring, tree=tree, nvls=search(machine, Pattern.NVLS))


def search(machine: Machine, pattern: Pattern, *, channels: int | None = None) -> SearchGraph:
    """Return what NCCL finds for one pattern.

    Args:
        machine: where.
        pattern: RING, BALANCED_TREE or NVLS.
        channels: exactly so many; by default as many as are useful.
    """
    if pattern is Pattern.NVLS and not (machine.has_nvswitch and machine.sm >= _NVLS_MIN_SM):
        return SearchGraph(pattern=pattern)
    return _Search(machine, pattern, channels).run()


class _Search:
    def __init__(self, machine: Machine, pattern: Pattern, channels: int | None) -> None:
        self._machine = machine
        count = len(machine.gpus)
        self._with_nets = bool(machine.nets)
        self._same_channels = pattern is not Pattern.NVLS
        self._limits = Limits.of(machine, pattern)
        self.best = Working(
            pattern=Pattern.TREE if count == 1 and pattern is not Pattern.RING else pattern,
            min_channels=channels or 1,
            max_channels=channels or _MAX_CHANNELS,
            type_intra=self._limits.types_intra[0],
            type_inter=self._limits.types_inter[0],
            cross_nic=int(self._limits.cross_nic == 1),
            same_channels=self._same_channels,
        )
        if pattern is Pattern.NVLS:
            self.best.max_channels = min(_MAX_NVLS_HEADS, count)
            if not self._with_nets:
                self.best.min_channels = self.best.max_channels
        if pattern is Pattern.RING and self.best.min_channels == 1 and self.best.max_channels > 1 and is_split(machine):
            self.best.min_channels = 2
        self._explorer = Explorer(machine, self.best)
        self._budget = Budget(0)
        self._left_in_all = _STEPS_IN_ALL
        self._taken = 0  #: steps, of all attempts
        #: Steps left after each attempt so far.
        self._tried: dict[tuple[object, ...], int] = {}

    def run(self) -> SearchGraph:
        """Return the result."""
        best, machine = self.best, self._machine
        count = len(machine.gpus)
        total = machine.total_bandwidth
        if count > 1 and best.pattern is not Pattern.RING:
            devices = len(machine.table.system.devices)
            total *= devices / (devices - 1) if devices > 1 else 1
        index = 0
        while index < len(self._limits.speeds) - 1 and (
            self._limits.speeds[index] > machine.max_bandwidth or self._limits.speeds[index] * best.min_channels > total
        ):
            index += 1
        attempt = Working(Pattern.RING)
        attempt.copy_from(best)
        attempt.bandwidth_intra = attempt.bandwidth_inter = self._limits.speeds[index]
        self._descend(attempt, index)
        self._double()
        self._ascend(attempt)
        if not best.channels and best.pattern is not Pattern.NVLS:
            return self._fallback()
        return self._result()

    def _try(self, attempt: Working) -> bool:
        """Make one attempt; return whether nothing can be better."""
        in_haste = self._taken > _STEPS_WITHOUT_ANY and not self.best.channels
        self._budget = Budget(_STEPS_SAME_CHANNELS if attempt.same_channels or in_haste else _STEPS)
        self._left_in_all -= self._budget.left
        key = self._key(attempt)
        if key in self._tried:
            self._budget.left = self._tried[key]
        else:
            attempt.channels = 0
            self._taken += self._explorer.run(attempt, self._budget, in_haste=in_haste)
            self._tried[key] = self._budget.left
        enough = self.best.channels * self.best.bandwidth_inter >= self._machine.total_bandwidth
        return self._budget.perfect or enough

    def _key(self, attempt: Working) -> tuple[object, ...]:
        """Return what an attempt depends on. A limit between two types that no path has changes nothing.

        The same attempt again finds nothing better than it did, as solutions must be better to be taken.
        """
        return (
            attempt.pattern,
            attempt.bandwidth_intra,
            attempt.bandwidth_inter,
            max((kind for kind in self._limits.kinds_intra if kind <= attempt.type_intra), default=-1),
            max((kind for kind in self._limits.kinds_inter if kind <= attempt.type_inter), default=-1),
            attempt.cross_nic,
            attempt.same_channels,
            attempt.min_channels,
            attempt.max_channels,
        )

    def _descend(self, attempt: Working, index: int) -> None:
        """First pass: loosen limits in turn, each later one from the start of all earlier ones, then lower speed."""
        while not self._try(attempt):
            through_amd = self._machine.amd and attempt.type_intra == PathKind.SYS
            if attempt.same_channels and not through_amd:
                attempt.same_channels = False
                continue
            attempt.same_channels = self._same_channels
            self._left_in_all += self._budget.left
            if self._left_in_all < 0 and self.best.channels:
                return
            if self._loosen(attempt):
                continue
            following = index + 1
            if following == len(self._limits.speeds):
                return
            if self.best.channels and self._limits.speeds[following] / self.best.bandwidth_inter <= 0.49:
                return
            index = following
            attempt.bandwidth_intra = attempt.bandwidth_inter = self._limits.speeds[index]

    def _loosen(self, attempt: Working) -> bool:
        """Loosen the next limit; return false, with all as at the start, if none is left."""
        best, machine = self.best, self._machine
        if machine.sm >= 90 and attempt.pattern is Pattern.BALANCED_TREE:
            attempt.pattern = Pattern.TREE
            return True
        attempt.pattern = best.pattern
        limit = attempt.type_inter if self._with_nets else self._limits.types_intra[1]
        if attempt.type_intra < limit and (not best.channels or attempt.type_intra < best.type_intra):
            attempt.type_intra += 1
            if attempt.type_intra < PathKind.DIS:
                return True
        attempt.type_intra = self._limits.types_intra[0]
        better = not best.channels or attempt.type_inter < best.type_inter or attempt.type_inter < PathKind.PXN
        if self._with_nets and attempt.type_inter < self._limits.types_inter[1] and better:
            attempt.type_inter += 1
            if attempt.type_inter < PathKind.DIS:
                return True
        attempt.type_inter = self._limits.types_inter[0]
        crossable = best.pattern in (Pattern.RING, Pattern.BALANCED_TREE)
        if self._limits.cross_nic == 2 and attempt.cross_nic == 0 and crossable:
            attempt.cross_nic = 2
            return True
        attempt.cross_nic = int(self._limits.cross_nic == 1)
        return False

    def _double(self) -> None:
        """Use every channel twice at half the speed, where that makes them quick enough still."""
        best = self.best
        if not best.channels or best.pattern is Pattern.NVLS or best.bandwidth_intra < 25:
            return
        if self._machine.sm > 80 and best.bandwidth_intra < 50 and best.channels > 4:
            return
        count = min(2 * best.channels, best.max_channels)
        times = -(-count // best.channels)
        for place in range(best.channels, count):
            best.orders[place] = list(best.orders[place - best.channels])
            best.ways[place] = list(best.ways[place - best.channels])
        best.bandwidth_intra /= times
        best.bandwidth_inter /= times
        best.channels = count

    def _ascend(self, attempt: Working) -> None:
        """Second pass: raise the speed with the number of channels as it is."""
        best, speeds = self.best, self._limits.speeds
        attempt.copy_from(best)
        index = 0
        while speeds[index] > best.bandwidth_inter and index < len(speeds) - 1:
            index += 1
        attempt.bandwidth_intra = attempt.bandwidth_inter = speeds[index]
        attempt.min_channels = best.channels
        while index > 0 and (self._budget.left > 0 or self._budget.perfect):
            if best.pattern is Pattern.RING:
                index -= 1
                attempt.bandwidth_intra = attempt.bandwidth_inter = speeds[index]
            elif (
                best.pattern is Pattern.NVLS
                and attempt.bandwidth_inter == best.bandwidth_inter
                and attempt.bandwidth_inter < attempt.bandwidth_intra * 2
            ):
                attempt.min_channels = attempt.max_channels = best.channels
                index -= 1
                attempt.bandwidth_inter = speeds[index]
            elif (
                attempt.bandwidth_intra == best.bandwidth_intra
                and attempt.bandwidth_intra < attempt.bandwidth_inter * 2
            ):
                index -= 1
                attempt.bandwidth_intra = speeds[index]
            else:
                return
            self._try(attempt)

    def _fallback(self) -> SearchGraph:
        """Return one channel in the GPUs' own order, at a crawl."""
        machine, best = self._machine, self.best
        nets = None
        if self._with_nets:
            ends = (machine.gpus[0], machine.gpus[-1])
            first, last = (machine.table.named(machine.table.preferred_nets(gpu)[0]) for gpu in ends)
            nets = (first.key, last.key)
        return SearchGraph(
            pattern=best.pattern,
            channels=(Channel(ranks=tuple(gpu.rank for gpu in machine.gpus), nets=nets),),
            bandwidth_intra=_FALLBACK_SPEED,
            bandwidth_inter=_FALLBACK_SPEED if machine.all_nets else 0.0,
            type_intra=PathKind.SYS,
            type_inter=PathKind.SYS if machine.all_nets else PathKind.DIS,
            cross_nic=best.cross_nic,
            same_channels=best.same_channels,
            latency_inter=best.latency_inter,
            hops=best.hops,
        )

    def _result(self) -> SearchGraph:
        best, machine = self.best, self._machine
        channels = []
        for order, (way_in, way_out) in zip(best.orders[: best.channels], best.ways, strict=False):
            heads = order[:1] if best.pattern is Pattern.NVLS else order
            nets = (machine.nets[way_in].key, machine.nets[way_out].key) if self._with_nets else None
            channels.append(Channel(ranks=tuple(machine.gpus[gpu].rank for gpu in heads), nets=nets))
        return SearchGraph(
            pattern=best.pattern,
            channels=tuple(channels),
            bandwidth_intra=best.bandwidth_intra,
            bandwidth_inter=best.bandwidth_inter,
            type_intra=PathKind(best.type_intra),
            type_inter=PathKind(best.type_inter),
            cross_nic=best.cross_nic,
            same_channels=best.same_channels,
            latency_inter=best.latency_inter,
            hops=best.hops,
        )
