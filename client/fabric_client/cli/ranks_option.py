"""Lists of ranks, or of CPUs, on the command line: ``0``, ``0-7,16``."""

import re
from typing import Annotated

import typer

from fabricd.errors import InputError

#: GPUs that take part in a plan.
RanksOption = Annotated[
    str, typer.Option("--ranks", metavar="LIST", help="Only these GPUs, counted over all nodes: 0-6,8-14.")
]

_ITEM = re.compile(r"(\d{1,7})(?:-(\d{1,7}))?")
_MAX = 1 << 20


def parse_ranks(text: str, option: str) -> tuple[int, ...]:
    """Return the numbers in the order given; none for an empty text.

    Raises:
        InputError: not such a list, or a number twice.
    """
    found: list[int] = []
    for item in text.split(",") if text else ():
        match = _ITEM.fullmatch(item.strip())
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if last < first or len(found) + last - first >= _MAX:
            raise InputError(
                f"{option} {text[:60]!r}: {item[:40]!r} is no number or range", hint="expected e.g. 0-7,16"
            )
        found += range(first, last + 1)
    if len(set(found)) < len(found):
        raise InputError(f"{option} {text[:60]!r} names one twice")
    return tuple(found)
