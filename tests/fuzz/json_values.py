"""Changes values within JSON: what changes bytes alone seldom gets beyond the braces."""

import copy
import json
import random
from collections.abc import Callable
from typing import Any

#: Values at which code tends to break.
_ODD: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 255, 65536, 2**31 - 1, 2**31, -(2**31), 2**53, 2**63, 2**64, 10**30, 1e308, 0.5,
    -0.0, "", " ", "0", "a" * 300, "\n", "\x00", "\x1b[2J", "é", "\udc80", "..", "../../etc", "/", "a/b", ":",
    "0000:00:00.0", "0000:17:00.0", "127.0.0.1", "0.0.0.0", "::", "fe80::1%eth0", "255.255.255.255", "10.0.0.1/33",
    "N/A", "unknown", [], {}, [[]], {"": None},
)  # fmt: skip


def changed(data: bytes, chance: random.Random) -> bytes | None:
    """Return JSON in which one to four values are others; None for what is no JSON.

    Args:
        data: the JSON.
        chance: decides which.
    """
    try:
        root = json.loads(data)
    except (ValueError, RecursionError):
        return None
    holder = [root]
    for _ in range(chance.choice((1, 1, 2, 4))):
        parent, key = _somewhere(holder, chance)
        chance.choice(_CHANGES)(parent, key, holder, chance)
    return json.dumps(holder[0], separators=(",", ":")).encode("utf-8", "surrogatepass")


def _somewhere(holder: list[Any], chance: random.Random) -> tuple[Any, Any]:
    """Return a container and a key of it, below the root mostly."""
    parent: Any = holder
    key: Any = 0
    while isinstance(inner := parent[key], dict | list) and inner and chance.random() < 0.85:
        parent = inner
        key = chance.choice(list(inner)) if isinstance(inner, dict) else chance.randrange(len(inner))
    return parent, key


def _odd(parent: Any, key: Any, holder: list[Any], chance: random.Random) -> None:
    parent[key] = copy.deepcopy(chance.choice(_ODD))


def _copy(parent: Any, key: Any, holder: list[Any], chance: random.Random) -> None:
    """Put what stands elsewhere here."""
    other, where = _somewhere(holder, chance)
    parent[key] = copy.deepcopy(other[where])


def _remove(parent: Any, key: Any, holder: list[Any], chance: random.Random) -> None:
    if parent is not holder:
        del parent[key]


def _repeat(parent: Any, key: Any, holder: list[Any], chance: random.Random) -> None:
    if isinstance(parent, list) and parent is not holder:
        parent[key:key] = [copy.deepcopy(parent[key]) for _ in range(chance.choice((1, 1, 3, 20)))]


def _nudge(parent: Any, key: Any, holder: list[Any], chance: random.Random) -> None:
    value = parent[key]
    if isinstance(value, bool):
        parent[key] = not value
    elif isinstance(value, int | float):
        parent[key] = value + chance.choice((-1, 1, 8, 256, -value, -2 * value))
    elif isinstance(value, str) and value:
        at = chance.randrange(len(value))
        piece = chance.choice(("", "0", "f", "/", ".", ":", " ", "-", "\n", "é", value))
        parent[key] = value[:at] + piece + value[at + chance.choice((0, 1)) :]
    else:
        _odd(parent, key, holder, chance)


_CHANGES: tuple[Callable[[Any, Any, list[Any], random.Random], None], ...] = (
    _odd, _odd, _copy, _copy, _remove, _repeat, _nudge, _nudge,
)  # fmt: skip
