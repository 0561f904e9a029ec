"""Sources that are no plain files: asked where they are, and answering from a recording where they are not.

A recorded answer is what the source said, as JSON; or, where it said nothing, how and why:
``{"stopped": "absent", "reason": "no LLDP agent"}``.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from fabricd.errors import ParseError
from fabricd.model.codec import from_json
from fabricd.model.observation import Outcome
from fabricd.probe.base import (
    ProbeAbsent,
    ProbeContext,
    ProbeDenied,
    ProbeFailed,
    ProbeNotRun,
    ProbeStopped,
    ProbeUnsupported,
)
from fabricd.readable import lean
from fabricd.smallfile import read_bytes, reading_through

T = TypeVar("T")
_MAX_BYTES = 64 * 2**20
_STOPS = (ProbeAbsent, ProbeDenied, ProbeUnsupported, ProbeFailed, ProbeNotRun)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stop:
    """What stands in place of an answer."""

    stopped: Outcome | None = None
    reason: str = ""


def ask(ctx: ProbeContext, name: str, kind: type[T], live: Callable[[], T], *, from_files: bool = False) -> T:
    """Return what a source says: live on this host, else as recorded. Where a recording is taken, it is kept there.

    Args:
        ctx: the probe's.
        name: of the recording, e.g. ``"nvml.json"``.
        kind: of the answer.
        live: asks the source.
        from_files: ``live`` only reads files below the roots, so that it also serves a machine whose files are here
            and of which nothing was recorded.

    Raises:
        ProbeStopped: the source says nothing, or said nothing when it was recorded.
        ProbeNotRun: it was not recorded.
    """
    # What a source is made of is no part of a recording beside its answer: the door does not keep it.
    with reading_through(ctx.files):
        data = None if ctx.this_host else _find(ctx, name)
        try:
            if data is not None:
                answer = _decode(data, name, kind)
            elif ctx.this_host or from_files:
                answer = live()
            else:
                missing = "a replay without recorded answers" if ctx.answers is None else f"{name} was not recorded"
                raise ProbeNotRun(missing)
        except ProbeStopped as stop:
            ctx.keep(name, {"stopped": stop.outcome, "reason": stop.reason})
            raise
    if ctx.recording is not None:  # a daemon's looks do without
        ctx.keep(name, lean(answer))
    return answer


def _find(ctx: ProbeContext, name: str) -> bytes | None:
    """Return a recorded answer as it stands; None when there is none."""
    if ctx.answers is None or isinstance(ctx.answers, Mapping):
        return (ctx.answers or {}).get(name)
    path = ctx.answers / name
    try:
        data = read_bytes(path, _MAX_BYTES + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ProbeFailed(f"recorded answer: {error}") from error
    if len(data) > _MAX_BYTES:
        raise ProbeFailed(f"{path} is larger than {_MAX_BYTES} bytes")
    return data


def _decode(data: bytes, name: str, kind: type[T]) -> T:
    try:
        stop = msgspec.json.decode(data, type=_Stop)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        stop = _Stop()  # what is wrong with it is told below
    if stop.stopped is not None:
        raise next((one for one in _STOPS if one.outcome is stop.stopped), ProbeFailed)(stop.reason)
    try:
        return from_json(data, kind, what=f"the recorded {name}")
    except ParseError as error:
        raise ProbeFailed(str(error)) from error
