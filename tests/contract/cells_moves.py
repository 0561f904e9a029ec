"""The cells of what moves arrays."""

from typing import Any

import numpy as np

from tests.contract.cells import LARGE, SHAPES, Cells
from tests.contract.expected import data, equal, stacked


class Moves(Cells):
    def moves(self) -> None:
        for shape in SHAPES:
            for dtype in self.moved:
                self.gather_on_all((shape), dtype)
                self.exchange_blocks((self.size, *shape), dtype)
                self.from_root(shape, dtype)
                if self.size > 1:
                    self.messages(shape, dtype)
        for dtype in ("i4", "f8", "?", self.moved[-1]):
            for row in ((), (3,), LARGE[:1], (0,)):
                for zero in (0, 1):  # rank r has r + zero rows: the first of all has none in the first turn
                    self.varying([rank + zero for rank in range(self.size)], row, dtype)
        whole = [data(rank, (6, 8), "f8") for rank in range(self.size)]
        gathered = self.comm.all_gather(self.put(whole[self.comm.rank]).T)
        self.check("strided all_gather", equal(self.get(gathered), np.stack([array.T for array in whole])))

    def gather_on_all(self, shape: tuple[int, ...], dtype: Any) -> None:
        comm, arrays = self.comm, self.inputs(shape, dtype)
        everything, mine = stacked(arrays), self.put(arrays[comm.rank])
        out = self.empty((self.size, *shape), dtype)
        self.check(f"all_gather {dtype} {shape}", equal(self.get(comm.all_gather(mine)), everything))
        self.check(f"all_gather {dtype} {shape} out", equal(self.get(comm.all_gather(mine, out=out)), everything))
        block, out = self.block_of_own(arrays[comm.rank], shape, dtype)
        self.check(f"all_gather {dtype} {shape} in place", equal(self.get(comm.all_gather(block, out=out)), everything))
        for root in range(self.size):
            block, out = self.block_of_own(arrays[comm.rank], shape, dtype)
            got = comm.gather(block if root % 2 else mine, root, out=out if comm.rank == root else None)
            name = f"gather {dtype} {shape} {root}"
            if comm.rank == root:
                self.check(name, equal(self.get(got), everything))
            else:
                self.check(name, "" if got is None else "a result beside the root")

    def block_of_own(self, mine: Any, shape: tuple[int, ...], dtype: Any) -> tuple[Any, Any]:
        """Return this rank's block of a gathered array, with its data in it, and that array."""
        blocks = np.zeros((self.size, *shape), dtype)
        blocks[self.comm.rank] = mine
        out = self.put(blocks)
        return out[self.comm.rank : self.comm.rank + 1].reshape(shape), out  # a view, also of a 0-d block

    def exchange_blocks(self, shape: tuple[int, ...], dtype: Any) -> None:
        comm, arrays = self.comm, self.inputs(shape, dtype)
        expected = stacked([array[comm.rank : comm.rank + 1].reshape(shape[1:]) for array in arrays])
        for way, source, out in self.ways(arrays[comm.rank]):
            got = comm.all_to_all(source, out=out)
            self.check(f"all_to_all {dtype} {shape} {way}", equal(self.get(got), expected))

    def from_root(self, shape: tuple[int, ...], dtype: Any) -> None:
        comm, arrays = self.comm, self.inputs(shape, dtype)
        for root in range(self.size):
            array = self.put(arrays[root]) if comm.rank == root else self.empty(shape, dtype)
            got = comm.broadcast(array, root)
            self.check(f"broadcast {dtype} {shape} {root}", equal(self.get(got), arrays[root]))
            self.check("broadcast", "" if got is array else "returned another array")
            blocks = data(root, (self.size, *shape), dtype)
            source: Any = self.put(blocks) if comm.rank == root else None
            out = self.empty(shape, dtype)
            if comm.rank == root and root % 2:  # in place
                out = source[root : root + 1].reshape(shape)
            got = comm.scatter(source, root, out=out)
            expected = blocks[comm.rank : comm.rank + 1].reshape(shape)
            self.check(f"scatter {dtype} {shape} {root}", equal(self.get(got), expected))

    def varying(self, counts: list[int], row: tuple[int, ...], dtype: Any) -> None:
        comm = self.comm
        pieces = [data(rank, (counts[rank], *row), dtype) for rank in range(self.size)]
        everything, mine = np.concatenate(pieces), pieces[comm.rank]
        name = f"{dtype} {counts} {row}"
        own = slice(sum(counts[: comm.rank]), sum(counts[: comm.rank + 1]))
        for way, given in (("exchanged", None), ("known", counts), ("in place", counts)):
            source: Any = self.put(mine)
            out: Any = None
            if way == "in place":
                filled = np.zeros_like(everything)
                filled[own] = mine
                out = self.put(filled)
                source = out[own]
            got = comm.all_gather_v(source, counts=given, out=out)
            self.check(f"all_gather_v {name} {way}", equal(self.get(got), everything))
        for root in range(self.size):
            given = counts if root % 2 else None
            got = comm.gather_v(self.put(mine), root, counts=given)
            said = equal(self.get(got), everything) if comm.rank == root else "" if got is None else "beside the root"
            self.check(f"gather_v {name} {root}", said)
            source = self.put(everything) if comm.rank == root else None  # ignored elsewhere
            out = self.empty(mine.shape, dtype)
            if comm.rank == root and root % 2:  # in place
                out = source[own]
            got = comm.scatter_v(source, counts, root, out=out)
            self.check(f"scatter_v {name} {root}", equal(self.get(got), mine))
        self.varying_exchange(counts, row, dtype)

    def varying_exchange(self, counts: list[int], row: tuple[int, ...], dtype: Any) -> None:
        """Rank s sends counts[r] rows to rank r, or none where s + r is odd."""
        comm = self.comm
        sent = [[counts[to] * ((me + to + 1) % 2) for to in range(self.size)] for me in range(self.size)]
        arrays = [data(me, (sum(sent[me]), *row), dtype) for me in range(self.size)]
        received = [sent[me][comm.rank] for me in range(self.size)]
        parts = [np.split(arrays[me], np.cumsum(sent[me])[:-1])[comm.rank] for me in range(self.size)]
        for given in (None, received):
            got = comm.all_to_all_v(self.put(arrays[comm.rank]), sent[comm.rank], recv_counts=given)
            said = equal(self.get(got), np.concatenate(parts))
            self.check(f"all_to_all_v {dtype} {counts} {row}", said)

    def messages(self, shape: tuple[int, ...], dtype: Any) -> None:
        """A ring of send and recv, and one of sendrecv."""
        comm, arrays = self.comm, self.inputs(shape, dtype)
        after, before = (comm.rank + 1) % self.size, (comm.rank - 1) % self.size
        mine, out = self.put(arrays[comm.rank]), self.empty(shape, dtype)
        tag = 5 if self.subject.tags else 0
        if comm.rank == 0:
            comm.send(mine, after, tag=tag)
            comm.recv(out, before, tag=tag)
        else:
            comm.recv(out, before, tag=tag)
            comm.send(mine, after, tag=tag)
        self.check(f"send {dtype} {shape}", equal(self.get(out), arrays[before]))
        out = self.empty(shape, dtype)
        got = comm.sendrecv(mine, after, out, before)
        self.check(f"sendrecv {dtype} {shape}", equal(self.get(got), arrays[before]))
