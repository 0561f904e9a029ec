"""One communicator of a random program, and what is under way on it."""

import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np

from fabric_client import Communicator, InputError, Work
from tests.contract.calls import Call
from tests.contract.calls_moves import Calls
from tests.contract.expected import data, equal
from tests.contract.layouts import Layouts
from tests.contract.subject import Subject

_PATIENCE_SECONDS = 30.0
_MOST_MESSAGES = 6
_TAGS = (0, 1, 7, 2**20)


class Interrupted(BaseException):
    """What Ctrl-C is, for a wait that is tried again."""


class Interrupts:
    """Interrupts waits of the main thread, a moment after they began."""

    def __init__(self) -> None:
        self._armed = False
        self.count = 0
        signal.signal(signal.SIGALRM, self._rings)

    def _rings(self, *_: object) -> None:
        if self._armed:
            self.count += 1
            raise Interrupted

    def soon(self, seconds: float, wait: Callable[[], Any]) -> Any:
        """Return what ``wait`` returns, or raise Interrupted."""
        try:
            self._armed = True
            signal.setitimer(signal.ITIMER_REAL, seconds)
            return wait()
        finally:
            self._armed = False
            signal.setitimer(signal.ITIMER_REAL, 0)


class Scope:
    """Plays steps on one communicator.

    Args:
        comm: which.
        subject: its engine.
        name: for what is reported.
        own: draws what only this rank does.
        interrupts: None where signals do not come, in another thread than the first.
    """

    def __init__(
        self,
        comm: Communicator,
        subject: Subject,
        name: str,
        own: np.random.Generator,
        interrupts: Interrupts | None,
    ) -> None:
        self.comm = comm
        self.subject = subject
        self.name = name
        self.wrong: list[str] = []
        self.checked = 0
        self._own = own
        self._interrupts = interrupts
        self._layouts = Layouts(subject, own)
        self._works: list[tuple[Work[Any], Call]] = []
        self._dropped: list[Call] = []

    def step(self, draw: np.random.Generator, *, messages: bool = True) -> None:
        """Play one step that all ranks of the communicator play."""
        if self._own.random() < 0.15:
            self._bad_input()
        kind = draw.random()
        if messages and kind < 0.2 and self.comm.size > 1:
            self.messages(draw)
        else:
            self.collective(draw)
        if self._own.random() < 0.2:
            self.wait_for_some()

    def collective(self, draw: np.random.Generator) -> None:
        """Call one, or start one."""
        in_background = draw.random() < 0.5
        calls = Calls(self.comm, self.subject, draw, self._layouts)
        call = calls.any()
        if not in_background:
            self._judge(call, call.start())
            return
        self._keep(call.start(async_op=True), call)

    def _keep(self, work: Work[Any], call: Call) -> None:
        if call.gives_out and self._own.random() < 0.2:
            self._dropped.append(call)
        else:
            self._works.append((work, call))

    def _judge(self, call: Call, result: Any) -> None:
        self.checked += 1
        if said := call.check(result):
            self.wrong.append(f"{self.name}: {said}")

    def messages(self, draw: np.random.Generator) -> None:
        """Send messages between drawn ranks: one after another, or all at once, each rank's in any order."""
        plan = []
        for _ in range(1 + int(draw.integers(_MOST_MESSAGES))):
            source, dest = (int(rank) for rank in draw.choice(self.comm.size, 2, replace=False))
            tag = int(draw.choice(_TAGS)) if self.subject.tags else 0
            calls = Calls(self.comm, self.subject, draw, self._layouts)
            shape, dtype = calls.shape(), calls.dtype()
            plan.append((source, dest, tag, data(int(draw.integers(1 << 40)), shape, dtype)))
        at_once = draw.random() < 0.6 and self.subject.crosses
        mine = [number for number, (source, dest, _, _) in enumerate(plan) if self.comm.rank in (source, dest)]
        if at_once:
            mine = self._in_any_order(mine, plan)
        for number in mine:
            source, dest, tag, array = plan[number]
            call = self._message(source, dest, tag, array)
            if at_once:
                self._keep(call.start(async_op=True), call)
            else:
                self._judge(call, call.start())

    def _in_any_order(self, mine: list[int], plan: list[tuple[int, int, int, Any]]) -> list[int]:
        """Shuffle, but for messages that only their order tells apart."""
        shuffled = [int(number) for number in self._own.permutation(mine)]
        alike: dict[tuple[int, int, int], list[int]] = {}
        for number in sorted(shuffled):
            alike.setdefault(plan[number][:3], []).append(number)
        return [alike[plan[number][:3]].pop(0) for number in shuffled]

    def _message(self, source: int, dest: int, tag: int, array: Any) -> Call:
        comm, name = self.comm, f"message {array.dtype} {array.shape} from {source} to {dest} tag {tag}"
        if comm.rank == source:
            given = self._layouts.source(array)
            return Call(
                f"{name} sent", lambda **more: comm.send(given, dest, tag=tag, **more),
                lambda got: "" if got is None else "a result",
            )  # fmt: skip
        target = self._layouts.target(array.shape, array.dtype)
        return Call(
            name, lambda **more: comm.recv(target.array, source, tag=tag, **more),
            lambda got: equal(target.host, array), [target], gives_out=True,
        )  # fmt: skip

    def wait_for_some(self) -> None:
        """Wait for some of what is under way, or only ask after it, in an order of this rank's."""
        for place in self._own.permutation(len(self._works))[: int(self._own.integers(4))]:
            if self._own.random() < 0.3:
                self._works[place][0].done()
        chosen = self._own.permutation(len(self._works))[: int(self._own.integers(len(self._works) + 1))]
        self._finish([self._works[place] for place in chosen])
        self._works = [pair for place, pair in enumerate(self._works) if place not in set(chosen.tolist())]

    def _finish(self, pairs: list[tuple[Work[Any], Call]]) -> None:
        for work, call in pairs:
            self._judge(call, self._waited(work))

    def _waited(self, work: Work[Any]) -> Any:
        if self._interrupts is not None and self._own.random() < 0.3:
            with suppress(Interrupted):
                return self._interrupts.soon(
                    float(self._own.random()) * 1e-3 + 1e-5, lambda: work.wait(_PATIENCE_SECONDS)
                )
        return work.wait(_PATIENCE_SECONDS)

    def finish(self) -> None:
        """Wait for all that has a handle."""
        self._finish([self._works[place] for place in self._own.permutation(len(self._works))])
        self._works = []

    def closed(self) -> None:
        """Judge what had no handle: its communicator was closed, which waits for it."""
        for call in self._dropped:
            self._judge(call, None)
        self._dropped = []

    def adopt(self, other: "Scope") -> None:
        """Take over what another one of the same communicator has dropped and found."""
        self._dropped += other._dropped
        self.wrong += other.wrong
        self.checked += other.checked

    def _bad_input(self) -> None:
        """Call something on this rank alone that must be refused before anything is sent."""
        comm, size = self.comm, self.comm.size
        array = self._layouts.source(np.ones((size, 3)))
        short = self._layouts.target((size, 2), "f8").array
        wrong: list[Callable[[], Any]] = [
            lambda: comm.all_reduce(array, out=short),
            lambda: comm.all_reduce(array, "add", async_op=True),
            lambda: comm.broadcast(array, size),
            lambda: comm.broadcast([1, 2]),
            lambda: comm.all_gather(array, out=array),
            lambda: comm.reduce_scatter_v(array, [size + 1] + [0] * (size - 1), async_op=True),
            lambda: comm.all_to_all_v(array, [1] * (size + 1)),
            lambda: comm.send(array, comm.rank),
            lambda: comm.recv(array, -1, async_op=True),
            lambda: comm.recv("text", (comm.rank + 1) % size),
            lambda: comm.gather_v(array, size),
            lambda: comm.split(-2),
            lambda: comm.subgroup([size]),
            lambda: comm.subgroup(0),  # type: ignore[arg-type]  # as it should not be
            lambda: comm.broadcast(array, timeout="soon"),
        ]
        number = int(self._own.integers(len(wrong)))
        with suppress(InputError):
            wrong[number]()
            self.wrong.append(f"{self.name}: bad input {number} was not refused")


def in_threads(*functions: Callable[[], None]) -> None:
    """Run them at once; raise what the first to fail raises."""
    errors: list[BaseException] = []

    def run(function: Callable[[], None]) -> None:
        try:
            function()
        except BaseException as error:  # noqa: BLE001 - raised below
            errors.append(error)

    threads = [threading.Thread(target=run, args=(function,)) for function in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
