"""One rank of random programs: every rank plays the same one, drawn from a seed, and knows what must come of it.

Collectives of all kinds and messages, blocking and in the background, on several communicators that come and go, in two
threads at times; works are waited for in any order, interrupted, or dropped; wrong arguments come on one rank alone.

    python -m tests.contract.rank_programs mpi SEED PROGRAMS SECONDS [FIRST]

Prints {"wrong": [...], "checked": N, "programs": N, ...} as JSON.
"""

import ctypes
import faulthandler
import gc
import json
import resource
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from fabric_client import Communicator
from fabric_client.engine.piece_size import PieceSize
from tests.contract.expected import forget
from tests.contract.scopes import Interrupts, Scope, in_threads
from tests.contract.subject import SUBJECTS, Subject

_STEPS = 25
_MOST_OPEN = 5
_PIECE = PieceSize(64 << 10, "so that arrays of a test are cut")
_WHOLE = PieceSize(16 << 20, "so that none is")
_HANG_SECONDS = 60.0
_LOOKS, _LOOK_SECONDS = 10, 0.005
_MALLINFO2 = (
    "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost",
)  # fmt: skip


class Program:
    """One program: a communicator of its own, steps, and its end.

    Args:
        world: all ranks.
        subject: the engine.
        seed: of the program, the same on every rank.
        interrupts: ring while works are waited for; None: nothing does.
    """

    def __init__(self, world: Communicator, subject: Subject, seed: list[int], interrupts: Interrupts | None) -> None:
        self._world = world
        self._subject = subject
        self._seed = seed
        self._interrupts = interrupts
        self._own = np.random.default_rng([*seed, 1, world.rank])
        #: By name, on every rank alike: its ranks in the world's numbers, what it was made of, and its scope here.
        self._open: dict[str, tuple[list[int], str, Scope | None]] = {}
        self.wrong: list[str] = []
        self.checked = 0

    def run(self) -> None:
        """Play it."""
        self._add("0", list(range(self._world.size)), "", self._world.dup())
        for step in range(_STEPS):
            draw = np.random.default_rng([*self._seed, 0, step])
            name = sorted(self._open)[int(draw.integers(len(self._open)))]
            self._step(name, draw, f"{step}")
        for name in sorted(self._open, key=len, reverse=True):
            self._close(name)

    def _step(self, name: str, draw: np.random.Generator, step: str) -> None:
        kind = draw.random()
        scope = self._open[name][2]
        if kind < 0.08 and len(self._open) < _MOST_OPEN:
            self._family(name, draw, step)
        elif kind < 0.12 and name != "0":
            self._close(name)
        elif kind < 0.18 and self._subject.crosses:
            self._two_threads(name, draw, step)
        elif scope is not None:
            scope.name = f"{self._seed} step {step} on {name}"
            scope.step(draw)

    def _add(self, name: str, ranks: list[int], parent: str, comm: Communicator | None) -> None:
        scope = None
        if comm is not None:
            scope = Scope(comm, self._subject, name, self._own, self._interrupts)
            if comm.size != len(ranks) or ranks[comm.rank] != self._world.rank:
                self.wrong.append(f"{self._seed} {name}: {comm!r} for {ranks}")
        self._open[name] = ranks, parent, scope

    def _family(self, name: str, draw: np.random.Generator, step: str) -> None:
        """Make communicators of one."""
        ranks, _, scope = self._open[name]
        comm = None if scope is None else scope.comm
        kind = int(draw.integers(3))
        if kind == 0:
            self._add(f"{name}/{step}", ranks, name, None if comm is None else comm.dup())
        elif kind == 1:
            chosen = [int(rank) for rank in draw.permutation(len(ranks))[: 1 + int(draw.integers(len(ranks)))]]
            self._add(
                f"{name}/{step}", [ranks[one] for one in chosen], name, None if comm is None else comm.subgroup(chosen)
            )
        else:
            colors, keys = draw.integers(-1, 2, len(ranks)).tolist(), draw.integers(0, 3, len(ranks)).tolist()
            made = None
            if comm is not None:
                color = colors[comm.rank]
                made = comm.split(None if color < 0 else color, keys[comm.rank])
            for color in sorted({color for color in colors if color >= 0}):
                order = sorted((keys[one], one) for one in range(len(ranks)) if colors[one] == color)
                mine = comm is not None and colors[comm.rank] == color
                self._add(f"{name}/{step}.{color}", [ranks[one] for _, one in order], name, made if mine else None)

    def _two_threads(self, name: str, draw: np.random.Generator, step: str) -> None:
        """Two threads: collectives on two communicators, or collectives beside messages on one."""
        scope = self._open[name][2]
        if scope is None:
            return
        both = bool(draw.integers(2)) or scope.comm.size == 1
        seeds = [int(seed) for seed in draw.integers(1 << 40, size=2)]
        comm = scope.comm.dup() if both else scope.comm
        scopes = [
            Scope(
                one,
                self._subject,
                f"{self._seed} step {step} thread",
                np.random.default_rng([seed, self._world.rank]),
                None,
            )
            for one, seed in zip((scope.comm, comm), seeds, strict=True)
        ]

        def play(place: int) -> None:
            with np.errstate(over="ignore"):
                for turn in range(4):
                    thread_draw = np.random.default_rng([seeds[place], turn])
                    if both or place == 0:
                        scopes[place].step(thread_draw, messages=both)
                    else:
                        scopes[place].messages(thread_draw)
                scopes[place].finish()

        in_threads(lambda: play(0), lambda: play(1))
        if both:
            comm.close()
            scopes[1].closed()
        scope.adopt(scopes[0])
        self._take(scopes[1])

    def _close(self, name: str) -> None:
        """Close one, and with it what was made of it."""
        gone = [one for one in self._open if one == name or one.startswith(f"{name}/")]
        scopes = [scope for one in gone if (scope := self._open[one][2]) is not None]
        for scope in scopes:
            if self._own.random() < 0.7:
                scope.finish()
        for one in sorted(gone, key=len, reverse=True):  # ranks that are in none of the larger ones close the smaller
            scope = self._open.pop(one)[2]
            if scope is not None:
                scope.comm.close()
        for scope in scopes:
            scope.finish()
            scope.closed()
            self._take(scope)

    def _take(self, scope: Scope) -> None:
        self.wrong += scope.wrong
        self.checked += scope.checked
        scope.wrong, scope.checked = [], 0


