"""Collectives that move data to all ranks, and the barrier."""

from collections.abc import Sequence
from typing import Any, overload

from numpy.typing import NDArray

from fabric_client.kinds import Kind, No, Out, Scalar, Seconds, Yes
from fabric_client.operations import Operations, check_counts, check_leading_axis, check_rows, in_elements
from fabric_client.work import Work


class Moves(Operations):
    """``broadcast``, ``all_gather``, ``all_gather_v``, ``all_to_all``, ``all_to_all_v`` and ``barrier``."""

    @overload
    def broadcast(self, array: Out, root: int = ..., *, timeout: Seconds = ..., async_op: No = ...) -> Out: ...
    @overload
    def broadcast(self, array: Out, root: int = ..., *, timeout: Seconds = ..., async_op: Yes) -> Work[Out]: ...
    @overload
    def broadcast(self, array: Out, root: int = ..., *, timeout: Seconds = ..., async_op: bool) -> Any: ...
    def broadcast(self, array: Any, root: int = 0, *, timeout: float | None = None, async_op: bool = False) -> Any:
        """Copy the root's array into every other rank's array, in place.

        Shapes:
            array: any, the same shape and dtype on every rank; contiguous and, except on the root, writable.

        Args:
            array: the data on the root; receives it elsewhere.
            root: the rank that has the data.
            timeout: seconds; None takes the communicator's.
            async_op: return a :class:`Work` at once instead of waiting.

        Returns:
            ``array``.

        Raises:
            InputError: an array or root that cannot be used; nothing was sent.
            RankLostError, GroupAbortedError, OperationTimeoutError, EngineError: the communicator is broken.
        """
        self._check_rank(root, "root")
        data = self._arrays.as_input(array) if self.rank == root else self._arrays.check_writable(array, "array")
        start = self._engine.broadcast
        return self._collective("broadcast", (array, data, array), timeout, async_op, data.nbytes, start, data, root)

    @overload
    def all_gather(
        self, array: NDArray[Scalar], *, out: NDArray[Scalar] | None = ..., timeout: Seconds = ..., async_op: No = ...
    ) -> NDArray[Scalar]: ...
    @overload
    def all_gather(
        self, array: Kind, *, out: Kind | None = ..., timeout: Seconds = ..., async_op: No = ...
    ) -> Kind: ...
    @overload
    def all_gather(
        self, array: NDArray[Scalar], *, out: NDArray[Scalar] | None = ..., timeout: Seconds = ..., async_op: Yes
    ) -> Work[NDArray[Scalar]]: ...
    @overload
    def all_gather(
        self, array: Kind, *, out: Kind | None = ..., timeout: Seconds = ..., async_op: Yes
    ) -> Work[Kind]: ...
    @overload
    def all_gather(self, array: Any, *, out: Any = ..., timeout: Seconds = ..., async_op: bool = ...) -> Any: ...
    def all_gather(self, array: Any, *, out: Any = None, timeout: float | None = None, async_op: bool = False) -> Any:
        """Collect every rank's array on every rank.

        Shapes:
            array: any, the same on every rank; out: ``(size, *array.shape)``, with rank r's array in ``out[r]``.
            ``array=out[rank]`` works in place.

        Args:
            array: this rank's part.
            out: receives all parts; None makes a new array.
            timeout: seconds; None takes the communicator's.
            async_op: return a :class:`Work` at once instead of waiting.

        Returns:
            ``out``, or the new array.

        Raises:
            InputError: an array that cannot be used; nothing was sent.
            RankLostError, GroupAbortedError, OperationTimeoutError, EngineError: the communicator is broken.
        """
        source = self._arrays.as_input(array)
        result = self._arrays.as_result(out, (self.size, *source.shape), source.dtype)
        if out is not None:
            source = self._arrays.apart(source, result, allowed=result[self.rank : self.rank + 1])
        start = self._engine.all_gather
        return self._collective(
            "all_gather", (out, result, array), timeout, async_op, source.nbytes, start, source, result
        )

    @overload
    def all_gather_v(
        self,
        array: Kind,
        *,
        counts: Sequence[int] | None = ...,
        out: Kind | None = ...,
        timeout: Seconds = ...,
        async_op: No = ...,
    ) -> Kind: ...
    @overload
    def all_gather_v(
        self,
        array: Kind,
        *,
        counts: Sequence[int] | None = ...,
        out: Kind | None = ...,
        timeout: Seconds = ...,
        async_op: Yes,
    ) -> Work[Kind]: ...
    @overload
    def all_gather_v(
        self,
        array: Any,
        *,
        counts: Sequence[int] | None = ...,
        out: Any = ...,
        timeout: Seconds = ...,
        async_op: bool = ...,
    ) -> Any: ...
    def all_gather_v(
        self,
        array: Any,
        *,
        counts: Sequence[int] | None = None,
        out: Any = None,
        timeout: float | None = None,
        async_op: bool = False,
    ) -> Any:
        """Collect every rank's rows on every rank; ranks may have different numbers of them.

        Shapes:
            array: ``(counts[rank], *row)``; out: ``(sum(counts), *row)``, rank 0's rows first. ``array`` may be its
            own rows of ``out``, which works in place.

        Args:
            array: this rank's rows.
            counts: rows of each rank, where every rank knows them. None, on every rank, exchanges them first: one
                small message more, which is waited for also with ``async_op``.
            out: receives all rows; None makes a new array.
            timeout: seconds; None takes the communicator's.
            async_op: return a :class:`Work` at once instead of waiting.

        Returns:
            ``out``, or the new array.

        Raises:
            InputError: an array or counts that cannot be used; nothing was sent but counts.
            RankLostError, GroupAbortedError, OperationTimeoutError, EngineError: the communicator is broken.
        """
        source = self._arrays.as_input(array)
        rows = self._rows_of_all(source, counts, "all_gather_v", timeout)
        result = self._arrays.as_result(out, (sum(rows), *source.shape[1:]), source.dtype)
        if out is not None:
            source = self._arrays.apart(source, result, allowed=self._own_rows(result, rows))
        start, elements = self._engine.all_gather_v, in_elements(rows, source)
        return self._collective(
            "all_gather_v", (out, result, array), timeout, async_op, source.nbytes, start, source, result, elements
        )

    @overload
    def all_to_all(
        self, array: Kind, *, out: Kind | None = ..., timeout: Seconds = ..., async_op: No = ...
    ) -> Kind: ...
    @overload
    def all_to_all(
        self, array: Kind, *, out: Kind | None = ..., timeout: Seconds = ..., async_op: Yes
    ) -> Work[Kind]: ...
    @overload
    def all_to_all(self, array: Any, *, out: Any = ..., timeout: Seconds = ..., async_op: bool = ...) -> Any: ...
    def all_to_all(self, array: Any, *, out: Any = None, timeout: float | None = None, async_op: bool = False) -> Any:
        """Exchange blocks: rank r's ``out[s]`` is what rank s had in ``array[r]``.

        Shapes:
            array: ``(size, *block)`` on every rank; out: the same. ``out=array`` works in place.

        Args:
            array: one block for each rank.
            out: receives one block from each rank; None makes a new array.
            timeout: seconds; None takes the communicator's.
            async_op: return a :class:`Work` at once instead of waiting.

        Returns:
            ``out``, or the new array.

        Raises:
            InputError: an array that cannot be used; nothing was sent.
            RankLostError, GroupAbortedError, OperationTimeoutError, EngineError: the communicator is broken.
        """
        source = self._arrays.as_input(array)
        check_leading_axis(source, self.size, "all_to_all")
        result = self._arrays.as_result(out, source.shape, source.dtype)
        if out is not None:
            source = self._arrays.apart(source, result, allowed=result)
        start = self._engine.all_to_all
        return self._collective(
            "all_to_all", (out, result, array), timeout, async_op, source.nbytes, start, source, result
        )

    @overload
    def all_to_all_v(
        self,
        array: Kind,
        send_counts: Sequence[int],
        *,
        recv_counts: Sequence[int] | None = ...,
        out: Kind | None = ...,
        timeout: Seconds = ...,
        async_op: No = ...,
    ) -> Kind: ...
    @overload
    def all_to_all_v(
        self,
        array: Kind,
        send_counts: Sequence[int],
        *,
        recv_counts: Sequence[int] | None = ...,
        out: Kind | None = ...,
        timeout: Seconds = ...,
        async_op: Yes,
    ) -> Work[Kind]: ...
    @overload
    def all_to_all_v(
        self,
        array: Any,
        send_counts: Sequence[int],
        *,
        recv_counts: Sequence[int] | None = ...,
        out: Any = ...,
        timeout: Seconds = ...,
        async_op: bool = ...,
    ) -> Any: ...
    def all_to_all_v(
        self,
        array: Any,
        send_counts: Sequence[int],
        *,
        recv_counts: Sequence[int] | None = None,
        out: Any = None,
        timeout: float | None = None,
        async_op: bool = False,
    ) -> Any:
        """Exchange rows: this rank's next ``send_counts[r]`` rows go to rank r.

        Shapes:
            array: ``(sum(send_counts), *row)``, rows for rank 0 first; out: ``(sum(recv_counts), *row)``, rows of
            rank 0 first. An ``out`` that overlaps ``array`` is allowed, and costs a copy of ``array``.

        Args:
            array: the rows for all ranks.
            send_counts: how many for each.
            recv_counts: how many come from each, where every rank knows its own. None, on every rank, exchanges them
                first: one small message more, which is waited for also with ``async_op``.
            out: receives the rows; None makes a new array.
            timeout: seconds; None takes the communicator's.
            async_op: return a :class:`Work` at once instead of waiting.

        Returns:
            ``out``, or the new array.

        Raises:
            InputError: an array or counts that cannot be used; nothing was sent but counts.
            RankLostError, GroupAbortedError, OperationTimeoutError, EngineError: the communicator is broken.
        """
        source = self._arrays.as_input(array)
        check_rows(source, "all_to_all_v")
        sent = check_counts(send_counts, self.size, "send_counts", source.shape[0])
        if recv_counts is None:
            received = self._exchange_rows(sent, source, "all_to_all_v", "recv_counts left out", timeout)
        else:
            received = check_counts(recv_counts, self.size, "recv_counts")
        result = self._arrays.as_result(out, (sum(received), *source.shape[1:]), source.dtype)
        if out is not None:
            source = self._arrays.apart(source, result, allowed=None)
        start, elements = self._engine.all_to_all_v, (in_elements(sent, source), in_elements(received, source))
        given = (out, result, array)
        return self._collective(
            "all_to_all_v", given, timeout, async_op, source.nbytes, start, source, elements[0], result, elements[1]
        )

    @overload
    def barrier(self, *, timeout: Seconds = ..., async_op: No = ...) -> None: ...
    @overload
    def barrier(self, *, timeout: Seconds = ..., async_op: Yes) -> Work[None]: ...
    @overload
    def barrier(self, *, timeout: Seconds = ..., async_op: bool) -> Any: ...
    def barrier(self, *, timeout: float | None = None, async_op: bool = False) -> Any:
        """Return when every rank has come.

        Args:
            timeout: seconds; None takes the communicator's.
            async_op: return a :class:`Work` at once instead of waiting.

        Raises:
            RankLostError, GroupAbortedError, OperationTimeoutError, EngineError: the communicator is broken.
        """
        return self._collective("barrier", None, timeout, async_op, 0, self._engine.barrier)
