"""Operations of Gloo under way, and process groups in the making: between this client's terms and PyTorch's."""

import ctypes
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from torch.distributed import PrefixStore, ProcessGroupGloo, TCPStore

from fabric_client.arrays import Array
from fabric_client.blocking import BlockingCall
from fabric_client.engine.base import Engine
from fabric_client.pending import Pending
from fabric_client.sever import own_sockets, shut_down
from fabricd.errors import EngineError

#: Deadlines are the communicator's: it notices, says which rank is lost, and gives the group up.
_NEVER = timedelta(days=365)
_ARRIVED, _LEFT = "farewell", "left"
_WAKE_SECONDS = 1.0


def map_error(error: Exception) -> EngineError:
    """Return what an exception of Gloo's means. The only place where its errors are translated.

    Gloo has no codes: any of them may be due to a lost peer.
    """
    lines = str(error).splitlines() or [type(error).__name__]
    return EngineError(f"Gloo: {lines[0][:300]}", details={"peer_may_be_lost": True})


class GlooPending:
    """Collectives that Gloo's threads work off.

    Args:
        works: PyTorch's handles.
        after: called when all have ended.
        keep: lives as long as they do.
    """

    def __init__(self, *works: Any, after: Callable[[], None] | None = None, keep: object = None) -> None:
        self._works = list(works)
        self._after = after
        self._keep = keep

    def test(self) -> bool:
        """See the protocol."""
        while self._works:
            if not self._works[0].is_completed():
                return False
            try:
                self._works.pop(0).wait()  # raises what went wrong
            except RuntimeError as error:
                raise map_error(error) from error
        if self._after is not None:
            self._after()
            self._after = None
        return True


class Message:
    """Messages between two ranks. Their handles know of their end only who waits for it: a thread does.

    Args:
        member: of the group.
        works: PyTorch's handles.
        keep: lives as long as they do.
    """

    def __init__(self, member: "Member", *works: Any, keep: object) -> None:
        self._keep = keep
        self._call: BlockingCall[None] = BlockingCall(lambda: _wait_for_all(works), "gloo message")
        member.messages.add(self)

    def ended(self, seconds: float) -> bool:
        """Wait so long for its end, whatever it is; tell whether it has ended."""
        return self._call.ended(seconds)

    def test(self) -> bool:
        """See the protocol."""
        return _has_ended(self._call)


def _has_ended(call: BlockingCall[Any]) -> bool:
    """Tell whether a call has ended; raise what Gloo says of it."""
    if not call.ended():
        return False
    try:
        call.result()
    except RuntimeError as error:
        raise map_error(error) from error
    return True


def _wait_for_all(works: tuple[Any, ...]) -> None:
    for work in works:
        work.wait()


@dataclass(slots=True)
class Member:
    """A process group and this rank's place in it.

    Attributes:
        rank: of this process.
        size: number of ranks.
        group: PyTorch's, apart from any that the program has made.
        prefix: names the group in the store.
        store: where the ranks of this group find one another.
        connection: of this process to the server of all stores.
        device: Gloo's, of the planned address.
        serves: this process has the server, and is the last to leave.
        sockets: of the group's connections, as /proc/self/fd names them.
        messages: that were started and not forgotten.
    """

    rank: int
    size: int
    group: Any
    prefix: str
    store: PrefixStore
    connection: TCPStore
    device: Any
    serves: bool
    sockets: frozenset[str]
    messages: "weakref.WeakSet[Message]" = field(default_factory=weakref.WeakSet)

    def end(self) -> None:
        """Let go of the group, whose threads and connections end."""
        self.group = None

    def abandon(self) -> None:
        """Keep the group for as long as there is a process: its destructor would wait for what is under way.

        Threads that wait for messages are woken, by the end of the connections. One that is woken while Python ends
        would end the process by SIGABRT.
        """
        if self.group is None:
            return
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self.group))
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self.connection))
        shut_down(self.sockets)
        deadline = time.monotonic() + _WAKE_SECONDS
        for message in list(self.messages):
            message.ended(max(0.0, deadline - time.monotonic()))


def make_member(
    connection: TCPStore, prefix: str, rank: int, size: int, device: Any, *, serves: bool = False
) -> Member:
    """Connect some ranks with one another; blocks until all have come.

    Args:
        connection: to the store's server; this group's own.
        prefix: names the group there.
        rank: in it.
        size: of it.
        device: Gloo's.
        serves: see :class:`Member`.
    """
    store = PrefixStore(prefix, connection)
    options = ProcessGroupGloo._Options()
    options._devices = [device]
    options._timeout = _NEVER
    before = own_sockets()
    group = ProcessGroupGloo(store, rank, size, options)  # connects with all others
    return Member(rank, size, group, prefix, store, connection, device, serves, own_sockets() - before)


class GlooSplit:
    """A process group of some of the ranks, in the making; see :class:`fabric_client.engine.base.PendingEngine`.

    Args:
        parent: all ranks.
        color: of this one; None is in none.
        wishes: ``(size, 2)``: color and key of each rank, -1 for none, when ``told`` has ended.
        told: brings them.
        name: of this split, the same on all ranks.
        engine: makes an engine of a group.
    """

    def __init__(
        self,
        parent: Member,
        color: int | None,
        wishes: Array,
        told: Pending,
        name: str,
        engine: Callable[[Member], Engine],
    ) -> None:
        self._parent = parent
        self._color = color
        self._wishes = wishes
        self._told = told
        self._name = name
        self._engine = engine
        self._call: BlockingCall[Member] | None = None

    def test(self) -> bool:
        """See the protocol."""
        if self._call is None:
            if not self._told.test():
                return False
            if self._color is None:
                return True
            self._call = BlockingCall(self._make, "gloo split")
        return _has_ended(self._call)

    def _make(self) -> Member:
        order = sorted((int(key), rank) for rank, (color, key) in enumerate(self._wishes) if color == self._color)
        ranks = [rank for _, rank in order]
        parent = self._parent
        # A connection of its own: one that waits for a peer's word holds up all others that use it.
        store = parent.connection.clone()
        prefix = f"{parent.prefix}/{self._name}.{self._color}"
        return make_member(store, prefix, ranks.index(parent.rank), len(ranks), parent.device)

    def engine(self) -> Engine | None:
        """See the protocol."""
        return None if self._call is None else self._engine(self._call.result())


class Farewell:
    """Every rank has come; the one that serves the store has also seen all others go.

    Args:
        member: of the group.
    """

    def __init__(self, member: Member) -> None:
        self._member = member
        self._said = False

    def test(self) -> bool:
        """See the protocol."""
        member = self._member
        try:
            if member.store.add(_ARRIVED, 0 if self._said else 1) < member.size:
                self._said = True
                return False
            self._said = True
            if member.serves:
                return bool(member.store.add(_LEFT, 0) >= member.size - 1)
            member.store.add(_LEFT, 1)
        except RuntimeError as error:
            raise map_error(error) from error
        return True
