"""What a daemon answers as an error (RFC 9457 problem+json with a stable code) is here the class that it was there."""

from collections.abc import Callable, Mapping

from fabricd.errors import AccessError, BusyError, ConfigError, FabricError, InputError, ParseError, RankLostError
from fabricd.model.codec import from_json
from fabricd.model.problem import Problem
from fabricd.smallfile import escaped

#: Advice where an answer is none that a daemon gives.
IS_IT = "is it a fabricd, or a proxy before one?"


def error_from_answer(status: int, content: bytes, origin: str) -> FabricError:
    """Return the FabricError that an answer stands for.

    Args:
        status: HTTP status.
        content: the body; what is no problem+json becomes a plain error that shows its beginning.
        origin: who answered, for the message.
    """
    try:
        problem = from_json(content, Problem)
    except ParseError:
        shown = _plain(" ".join(content[:120].decode("utf-8", "replace").split()))
        return FabricError(f"{origin} answered with status {status}: {shown}", hint=IS_IT)
    kind = _classes_by_code().get(problem.code)
    if kind is None:  # an error of HTTP itself, or of a newer daemon
        kind = _CLASS_BY_STATUS.get(status, FabricError)
    # Constructors that compose their message are not run again: the message is composed already.
    error = kind.__new__(kind)
    FabricError.__init__(error, _plain(problem.detail), hint=_plain(problem.hint), details=problem.details)
    vars(error).update(
        {name: convert(problem.details.get(name)) for name, convert in _ATTRIBUTES.get(kind, {}).items()}
    )
    return error


def _plain(text: str) -> str:
    """Return a text that logs and tracebacks only show, whoever it came from; its lines stay."""
    return "\n".join(map(escaped, text.split("\n")))


def _classes_by_code() -> dict[str, type[FabricError]]:
    """Return every error class of the tree by its code."""
    found: dict[str, type[FabricError]] = {}
    waiting: list[type[FabricError]] = [FabricError]
    while waiting:
        kind = waiting.pop()
        if "code" in vars(kind):  # a class that inherits its code is this side's own refinement
            found[kind.code] = kind
        waiting.extend(kind.__subclasses__())
    return found


def _ranks(value: object) -> tuple[int, ...]:
    return tuple(sorted(item for item in value if isinstance(item, int))) if isinstance(value, list) else ()


def _texts(value: object) -> tuple[str, ...]:
    return tuple(str(item) for item in value) if isinstance(value, list) else ()


_CLASS_BY_STATUS: Mapping[int, type[FabricError]] = {
    400: InputError,
    401: AccessError,
    403: AccessError,
    422: InputError,
}
#: Attributes that classes have beside the root's, from the details of the same name.
_ATTRIBUTES: Mapping[type[FabricError], Mapping[str, Callable[[object], object]]] = {
    RankLostError: {"group": lambda value: str(value or ""), "ranks": _ranks},
    ConfigError: {"faults": _texts},
    BusyError: {"retry_after_seconds": lambda value: value if isinstance(value, int) else 1},
}
