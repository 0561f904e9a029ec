"""Messages between two ranks."""

from typing import Any, overload

from fabric_client.kinds import No, Out, Seconds, Yes
from fabric_client.operations import Operations, is_between
from fabric_client.work import Work
from fabricd.errors import InputError

_TAG_MAX = 2**20  # MPI promises 32767, MPICH over UCX more than this


class Messages(Operations):
    """``send``, ``recv`` and ``sendrecv``."""

    @overload
    def send(self, array: Any, dest: int, *, tag: int = ..., timeout: Seconds = ..., async_op: No = ...) -> None: ...
    @overload
    def send(self, array: Any, dest: int, *, tag: int = ..., timeout: Seconds = ..., async_op: Yes) -> Work[None]: ...
    @overload
    def send(self, array: Any, dest: int, *, tag: int = ..., timeout: Seconds = ..., async_op: bool) -> Any: ...
    def send(self, array: Any, dest: int, *, tag: int = 0, timeout: float | None = None, async_op: bool = False) -> Any:
        """Send an array to one rank.

        Returns when the array may be used again; a long message waits for its receiver. Two ranks that send to each
        other before they receive may wait for ever: use :meth:`sendrecv`, or ``async_op``.

        Args:
            array: what to send.
            dest: another rank.
            tag: only a ``recv`` of the same tag takes it; 0 to 2**20.
            timeout: seconds; None takes the communicator's.
            async_op: return a :class:`Work` at once instead of waiting.

        Raises:
            InputError: an array, rank or tag that cannot be used; nothing was sent.
            RankLostError, GroupAbortedError, OperationTimeoutError, EngineError: the communicator is broken.
        """
        data = self._arrays.as_input(array)
        self._check_peer(dest, "dest", tag)
        what, start = f"send to rank {dest}", self._engine.send
        return self._message("send", what, None, timeout, async_op, data.nbytes, start, data, dest, tag)

    @overload
    def recv(self, out: Out, source: int, *, tag: int = ..., timeout: Seconds = ..., async_op: No = ...) -> Out: ...
    @overload
    def recv(self, out: Out, source: int, *, tag: int = ..., timeout: Seconds = ..., async_op: Yes) -> Work[Out]: ...
    @overload
    def recv(self, out: Out, source: int, *, tag: int = ..., timeout: Seconds = ..., async_op: bool) -> Any: ...
    def recv(self, out: Any, source: int, *, tag: int = 0, timeout: float | None = None, async_op: bool = False) -> Any:
        """Receive an array from one rank.

        Shapes:
            out: contiguous, of as many bytes as the sender sends.

        Args:
            out: receives the data.
            source: another rank.
            tag: the sender's tag.
            timeout: seconds; None takes the communicator's.
            async_op: return a :class:`Work` at once instead of waiting.

        Returns:
            ``out``.

        Raises:
            InputError: an array, rank or tag that cannot be used, or a message shorter than ``out``.
            RankLostError, GroupAbortedError, OperationTimeoutError, EngineError: the communicator is broken, as it is
                after a message longer than ``out``.
        """
        data = self._arrays.check_writable(out, "out")
        self._check_peer(source, "source", tag)
        what, start = f"recv from rank {source}", self._engine.receive
        return self._message("recv", what, (out, data, out), timeout, async_op, data.nbytes, start, data, source, tag)

    @overload
    def sendrecv(
        self,
        array: Any,
        dest: int,
        out: Out,
        source: int,
        *,
        tag: int = ...,
        timeout: Seconds = ...,
        async_op: No = ...,
    ) -> Out: ...
    @overload
    def sendrecv(
        self, array: Any, dest: int, out: Out, source: int, *, tag: int = ..., timeout: Seconds = ..., async_op: Yes
    ) -> Work[Out]: ...
    @overload
    def sendrecv(
        self, array: Any, dest: int, out: Out, source: int, *, tag: int = ..., timeout: Seconds = ..., async_op: bool
    ) -> Any: ...
    def sendrecv(
        self,
        array: Any,
        dest: int,
        out: Any,
        source: int,
        *,
        tag: int = 0,
        timeout: float | None = None,
        async_op: bool = False,
    ) -> Any:
        """Send to one rank and receive from one (the same or another) at once.

        Shapes:
            array: any; out: contiguous, of as many bytes as the sender sends, apart from ``array``.

        Args:
            array: what to send.
            dest: rank to send to.
            out: receives the data.
            source: rank to receive from.
            tag: of both messages.
            timeout: seconds; None takes the communicator's.
            async_op: return a :class:`Work` at once instead of waiting.

        Returns:
            ``out``.

        Raises:
            InputError: an array, rank or tag that cannot be used, or a message shorter than ``out``.
            RankLostError, GroupAbortedError, OperationTimeoutError, EngineError: the communicator is broken.
        """
        data, target = self._arrays.as_input(array), self._arrays.check_writable(out, "out")
        self._check_peer(dest, "dest", tag)
        self._check_peer(source, "source", tag)
        data = self._arrays.apart(data, target, allowed=None)
        what, start = f"sendrecv to rank {dest} and from rank {source}", self._engine.exchange
        nbytes, given = data.nbytes + target.nbytes, (out, target, out)
        return self._message("sendrecv", what, given, timeout, async_op, nbytes, start, data, dest, target, source, tag)

    def _check_peer(self, rank: int, what: str, tag: int) -> None:
        self._check_rank(rank, what)
        if rank == self.rank:
            raise InputError(f"{what} {rank} is this rank itself", hint="copy the array instead")
        if not is_between(tag, 0, _TAG_MAX):
            raise InputError(f"tag {tag!r} cannot be used", hint=f"valid: 0 to {_TAG_MAX}")
