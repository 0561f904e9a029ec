"""The cells of operations in the background, and of communicators that are made of one another."""

from typing import Any

import numpy as np

from fabric_client import Communicator, CommunicatorError, InputError
from tests.contract.cells import LARGE, Cells
from tests.contract.expected import data, equal, stacked


class Works(Cells):
    def works(self) -> None:
        self.all_at_once()
        self.in_another_order()
        if self.size > 1 and self.subject.crosses:
            self.messages_cross()
        if self.subject.splits:
            self.families()

    def all_at_once(self) -> None:
        """Every operation with ``async_op``, all under way together, gives what the blocking one gives."""
        comm, counts = self.comm, [rank + 1 for rank in range(self.size)]
        mine = self.put(data(comm.rank, LARGE, "i4"))
        blocks = self.put(data(comm.rank, (self.size, 7), "i4"))
        rows = self.put(data(comm.rank, (counts[comm.rank], 2), "i4"))
        many = self.put(data(comm.rank, (sum(counts), 2), "i4"))
        root = self.size - 1
        calls: list[Any] = [
            lambda **way: comm.all_reduce(mine, **way),
            lambda **way: comm.reduce(mine, "max", root, **way),
            lambda **way: comm.reduce_scatter(blocks, **way),
            lambda **way: comm.reduce_scatter_v(many, counts, **way),
            lambda **way: comm.broadcast(mine if comm.rank == root else self.empty(LARGE, "i4"), root, **way),
            lambda **way: comm.all_gather(mine, **way),
            lambda **way: comm.all_gather_v(rows, counts=counts, **way),
            lambda **way: comm.all_gather_v(rows, **way),
            lambda **way: comm.gather(mine, root, **way),
            lambda **way: comm.gather_v(rows, root, counts=counts, **way),
            lambda **way: comm.scatter(blocks, root, out=self.empty((7,), "i4"), **way),
            lambda **way: comm.scatter_v(many, counts, root, out=self.empty((counts[comm.rank], 2), "i4"), **way),
            lambda **way: comm.all_to_all(blocks, **way),
            lambda **way: comm.all_to_all_v(many, counts, **way),
            lambda **way: comm.barrier(**way),
        ]  # fmt: skip
        works = [call(async_op=True) for call in calls]
        expected = [call() for call in calls]
        for number, (work, blocking) in enumerate(zip(works, expected, strict=True)):
            got = work.wait()
            said = "" if got is None is blocking else equal(self.get(got), self.get(blocking))
            self.check(f"async {number}", said)
            self.check(f"async {number}", "" if work.done() and work.exception() is None else "is not done")

    def in_another_order(self) -> None:
        """Works may be waited for in any order, another one on each rank; arrays that nobody holds stay alive."""
        comm = self.comm
        works = [comm.all_reduce(self.put(np.full(1000, turn, "i8")), async_op=True) for turn in range(20)]
        order = np.random.default_rng(comm.rank).permutation(len(works))
        for turn in order:
            expected = np.full(1000, turn * self.size, "i8")
            self.check(f"async all_reduce {turn}", equal(self.get(works[turn].wait()), expected))

    def messages_cross(self) -> None:
        """Everybody sends a long message before it receives, which blocking sends could not."""
        comm, arrays = self.comm, self.inputs((300_000,), "f4")
        after, before = (comm.rank + 1) % self.size, (comm.rank - 1) % self.size
        sent = comm.send(self.put(arrays[comm.rank]), after, async_op=True)
        out = self.empty((300_000,), "f4")
        got = comm.recv(out, before, async_op=True).wait(30)
        self.check("async recv", equal(self.get(got), arrays[before]))
        self.check("async recv", "" if got is out else "returned another array")
        self.check("async send", "" if sent.wait(30) is None else "gave a result")

    def families(self) -> None:
        comm = self.comm
        halves = comm.split(comm.rank % 2, self.size - comm.rank)  # in reverse order
        mates = [rank for rank in reversed(range(self.size)) if rank % 2 == comm.rank % 2]
        self.check("split", self.stands_for(halves, mates))
        alone = comm.split(None if comm.rank == 0 else comm.rank)
        self.check("split by none", self.stands_for(alone, [comm.rank] if comm.rank else None))
        copy = comm.dup()
        both = [comm.all_reduce(self.put(np.ones(9, "i4")), async_op=True), copy.barrier(async_op=True)]
        self.check("dup", self.stands_for(copy, list(range(self.size))))
        both[1].wait()
        self.check("dup", equal(self.get(both[0].wait()), np.full(9, self.size, "i4")))
        chosen = list(range(0, self.size, 2))[::-1]
        group = comm.subgroup(chosen)
        self.check("subgroup", self.stands_for(group, chosen if comm.rank in chosen else None))
        if halves is not None:
            halves.close()
            self.check("closed", "" if refuses(halves) else "a closed communicator works")
        self.check("after close", self.stands_for(comm, list(range(self.size))))

    def stands_for(self, comm: Communicator | None, ranks: list[int] | None) -> str:
        """Return what is wrong with a communicator of these ranks of the first one, or ""."""
        if comm is None or ranks is None:
            return "" if comm is None and ranks is None else f"{comm!r} for {ranks}"
        if comm.size != len(ranks) or ranks[comm.rank] != self.comm.rank:
            return f"{comm!r} for {ranks}"
        got = comm.all_gather(self.put(np.array([self.comm.rank])))
        return equal(self.get(got), stacked([np.array([rank]) for rank in ranks]))


def refuses(comm: Communicator) -> bool:
    """Tell whether a communicator is closed."""
    try:
        comm.barrier()
    except (CommunicatorError, InputError):
        return True
    return False
