"""Small sums of two ranks over a TCP connection of their own: where the network is TCP, MPI only adds to the way.

UCX copies each message in and out of buffers of its own and asks the kernel before each read. ``docs/mpi.md`` has the
figures. What waits here drives MPI on, and what waits for MPI drives this on.
"""

import select
import socket
import struct
import threading
import zlib
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NoReturn

import numpy as np

from fabric_client.arrays import Array
from fabric_client.engine.mpi_requests import UNDER_WAY, drive_on
from fabric_client.engine.rounding import silent_add
from fabric_client.pending import ENDED, Pending
from fabricd.errors import EngineError, FabricError
from fabricd.units import format_size

#: Up to so much goes this way. Above, two copies less are little beside what else there is to do.
MOST_BYTES = 64 << 10
#: Before each message: the bytes that follow with a mark of their dtype, and how many all_reduces the sender had left
#: to MPI before. So ranks get to know whose arrays differ, also where one's goes this way and the other's does not.
_HEAD = struct.Struct("=QQ")
_MARK_AT = 32  #: bit, of the first
#: A message of a peer that is in step is there by then; afterwards MPI has its turn, too.
_GLANCES = 32
#: After so many sums MPI has its turn, too, though nobody waited: what runs in the background shall not stand still.
_SUMS = 16
#: What waits for MPI looks here each time after so many tests.
_LOOKS = 256
SAME_ARRAYS = "all ranks pass arrays of the same shape and dtype, and the same operator"
_MOST_FORMS = 256
_LOST = {"peer_may_be_lost": True}


class _Form:
    """What all messages of one shape and dtype have in common."""

    __slots__ = ("head", "length", "nbytes", "received", "told")

    def __init__(self, shape: tuple[int, ...], dtype: "np.dtype[Any]", inbox: memoryview) -> None:
        self.received: Array = np.ndarray(shape, dtype, inbox, _HEAD.size)  #: what has come
        self.nbytes = self.received.nbytes
        self.told = zlib.crc32(str(dtype).encode()) << _MARK_AT | self.nbytes  #: what the other's must be, too
        self.head = memoryview(bytearray(_HEAD.pack(self.told, 0))).cast("Q")
        self.length = _HEAD.size + self.nbytes


def _bytes_of(told: int) -> int:
    return told & (1 << _MARK_AT) - 1


class LinkSum:
    """One sum under way; see :class:`fabric_client.pending.Pending`."""

    __slots__ = ("_glances", "_link", "ended", "flushed_at", "form", "source", "target")

    def __init__(self, link: "PairLink", form: _Form, source: Array, target: Array, flushed_at: int) -> None:
        self._link = link
        self._glances = 0
        self.form = form
        self.source = source
        self.target = target
        self.flushed_at = flushed_at  #: what ``link.flushed`` must be before ``source`` is sent
        self.ended = False

    def test(self) -> bool:
        """Drive the connection on, and after a while MPI as well."""
        link = self._link
        link.advance()
        if self.ended and link.flushed >= self.flushed_at:
            return True
        self._glances += 1
        if self._glances > _GLANCES:
            link.drive_others()
        return False


class _ByMpi:
    """An all_reduce that goes the other way; see :meth:`PairLink.beside`."""

    __slots__ = ("_link", "_nbytes", "_number", "_pending", "_tests")

    def __init__(self, link: "PairLink", pending: Pending, nbytes: int, number: int) -> None:
        self._link = link
        self._pending = pending
        self._nbytes = nbytes
        self._number = number
        self._tests = 0

    def test(self) -> bool:
        """See :class:`fabric_client.pending.Pending`."""
        if self._pending.test():
            return True
        self._tests += 1
        if self._tests % _LOOKS == 0:
            self._link.check_in_step(self._number, self._nbytes)
        return False