def cut_from(engine: Any, size: PieceSize) -> None:
    """Have the MPI engine, and those that are made of it from now on, cut what is larger."""
    engine._segments.size, engine._in_one_go = size, size.nbytes


class _Allocated(ctypes.Structure):
    """What glibc's ``mallinfo2`` returns, in bytes of all arenas together."""

    _fields_ = [(name, ctypes.c_size_t) for name in _MALLINFO2]


def in_use_kib() -> int:
    """Return what has been allocated and not freed, whoever did: MPI, UCX, NumPy or Python.

    The resident memory tells less: what a thread has freed stays with the arena that glibc gave to that thread.
    """
    forget()
    gc.collect()
    allocated = ctypes.CDLL(None).mallinfo2
    allocated.restype = _Allocated
    told = allocated()
    return int(told.uordblks + told.hblkhd) >> 10


def usage() -> dict[str, int]:
    """Return what this process holds."""
    return {
        "descriptors": _least(Path("/proc/self/fd")),
        "threads": _least(Path("/proc/self/task")),
        "mib": int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() >> 20,
        "in_use_kib": in_use_kib(),
        "shared": sum("/dev/shm" in line for line in Path("/proc/self/maps").read_text().splitlines()),
    }


def _least(folder: Path) -> int:
    """Count a folder's entries: a thread whose work is done is there for a moment longer, with its descriptors."""
    counts = []
    for _ in range(_LOOKS):
        counts.append(sum(1 for _ in folder.iterdir()))
        time.sleep(_LOOK_SECONDS)
    return min(counts)


def main() -> None:
    """Play programs, one after another."""
    subject = SUBJECTS[sys.argv[1]]
    seed, programs, seconds = int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
    first = int(sys.argv[5]) if len(sys.argv) > 5 else 0
    began, played, checked = time.monotonic(), 0, 0
    wrong: list[str] = []
    before: dict[str, int] = {}
    interrupts = Interrupts()
    told: dict[str, Any] = {}
    with subject.create() as comm, np.errstate(over="ignore"):
        for number in range(first, first + programs):
            faulthandler.dump_traceback_later(_HANG_SECONDS, exit=True)
            cut = subject.name == "mpi" and bool(number % 2)
            if subject.name == "mpi":
                cut_from(comm._engine, _PIECE if cut else _WHOLE)
            # Who interrupts MPI in the moment in which it takes a piece, or a sum of two, ends the group in words.
            program = Program(comm, subject, [seed, number], None if cut or comm.size == 2 else interrupts)
            try:
                program.run()
            except BaseException:
                print(f"in program {number} of seed {seed}:", *program.wrong, file=sys.stderr)
                raise
            played, checked, wrong = played + 1, checked + program.checked, wrong + program.wrong
            if played == min(10, programs // 3):
                before = usage()
            over = np.array([time.monotonic() - began > seconds])
            if subject.get(comm.all_reduce(subject.put(over), "max")):  # all ranks end after the same one
                break
        told = {"before": before, "after": usage()}
        faulthandler.cancel_dump_traceback_later()
    told |= {"wrong": wrong[:20], "checked": checked, "programs": played, "interrupts": interrupts.count}
    json.dump(told, sys.stdout)


if __name__ == "__main__":
    main()
