"""One attempt of NCCL's search: channels one after another, depth first, over what is left on each link.

NCCL recurses as deep as there are channels times GPUs; here each level is a generator and ``run`` keeps the stack, so
that neither the interpreter's limit nor the size of a machine matters. A step is an entry into the recursion at a GPU
or at a complete channel; the budget counts steps, not time, so that every rank finds the same.

Source: NCCL 2.30, graph/search.cc.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeAlias

from fabricd.paths.nccl.kinds import PathKind
from fabricd.plan.nccl.graphs import Pattern
from fabricd.plan.nccl.machine import Machine, Track
from fabricd.plan.nccl.port_rules import head_beside, may_enter, may_leave, same_port
from fabricd.plan.nccl.residual import THOUSANDTHS, Residual
from fabricd.plan.nccl.working import Budget, Working

_TREES = (Pattern.BALANCED_TREE, Pattern.SPLIT_TREE, Pattern.TREE)
#: Steps for trying the GPUs in their own order before anything else.
_FIRST_ORDER_STEPS = 1 << 10
_ABSENT = -1

_Level: TypeAlias = "Iterator[_Level]"


class Explorer:
    """Runs attempts on one machine; the best solution is kept in ``best``."""

    def __init__(self, machine: Machine, best: Working) -> None:
        self._machine = machine
        self._residual = Residual(machine)
        self._count = len(machine.gpus)
        self.best = best
        self._now = best
        self._first_order_steps = _FIRST_ORDER_STEPS
        self._steps = 0  #: of this attempt
        self._intra = self._inter = 0  #: a channel's bandwidth, thousandths of a GB/s
        self._used: list[bytearray] = []
        #: Steps and hops of what was tried to the end in this attempt.
        self._seen: dict[tuple[object, ...], tuple[int, int]] = {}

    def run(self, attempt: Working, budget: Budget, *, in_haste: bool) -> int:
        """Search from ``attempt``'s settings; its ``channels`` must be 0. Return the steps that it took.

        Args:
            attempt: the settings.
            budget: of steps.
            in_haste: the GPUs in their own order get no more of them.
        """
        self._first_order_steps = min(_FIRST_ORDER_STEPS, budget.left) if in_haste else _FIRST_ORDER_STEPS
        self._steps = 0
        self._now = attempt
        attempt.orders = [[_ABSENT] * self._count for _ in range(attempt.max_channels)]
        attempt.ways = [[_ABSENT, _ABSENT] for _ in range(attempt.max_channels)]
        self._used = [bytearray(self._count) for _ in range(attempt.max_channels)]
        self._seen.clear()
        self._intra = round(attempt.bandwidth_intra * THOUSANDTHS)
        self._inter = round(attempt.bandwidth_inter * THOUSANDTHS)
        stack = [self._channel(budget)]
        while stack:
            deeper = next(stack[-1], None)
            if deeper is None:
                stack.pop()
            else:
                stack.append(deeper)
        return self._steps

    def _channel(self, budget: Budget) -> _Level:
        """Try every way to make the next channel."""
        now, machine = self._now, self._machine
        ring = now.pattern is Pattern.RING
        if machine.between_nodes and machine.nets:
            exit_at = self._count - 1 if ring else 1 if now.pattern is Pattern.SPLIT_TREE else 0
            yield from self._from_nets(budget, exit_at)
            return
        close_at = self._count - 1 if ring else _ABSENT
        if now.pattern is Pattern.NVLS:
            yield from self._enter(budget, now.channels, _ABSENT, _ABSENT, "")
            return
        if now.channels == 0:
            yield from self._enter(budget, 0, _ABSENT, close_at, "index")
        else:
            yield from self._enter(budget, now.orders[now.channels - 1][0], _ABSENT, close_at, "replay")
        if not now.same_channels or now.channels == 0:
            for gpu in range(self._count):
                yield from self._enter(budget, gpu, _ABSENT, close_at, "")

    def _from_nets(self, budget: Budget, exit_at: int) -> _Level:
        now, machine, residual = self._now, self._machine, self._residual
        whole = int(now.bandwidth_inter) * THOUSANDTHS
        nets = machine.net_choices(now.type_inter)
        for place in range(len(nets)):
            net = nets[(now.channels + place) % len(nets)]
            if residual.nets[net] < whole or not may_enter(now, machine.nets, net):
                continue
            now.ways[now.channels][0] = net
            now.latency_inter = machine.nets[net].latency
            residual.take_port(net, whole)
            if now.pattern is Pattern.NVLS:
                head = head_beside(now, machine.local_gpu[net], len(nets))
                if head is not None:
                    yield from self._enter_by(budget, net, head, exit_at, "")
            else:
                yield from self._starts(budget, net, exit_at)
            residual.take_port(net, -whole)
            if now.pattern is Pattern.NVLS and head is not None:
                return

    def _starts(self, budget: Budget, net: int, exit_at: int) -> _Level:
        """Try the GPUs by which a channel may enter from a port."""
        now, machine = self._now, self._machine
        if now.channels > 0 and now.same_channels:
            yield from self._enter_by(budget, net, now.orders[now.channels - 1][0], exit_at, "replay")
            return
        if now.channels == 0 and not machine.has_nvswitch:
            first = Budget(self._first_order_steps)
            yield from self._enter_by(first, net, 0, exit_at, "index")
            if first.perfect:
                budget.end_perfect()
        local = machine.local_gpu[net]
        if local != _ABSENT:
            yield from self._enter_by(budget, net, local, exit_at, "")
        for gpu in machine.local_gpus[net]:
            if gpu != local:
                yield from self._enter_by(budget, net, gpu, exit_at, "")

    def _enter_by(self, budget: Budget, net: int, gpu: int, exit_at: int, forced: str) -> _Level:
        track, back = self._machine.inward[net][gpu], self._machine.outward[gpu][net]
        if self._follow(track, back, self._now.type_inter, self._inter):
            yield from self._enter(budget, gpu, exit_at, _ABSENT, forced)
            self._undo(track, self._inter)

    def _enter(self, budget: Budget, gpu: int, exit_at: int, close_at: int, forced: str) -> _Level:
        used = self._used[self._now.channels]
        used[gpu] ^= 1
        yield self._gpu(budget, gpu, 0, exit_at, close_at, forced)
        used[gpu] ^= 1

    def _gpu(self, budget: Budget, gpu: int, step: int, exit_at: int, close_at: int, forced: str) -> _Level:
        """Put a GPU at a place of the channel and go on from it."""
        if budget.left <= 0:
            return
        budget.left -= 1
        self._steps += 1
        now = self._now
        if step == self._count:
            yield from self._complete(budget)
            return
        now.orders[now.channels][step] = gpu
        if step == exit_at:
            yield from self._exit(budget, gpu, step, close_at, forced)
        elif now.pattern is Pattern.NVLS:
            yield from self._through_nvswitch(budget, gpu)
        elif step < self._count - 1:
            between, used = self._machine.between, self._used[now.channels]
            for other in self._next(gpu, step, exit_at, forced):
                track = between[gpu][other]
                if self._follow(track, between[other][gpu], now.type_intra, self._intra):
                    used[other] ^= 1
                    yield self._gpu(budget, other, step + 1, exit_at, close_at, forced)
                    used[other] ^= 1
                    self._undo(track, self._intra)
        elif step == close_at:
            first = now.orders[now.channels][0]
            track = self._machine.between[gpu][first]
            if self._follow(track, self._machine.between[first][gpu], now.type_intra, self._intra):
                yield self._gpu(budget, first, step + 1, exit_at, _ABSENT, forced)
                self._undo(track, self._intra)
        else:
            yield self._gpu(budget, gpu, self._count, _ABSENT, _ABSENT, forced)

    def _complete(self, budget: Budget) -> _Level:
        now = self._now
        now.channels += 1
        if now.beats(self.best, gpus=self._count):
            self.best.copy_from(now)
            if now.channels == now.max_channels:
                budget.end_perfect()
        if now.channels < now.max_channels:
            yield from self._further(budget)
        now.channels -= 1

    def _further(self, budget: Budget) -> _Level:
        """Try the next channel, unless the same has been tried before: then only count its steps.

        What follows depends on what is left on the links and on little else, and many orders of the GPUs leave the
        same. Nothing new can come of it: the best solution is at least what was found there the first time, unless
        the way here was shorter.
        """
        now = self._now
        state = self._state()
        seen = self._seen.get(state)
        if seen is not None and now.hops >= seen[1]:
            budget.left = max(0, budget.left - seen[0])
            return
        before, hops = budget.left, now.hops
        yield from self._channel(budget)
        if budget.left > 0:
            self._seen[state] = (before - budget.left, hops)

    def _state(self) -> tuple[object, ...]:
        """Return all that the search for the next channel depends on."""
        now, residual = self._now, self._residual
        last = now.channels - 1
        replayed = tuple(now.orders[last]) if now.same_channels else ()
        crossed = tuple(now.ways[last]) if now.cross_nic == 2 else ()
        heads = frozenset(order[0] for order in now.orders[: now.channels]) if now.pattern is Pattern.NVLS else ()
        return (now.channels, tuple(residual.links), tuple(residual.nets), replayed, crossed, heads)

    def _next(self, gpu: int, step: int, exit_at: int, forced: str) -> Sequence[int]:
        """Return the GPUs to try next, most promising first."""
        now, machine = self._now, self._machine
        if forced == "index":
            return (step + 1,)
        if forced:
            return (now.orders[now.channels - 1][step + 1],)
        used = self._used[now.channels]
        if machine.has_nvswitch:
            return [other for other in self._neighbours(gpu) if not used[other] and machine.between[gpu][other].hops]
        found = [other for other in machine.order[gpu] if not used[other]]
        if exit_at != _ABSENT and len(found) > 1:
            left, net = self._residual.links, now.ways[now.channels][0]
            bandwidth, hops = machine.net_bandwidth[net], machine.net_hops[net]
            keys = {
                other: (-bandwidth[other], -(machine.pci_left(other, left) // THOUSANDTHS), hops[other])
                for other in found
            }
            found.sort(key=keys.__getitem__)
            if exit_at != step + 1 and len({machine.nearness[gpu][other] for other in found}) == 1:
                found.reverse()
        return found

    def _neighbours(self, gpu: int) -> Iterable[int]:
        """Return the only GPUs to try where there is an NVSwitch: those beside in order of index."""
        before, after = (gpu - 1) % self._count, (gpu + 1) % self._count
        if self._now.pattern is Pattern.RING:
            return dict.fromkeys((before, after))
        return (after,) if self._now.pattern is Pattern.TREE else dict.fromkeys((after, before))

    def _exit(self, budget: Budget, gpu: int, step: int, close_at: int, forced: str) -> _Level:
        """Leave to the network, then go on inside the machine. Two GPUs of a balanced tree leave by halves."""
        now, machine = self._now, self._machine
        ways = now.ways[now.channels]
        balanced = now.pattern is Pattern.BALANCED_TREE
        amount = self._inter // 2 if balanced else self._inter
        for net in machine.net_choices(now.type_inter, gpu):
            if not may_leave(now, machine.nets, net) or (
                balanced and step > 0 and not same_port(machine.nets, net, ways[1])
            ):
                continue
            track = machine.outward[gpu][net]
            if self._follow(track, machine.inward[net][gpu], now.type_inter, amount):
                ways[1] = net
                again = 1 if balanced and step == 0 else _ABSENT
                yield self._gpu(budget, gpu, step, again, close_at, forced)
                self._undo(track, amount)

    def _through_nvswitch(self, budget: Budget, head: int) -> _Level:
        """All GPUs to and from the NVSwitch, the head twice as much."""
        machine, type_intra = self._machine, self._now.type_intra
        ways = [*zip(machine.down, machine.up, strict=True), *zip(machine.up, machine.down, strict=True)]
        done: list[tuple[Track, int]] = []
        for place, (track, back) in enumerate(ways):
            weight = 2 if place % self._count == head else 1
            if not self._follow(track, back, type_intra, self._intra, weight=weight):
                break
            done.append((track, weight))
        if len(done) == len(ways):
            yield self._gpu(budget, head, self._count, _ABSENT, _ABSENT, "")
        for track, weight in reversed(done):
            self._undo(track, self._intra, weight=weight)

    def _follow(self, track: Track, back: Track, limit: int, amount: int, *, weight: int = 1) -> bool:
        """Take a channel's share from every link of a path, if its type is allowed and all have enough.

        A tree needs the type on the way back too. With a weight other than 1 the type does not count.
        """
        now = self._now
        if track.kind >= PathKind.DIS:
            return False
        if weight == 1 and (track.kind > limit or (back.kind > limit and now.pattern in _TREES)):
            return False
        if not self._residual.take(track, weight * amount):
            return False
        now.hops += weight * track.hops
        return True

    def _undo(self, track: Track, amount: int, *, weight: int = 1) -> None:
        self._residual.give(track, weight * amount)
        self._now.hops -= weight * track.hops
