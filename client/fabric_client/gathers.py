"""Collectives in which one rank collects from all."""

from collections.abc import Sequence
from typing import Any, overload

from numpy.typing import NDArray

from fabric_client.kinds import Kind, No, Scalar, Seconds, Yes
from fabric_client.operations import Operations, in_elements
from fabric_client.work import Work


class Gathers(Operations):
    """``gather`` and ``gather_v``."""

    @overload
    def gather(
        self,
        array: NDArray[Scalar],
        root: int = ...,
        *,
        out: NDArray[Scalar] | None = ...,
        timeout: Seconds = ...,
        async_op: No = ...,
    ) -> NDArray[Scalar] | None: ...
    @overload
    def gather(
        self, array: Kind, root: int = ..., *, out: Kind | None = ..., timeout: Seconds = ..., async_op: No = ...
    ) -> Kind | None: ...
    @overload
    def gather(
        self,
        array: NDArray[Scalar],
        root: int = ...,
        *,
        out: NDArray[Scalar] | None = ...,
        timeout: Seconds = ...,
        async_op: Yes,
    ) -> Work[NDArray[Scalar] | None]: ...
    @overload
    def gather(
        self, array: Kind, root: int = ..., *, out: Kind | None = ..., timeout: Seconds = ..., async_op: Yes
    ) -> Work[Kind | None]: ...
    @overload
    def gather(
        self, array: Any, root: int = ..., *, out: Any = ..., timeout: Seconds = ..., async_op: bool = ...
    ) -> Any: ...
    def gather(
        self,
        array: Any,
        root: int = 0,
        *,
        out: Any = None,
        timeout: float | None = None,
        async_op: bool = False,
    ) -> Any:
        """Collect every rank's array on the root.

        Shapes:
            array: any, the same on every rank; out, on the root only: ``(size, *array.shape)``, with rank r's array
            in ``out[r]``. ``array=out[rank]`` works in place.

        Args:
            array: this rank's part.
            root: the rank that collects.
            out: receives all parts on the root, ignored elsewhere; None makes a new array.
            timeout: seconds; None takes the communicator's.
            async_op: return a :class:`Work` at once instead of waiting.

        Returns:
            ``out`` or the new array on the root, None elsewhere.

        Raises:
            InputError: an array or root that cannot be used; nothing was sent.
            RankLostError, GroupAbortedError, OperationTimeoutError, EngineError: the communicator is broken.
        """
        self._check_rank(root, "root")
        source = self._arrays.as_input(array)
        result = given = None
        if self.rank == root:
            result = self._arrays.as_result(out, (self.size, *source.shape), source.dtype)
            given = (out, result, array)
            if out is not None:
                source = self._arrays.apart(source, result, allowed=result[root : root + 1])
        start = self._engine.gather
        return self._collective("gather", given, timeout, async_op, source.nbytes, start, source, result, root)

    @overload
    def gather_v(
        self,
        array: Kind,
        root: int = ...,
        *,
        counts: Sequence[int] | None = ...,
        out: Kind | None = ...,
        timeout: Seconds = ...,
        async_op: No = ...,
    ) -> Kind | None: ...
    @overload
    def gather_v(
        self,
        array: Kind,
        root: int = ...,
        *,
        counts: Sequence[int] | None = ...,
        out: Kind | None = ...,
        timeout: Seconds = ...,
        async_op: Yes,
    ) -> Work[Kind | None]: ...
    @overload
    def gather_v(
        self,
        array: Any,
        root: int = ...,
        *,
        counts: Sequence[int] | None = ...,
        out: Any = ...,
        timeout: Seconds = ...,
        async_op: bool = ...,
    ) -> Any: ...
    def gather_v(
        self,
        array: Any,
        root: int = 0,
        *,
        counts: Sequence[int] | None = None,
        out: Any = None,
        timeout: float | None = None,
        async_op: bool = False,
    ) -> Any:
        """Collect every rank's rows on the root; ranks may have different numbers of them.

        Shapes:
            array: ``(counts[rank], *row)``; out, on the root only: ``(sum(counts), *row)``, rank 0's rows first.
            ``array`` may be its own rows of ``out``, which works in place.

        Args:
            array: this rank's rows.
            root: the rank that collects.
            counts: rows of each rank, where every rank knows them. None, on every rank, exchanges them first: one
                small message more, which is waited for also with ``async_op``.
            out: receives all rows on the root, ignored elsewhere; None makes a new array.
            timeout: seconds; None takes the communicator's.
            async_op: return a :class:`Work` at once instead of waiting.

        Returns:
            ``out`` or the new array on the root, None elsewhere.

        Raises:
            InputError: an array, root or counts that cannot be used; nothing was sent but counts.
            RankLostError, GroupAbortedError, OperationTimeoutError, EngineError: the communicator is broken.
        """
        self._check_rank(root, "root")
        source = self._arrays.as_input(array)
        rows = self._rows_of_all(source, counts, "gather_v", timeout, f", root {root}")
        result = given = elements = None
        if self.rank == root:
            result = self._arrays.as_result(out, (sum(rows), *source.shape[1:]), source.dtype)
            given, elements = (out, result, array), in_elements(rows, source)
            if out is not None:
                source = self._arrays.apart(source, result, allowed=self._own_rows(result, rows))
        start = self._engine.gather_v
        return self._collective(
            "gather_v", given, timeout, async_op, source.nbytes, start, source, result, elements, root
        )
