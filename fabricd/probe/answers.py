"""Recorded answers: what sources that are no files said on the machine that a replay shows."""

from typing import TypeVar

from fabricd.errors import ParseError
from fabricd.model.codec import from_json
from fabricd.probe.base import ProbeContext, ProbeFailed, ProbeNotRun
from fabricd.smallfile import read_bytes

T = TypeVar("T")
_MAX_BYTES = 64 * 2**20


def recorded(ctx: ProbeContext, name: str, kind: type[T]) -> T:
    """Return the answer that was recorded in the file ``name``.

    Raises:
        ProbeNotRun: nothing was recorded.
        ProbeFailed: the file cannot be read, is too large, or is not of that kind.
    """
    if ctx.answers is None:
        raise ProbeNotRun("a replay without recorded answers")
    path = ctx.answers / name
    try:
        data = read_bytes(path, _MAX_BYTES + 1)
    except FileNotFoundError:
        raise ProbeNotRun(f"{name} was not recorded") from None
    except OSError as error:
        raise ProbeFailed(f"recorded answer: {error}") from error
    if len(data) > _MAX_BYTES:
        raise ProbeFailed(f"{path} is larger than {_MAX_BYTES} bytes")
    try:
        return from_json(data, kind, what=str(path))
    except ParseError as error:
        raise ProbeFailed(str(error)) from error