class PairLink:
    """The connection, on which sums go one after another in the order of their starts.

    Args:
        connection: to the other rank, which does the same; its own from now on.
        drive_mpi: moves MPI on: the other rank may wait for that.
    """

    def __init__(self, connection: socket.socket, drive_mpi: Callable[[], object]) -> None:
        connection.setblocking(False)
        self._drive_mpi = drive_mpi
        self._sums = 0
        self._unsent = bytearray()  #: what the kernel has not taken yet
        self.flushed = 0  #: how much of such it has taken later
        self._socket = connection
        self._ends = f"{connection.getsockname()[0]} to {connection.getpeername()[0]}"
        self._waiting: deque[LinkSum] = deque()  #: the first one's bytes come next
        self._inbox = memoryview(bytearray(_HEAD.size + MOST_BYTES))
        self._head = self._inbox[: _HEAD.size].cast("Q")
        self._have = 0  #: bytes of the message that comes
        self._by_mpi = 0  #: all_reduces that were left to MPI
        self._forms: dict[tuple[tuple[int, ...], Any], _Form] = {}
        self._error: EngineError | None = None
        self._lock = threading.Lock()  #: works are tested from any thread
        self._add = silent_add()
        self._send: Any = connection.sendmsg  # NumPy's arrays are buffers, which Python 3.11 has no types for
        self._read = connection.recv_into
        poll = select.poll()  # asking takes half of what Python takes to find nothing by reading
        poll.register(connection, select.POLLIN)
        self._poll = poll.poll
        UNDER_WAY.append(self._advance_quietly)

    def start(self, source: Array, target: Array) -> Pending:
        """Start the sum of both ranks' arrays.

        Args:
            source: this rank's part; contiguous, of at most ``MOST_BYTES``.
            target: receives the sum: ``source`` itself, or memory apart from it, of the same shape and dtype.
        """
        form = self._forms.get((source.shape, source.dtype)) or self._new_form(source)
        self._sums += 1
        if self._sums % _SUMS == 0:
            self.drive_others()
        with self._lock:
            form.head[1] = self._by_mpi
            sent = 0
            if not self._unsent:
                try:
                    sent = self._send((form.head, source))
                except BlockingIOError:
                    pass  # the other rank is behind by as much as the kernel holds
                except OSError as error:
                    self._lose(error)
            if sent < form.length:
                self._unsent += (form.head.tobytes() + source.tobytes())[sent:]
            elif not self._waiting and self._has_come(form):
                self._add(source, form.received, target)
                return ENDED
            one = LinkSum(self, form, source, target, self.flushed + len(self._unsent) if self._unsent else 0)
            self._waiting.append(one)
            return one

    def beside(self, pending: Pending, nbytes: int) -> Pending:
        """Take note of an all_reduce of so many bytes that goes by MPI, when that is started; return it."""
        self._by_mpi += 1
        return _ByMpi(self, pending, nbytes, self._by_mpi)

    def check_in_step(self, number: int, nbytes: int) -> None:
        """Look whether the other rank has sent by this way, for this rank's ``number``-th all_reduce by MPI.

        Raises:
            EngineError: it has.
        """
        with self._lock:
            if self._error is not None or self._waiting or not self._poll(0):
                return  # what waits is before that message; and who has lost the connection hears it from the group
            try:
                head = self._socket.recv(_HEAD.size, socket.MSG_PEEK)
            except OSError:
                return
            if len(head) < _HEAD.size:
                return
            told, its_number = _HEAD.unpack(head)
            if its_number < number:
                its = f"all_reduce of {nbytes} bytes: the other rank's is a sum of {_bytes_of(told)} bytes"
                self._fail(EngineError(its, hint=SAME_ARRAYS))

    def advance(self) -> None:
        """Send and receive what can be, without waiting.

        Raises:
            EngineError: the connection ended, or the other rank's array has another size.
        """
        with self._lock:
            if self._error is not None:
                raise self._error
            if self._unsent:
                self._flush()
            if not self._poll(0):
                return
            try:
                while self._waiting and self._has_come(self._waiting[0].form):
                    one = self._waiting.popleft()
                    self._add(one.source, one.form.received, one.target)
                    one.ended = True
            except FabricError:
                raise
            except BaseException:  # Ctrl-C. Hardly ever here: only when something has come
                self._interrupted()
                raise

    def drive_others(self) -> None:
        """Move on what goes by MPI, and what else is under way."""
        self._drive_mpi()
        drive_on()

    def close(self) -> None:
        """End it; what is under way ends with an error."""
        if self._advance_quietly in UNDER_WAY:
            UNDER_WAY.remove(self._advance_quietly)
        closed = EngineError("the connection of the two ranks was closed", details=_LOST)  # what by, the group knows
        self._error = self._error or closed
        self._socket.close()

    def describe(self) -> str:
        """Return what goes this way, for ``explain()``."""
        return f"sums of up to {format_size(MOST_BYTES)}: {self._ends}, by a TCP connection beside MPI"

    def _advance_quietly(self) -> None:
        if self._waiting or self._unsent:
            with suppress(FabricError):  # each sum under way tells it itself, and who waits here is not concerned
                self.advance()

    def _new_form(self, array: Array) -> _Form:
        if len(self._forms) >= _MOST_FORMS:
            self._forms.clear()
        form = self._forms[array.shape, array.dtype] = _Form(array.shape, array.dtype, self._inbox)
        return form

    def _has_come(self, form: _Form) -> bool:
        """Read on what belongs to the first sum, of that form; tell whether all of it is there."""
        have, length = self._have, form.length
        try:
            read = self._read(self._inbox[have:], length - have) if have else self._read(self._inbox, length)
        except BlockingIOError:
            return False
        except OSError as error:
            self._lose(error)
        if read == length and self._head[0] == form.told:
            return True  # in one go, as usual
        if not read:
            self._lose(ConnectionResetError("it was closed"))
        have += read
        if have >= _HEAD.size and self._head[0] != form.told:
            its = _bytes_of(self._head[0])
            differs = f"{its} bytes" if its != form.nbytes else f"another dtype, and here of {form.received.dtype}"
            told = f"all_reduce of {form.nbytes} bytes: the other rank's is of {differs}"
            self._fail(EngineError(told, hint=SAME_ARRAYS))
        self._have = have if have < length else 0
        return have == length

    def _flush(self) -> None:
        try:
            sent = self._socket.send(self._unsent)
            self.flushed += sent
            del self._unsent[:sent]
        except BlockingIOError:
            pass
        except OSError as error:
            self._lose(error)
        except BaseException:
            self._interrupted()
            raise

    def _interrupted(self) -> None:
        """End it: nobody knows what was sent or received, or whether it was added."""
        self._error = EngineError("a sum was interrupted in the moment in which it came or went")
        self._socket.close()

    def _lose(self, error: OSError) -> NoReturn:
        told = f"the connection of the two ranks ended: {error.strerror or error}"
        self._fail(EngineError(told, details=_LOST))

    def _fail(self, error: EngineError) -> NoReturn:
        """End it; the first error is the reason of the others."""
        self._error = self._error or error
        self._socket.close()
        raise self._error
