"""Collectives in which one rank gives to all."""

from collections.abc import Sequence
from typing import Any, overload

from numpy.typing import NDArray

from fabric_client.kinds import Kind, No, Scalar, Seconds, Yes
from fabric_client.operations import Operations, check_counts, check_leading_axis, check_rows, in_elements
from fabric_client.work import Work
from fabricd.errors import InputError


class Scatters(Operations):
    """``scatter`` and ``scatter_v``."""

    @overload
    def scatter(
        self,
        array: NDArray[Scalar] | None,
        root: int = ...,
        *,
        out: NDArray[Scalar] | None = ...,
        timeout: Seconds = ...,
        async_op: No = ...,
    ) -> NDArray[Scalar]: ...
    @overload
    def scatter(
        self, array: Kind | None, root: int = ..., *, out: Kind | None = ..., timeout: Seconds = ..., async_op: No = ...
    ) -> Kind: ...
    @overload
    def scatter(
        self,
        array: NDArray[Scalar] | None,
        root: int = ...,
        *,
        out: NDArray[Scalar] | None = ...,
        timeout: Seconds = ...,
        async_op: Yes,
    ) -> Work[NDArray[Scalar]]: ...
    @overload
    def scatter(
        self, array: Kind | None, root: int = ..., *, out: Kind | None = ..., timeout: Seconds = ..., async_op: Yes
    ) -> Work[Kind]: ...
    @overload
    def scatter(
        self, array: Any, root: int = ..., *, out: Any = ..., timeout: Seconds = ..., async_op: bool = ...
    ) -> Any: ...
    def scatter(
        self,
        array: Any,
        root: int = 0,
        *,
        out: Any = None,
        timeout: float | None = None,
        async_op: bool = False,
    ) -> Any:
        """Give each rank its block of the root's array.

        Shapes:
            array, on the root only: ``(size, *block)``; out: ``block``. ``out=array[rank]`` on the root works in
            place.

        Args:
            array: the blocks on the root, ignored elsewhere.
            root: the rank that has them.
            out: receives this rank's block. Only the root may leave it out, for the others do not know the shape.
            timeout: seconds; None takes the communicator's.
            async_op: return a :class:`Work` at once instead of waiting.

        Returns:
            ``out``, or the new array.

        Raises:
            InputError: an array or root that cannot be used; nothing was sent.
            RankLostError, GroupAbortedError, OperationTimeoutError, EngineError: the communicator is broken.
        """
        self._check_rank(root, "root")
        if self.rank != root:
            source, result, given = self._receiving(out, "scatter")
        else:
            source = self._arrays.as_input(array)
            check_leading_axis(source, self.size, "scatter")
            result = self._arrays.as_result(out, source.shape[1:], source.dtype)
            given = (out, result, array)
            if out is not None:
                source, result = self._inside(source, result, source[root : root + 1])
        start = self._engine.scatter
        return self._collective("scatter", given, timeout, async_op, result.nbytes, start, source, result, root)

    @overload
    def scatter_v(
        self,
        array: Kind | None,
        counts: Sequence[int] | None = ...,
        root: int = ...,
        *,
        out: Kind | None = ...,
        timeout: Seconds = ...,
        async_op: No = ...,
    ) -> Kind: ...
    @overload
    def scatter_v(
        self,
        array: Kind | None,
        counts: Sequence[int] | None = ...,
        root: int = ...,
        *,
        out: Kind | None = ...,
        timeout: Seconds = ...,
        async_op: Yes,
    ) -> Work[Kind]: ...
    @overload
    def scatter_v(
        self,
        array: Any,
        counts: Sequence[int] | None = ...,
        root: int = ...,
        *,
        out: Any = ...,
        timeout: Seconds = ...,
        async_op: bool = ...,
    ) -> Any: ...
    def scatter_v(
        self,
        array: Any,
        counts: Sequence[int] | None = None,
        root: int = 0,
        *,
        out: Any = None,
        timeout: float | None = None,
        async_op: bool = False,
    ) -> Any:
        """Give each rank its rows of the root's array.

        Shapes:
            array, on the root only: ``(sum(counts), *row)``, rank 0's rows first; out: ``(counts[rank], *row)``. An
            ``out`` that is the root's own rows of ``array`` works in place.

        Args:
            array: the rows on the root, ignored elsewhere.
            counts: rows for each rank; needed on the root only.
            root: the rank that has them.
            out: receives this rank's rows. Only the root may leave it out, for the others do not know the shape.
            timeout: seconds; None takes the communicator's.
            async_op: return a :class:`Work` at once instead of waiting.

        Returns:
            ``out``, or the new array.

        Raises:
            InputError: an array, root or counts that cannot be used; nothing was sent.
            RankLostError, GroupAbortedError, OperationTimeoutError, EngineError: the communicator is broken.
        """
        self._check_rank(root, "root")
        elements = None
        if self.rank != root:
            source, result, given = self._receiving(out, "scatter_v")
        else:
            source = self._arrays.as_input(array)
            check_rows(source, "scatter_v")
            rows = check_counts(counts, self.size, "counts", source.shape[0])
            elements = in_elements(rows, source)
            result = self._arrays.as_result(out, (rows[root], *source.shape[1:]), source.dtype)
            given = (out, result, array)
            if out is not None:
                source, result = self._inside(source, result, self._own_rows(source, rows))
        start = self._engine.scatter_v
        return self._collective(
            "scatter_v", given, timeout, async_op, result.nbytes, start, source, result, elements, root
        )

    def _receiving(self, out: Any, operation: str) -> tuple[None, Any, tuple[Any, Any, Any]]:
        """Return source, buffer and what is given back on a rank that only receives."""
        if out is None:
            raise InputError(
                f"{operation} needs out on every rank but the root", hint="pass out=numpy.empty(shape, dtype)"
            )
        result = self._arrays.check_writable(out, "out")
        return None, result, (out, result, out)

    def _inside(self, source: Any, result: Any, own: Any) -> tuple[Any, Any]:
        """Return both, with the result as the very part of the source where it is that, and else apart from it."""
        if self._arrays.apart(result, own, allowed=own) is own:
            return source, own
        return self._arrays.apart(source, result, allowed=None), result
