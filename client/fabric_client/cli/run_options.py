"""The options of ``fabricctl run``, and their plain form, read without what reads options of all kinds.

Typer and the pydantic that it makes validators by take longer to load than all else that ``run`` does, and a job's
ranks wait for their launcher. What is not plain (``--help``, a fault, no ``--`` before the command) is left to Typer,
which tells people what is wrong; ``run_command`` declares the same options to it, which a test holds together.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

MAX_RANKS = 4096  #: on one host
MAX_HOSTS = 65536
MIN_SECONDS = 0.1

_NUMBER = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """What ``fabricctl run`` was told, beside the command; see there."""

    ranks: int
    group: str | None = None
    nnodes: int = 1
    node_rank: int = 0
    meet_timeout: float = 60.0
    timeout: float | None = None
    grace: float = 10.0
    prefix: bool = False


class Plain(NamedTuple):
    """An option's field, and what it takes."""

    field: str
    kind: type
    least: float = 0
    most: float | None = None


_RANKS = Plain("ranks", int, 1, MAX_RANKS)
PLAIN = {
    "-n": _RANKS,
    "--ranks": _RANKS,
    "--group": Plain("group", str),
    "--nnodes": Plain("nnodes", int, 1, MAX_HOSTS),
    "--node-rank": Plain("node_rank", int),
    "--meet-timeout": Plain("meet_timeout", float, MIN_SECONDS),
    "--timeout": Plain("timeout", float, MIN_SECONDS),
    "--grace": Plain("grace", float),
    "--prefix": Plain("prefix", bool),
}


def read_plainly(words: Sequence[str]) -> tuple[list[str], RunOptions] | None:
    """Return the job's command and what was told about it; None for what Typer is to read.

    Args:
        words: of the command line, behind ``run``.
    """
    own, command = list(words), []
    if "--" in own:
        at = own.index("--")
        own, command = own[:at], own[at + 1 :]
    found: dict[str, object] = {}
    left = iter(own)
    for word in left:
        name, equals, value = word.partition("=")
        option = PLAIN.get(name)
        if option is None or (equals and (option.kind is bool or not name.startswith("--"))):
            return None
        read = True if option.kind is bool else _read(option, value if equals else next(left, "-"))
        if read is None:
            return None
        found[option.field] = read
    return (command, RunOptions(**found)) if command and "ranks" in found else None  # type: ignore[arg-type] # as PLAIN says


def _read(option: Plain, value: str) -> str | float | None:
    """Return what a value means; None where that is not plain."""
    if option.kind is str:
        return None if value.startswith("-") else value
    if not _NUMBER.fullmatch(value) or (option.kind is int and "." in value):
        return None
    number: float = option.kind(value)
    return number if option.least <= number and (option.most is None or number <= option.most) else None
