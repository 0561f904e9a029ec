"""Collectives that combine the ranks' arrays."""

from collections.abc import Sequence
from typing import Any, overload

from numpy.typing import NDArray

from fabric_client.kinds import Kind, No, Op, Scalar, Seconds, Yes
from fabric_client.operations import Operations, check_counts, check_leading_axis, check_rows, in_elements
from fabric_client.ops import ReduceOp, parse_op
from fabric_client.work import Work


class Reductions(Operations):
    """``all_reduce``, ``reduce``, ``reduce_scatter`` and ``reduce_scatter_v``."""

    @overload
    def all_reduce(
        self, array: Kind, op: Op = ..., *, out: Kind | None = ..., timeout: Seconds = ..., async_op: No = ...
    ) -> Kind: ...
    @overload
    def all_reduce(
        self, array: Kind, op: Op = ..., *, out: Kind | None = ..., timeout: Seconds = ..., async_op: Yes
    ) -> Work[Kind]: ...
    @overload
    def all_reduce(
        self, array: Any, op: Op = ..., *, out: Any = ..., timeout: Seconds = ..., async_op: bool = ...
    ) -> Any: ...
    def all_reduce(
        self,
        array: Any,
        op: str | ReduceOp = ReduceOp.SUM,
        *,
        out: Any = None,
        timeout: float | None = None,
        async_op: bool = False,
    ) -> Any:
        """Combine all ranks' arrays; every rank gets the result.

        Shapes:
            array: any, the same on every rank; out: the same. ``out=array`` works in place.

        Args:
            array: this rank's part.
            op: how to combine.
            out: receives the result; None makes a new array.
            timeout: seconds; None takes the communicator's.
            async_op: return a :class:`Work` at once instead of waiting.

        Returns:
            ``out``, or the new array.

        Raises:
            InputError: an array or operator that cannot be used; nothing was sent.
            RankLostError, GroupAbortedError, OperationTimeoutError, EngineError: the communicator is broken.
        """
        operator = op if type(op) is ReduceOp else parse_op(op)
        if self._arrays.ready(array, out, operator):
            source, result = array, out
        else:
            source, operator = self._reducible(array, operator)
            result = self._arrays.as_result(out, source.shape, source.dtype)
            if out is not None:
                source = self._arrays.apart(source, result, allowed=result)
        start = self._engine.all_reduce
        return self._collective(
            "all_reduce", (out, result, array), timeout, async_op, source.nbytes, start, source, result, operator
        )

    @overload
    def reduce(
        self,
        array: Kind,
        op: Op = ...,
        root: int = ...,
        *,
        out: Kind | None = ...,
        timeout: Seconds = ...,
        async_op: No = ...,
    ) -> Kind | None: ...
    @overload
    def reduce(
        self,
        array: Kind,
        op: Op = ...,
        root: int = ...,
        *,
        out: Kind | None = ...,
        timeout: Seconds = ...,
        async_op: Yes,
    ) -> Work[Kind | None]: ...
    @overload
    def reduce(
        self,
        array: Any,
        op: Op = ...,
        root: int = ...,
        *,
        out: Any = ...,
        timeout: Seconds = ...,
        async_op: bool = ...,
    ) -> Any: ...
    def reduce(
        self,
        array: Any,
        op: str | ReduceOp = ReduceOp.SUM,
        root: int = 0,
        *,
        out: Any = None,
        timeout: float | None = None,
        async_op: bool = False,
    ) -> Any:
        """Combine all ranks' arrays; the root gets the result.

        Shapes:
            array: any, the same on every rank; out, on the root only: the same. ``out=array`` works in place.

        Args:
            array: this rank's part.
            op: how to combine.
            root: the rank that gets the result.
            out: receives the result on the root, ignored elsewhere.
            timeout: seconds; None takes the communicator's.
            async_op: return a :class:`Work` at once instead of waiting.

        Returns:
            ``out`` or the new array on the root, None elsewhere.

        Raises:
            InputError: an array, operator or root that cannot be used; nothing was sent.
            RankLostError, GroupAbortedError, OperationTimeoutError, EngineError: the communicator is broken.
        """
        self._check_rank(root, "root")
        source, operator = self._reducible(array, op)
        result = given = None
        if self.rank == root:
            result = self._arrays.as_result(out, source.shape, source.dtype)
            given = (out, result, array)
            if out is not None:
                source = self._arrays.apart(source, result, allowed=result)
        start = self._engine.reduce
        return self._collective(
            "reduce", given, timeout, async_op, source.nbytes, start, source, result, operator, root
        )

    @overload
    def reduce_scatter(
        self,
        array: NDArray[Scalar],
        op: Op = ...,
        *,
        out: NDArray[Scalar] | None = ...,
        timeout: Seconds = ...,
        async_op: No = ...,
    ) -> NDArray[Scalar]: ...
    @overload
    def reduce_scatter(
        self, array: Kind, op: Op = ..., *, out: Kind | None = ..., timeout: Seconds = ..., async_op: No = ...
    ) -> Kind: ...
    @overload
    def reduce_scatter(
        self,
        array: NDArray[Scalar],
        op: Op = ...,
        *,
        out: NDArray[Scalar] | None = ...,
        timeout: Seconds = ...,
        async_op: Yes,
    ) -> Work[NDArray[Scalar]]: ...
    @overload
    def reduce_scatter(
        self, array: Kind, op: Op = ..., *, out: Kind | None = ..., timeout: Seconds = ..., async_op: Yes
    ) -> Work[Kind]: ...
    @overload
    def reduce_scatter(
        self, array: Any, op: Op = ..., *, out: Any = ..., timeout: Seconds = ..., async_op: bool = ...
    ) -> Any: ...
    def reduce_scatter(
        self,
        array: Any,
        op: str | ReduceOp = ReduceOp.SUM,
        *,
        out: Any = None,
        timeout: float | None = None,
        async_op: bool = False,
    ) -> Any:
        """Combine all ranks' arrays; rank r gets block r of the result.

        Shapes:
            array: ``(size, *block)`` on every rank; out: ``block``. An ``out`` inside ``array`` is allowed, and
            costs a copy of ``array``.

        Args:
            array: this rank's part; ``array.reshape(comm.size, -1)`` gives a flat one its first axis.
            op: how to combine.
            out: receives this rank's block; None makes a new array.
            timeout: seconds; None takes the communicator's.
            async_op: return a :class:`Work` at once instead of waiting.

        Returns:
            ``out``, or the new array.

        Raises:
            InputError: an array or operator that cannot be used; nothing was sent.
            RankLostError, GroupAbortedError, OperationTimeoutError, EngineError: the communicator is broken.
        """
        source, operator = self._reducible(array, op)
        check_leading_axis(source, self.size, "reduce_scatter")
        result = self._arrays.as_result(out, source.shape[1:], source.dtype)
        if out is not None:
            source = self._arrays.apart(source, result, allowed=None)
        start = self._engine.reduce_scatter
        return self._collective(
            "reduce_scatter", (out, result, array), timeout, async_op, source.nbytes, start, source, result, operator
        )

    @overload
    def reduce_scatter_v(
        self,
        array: Kind,
        counts: Sequence[int],
        op: Op = ...,
        *,
        out: Kind | None = ...,
        timeout: Seconds = ...,
        async_op: No = ...,
    ) -> Kind: ...
    @overload
    def reduce_scatter_v(
        self,
        array: Kind,
        counts: Sequence[int],
        op: Op = ...,
        *,
        out: Kind | None = ...,
        timeout: Seconds = ...,
        async_op: Yes,
    ) -> Work[Kind]: ...
    @overload
    def reduce_scatter_v(
        self,
        array: Any,
        counts: Sequence[int],
        op: Op = ...,
        *,
        out: Any = ...,
        timeout: Seconds = ...,
        async_op: bool = ...,
    ) -> Any: ...
    def reduce_scatter_v(
        self,
        array: Any,
        counts: Sequence[int],
        op: str | ReduceOp = ReduceOp.SUM,
        *,
        out: Any = None,
        timeout: float | None = None,
        async_op: bool = False,
    ) -> Any:
        """Combine all ranks' arrays; rank r gets the next ``counts[r]`` rows of the result.

        Shapes:
            array: ``(sum(counts), *row)`` on every rank; out: ``(counts[rank], *row)``. An ``out`` inside ``array``
            is allowed, and costs a copy of ``array``.

        Args:
            array: this rank's part.
            counts: rows for each rank, the same on every rank; nothing is exchanged for them.
            op: how to combine.
            out: receives this rank's rows; None makes a new array.
            timeout: seconds; None takes the communicator's.
            async_op: return a :class:`Work` at once instead of waiting.

        Returns:
            ``out``, or the new array.

        Raises:
            InputError: an array, operator or counts that cannot be used; nothing was sent.
            RankLostError, GroupAbortedError, OperationTimeoutError, EngineError: the communicator is broken.
        """
        source, operator = self._reducible(array, op)
        check_rows(source, "reduce_scatter_v")
        rows = check_counts(counts, self.size, "counts", source.shape[0])
        result = self._arrays.as_result(out, (rows[self.rank], *source.shape[1:]), source.dtype)
        if out is not None:
            source = self._arrays.apart(source, result, allowed=None)
        start, elements = self._engine.reduce_scatter_v, in_elements(rows, source)
        given = (out, result, array)
        return self._collective(
            "reduce_scatter_v", given, timeout, async_op, source.nbytes, start, source, result, operator, elements
        )
