"""Slurm's hostlists: ``gpu[001-004,9],login`` stands for six names.

Source: slurm.conf(5) and topology.conf(5); the prefix's zeros are kept, and a name may hold several brackets.
"""

import re
from collections.abc import Iterator

from fabricd.errors import ParseError

#: Names in one list; the largest clusters have a tenth of it.
MAX_NAMES = 200_000
_MAX_BRACKETS = 4
_MAX_SHOWN = 60
_NAME_PARTS = re.compile(r"[^\s\[\],]+|\[[^\[\]]*\]")
_RANGE = re.compile(r"(\d{1,12})(?:-(\d{1,12}))?")


def expand(text: str) -> list[str]:
    """Return the names that a hostlist stands for, in its order; doubles stay.

    Raises:
        ParseError: it is none, or stands for more than ``MAX_NAMES``; says which part is wrong.
    """
    names: list[str] = []
    for item in _items(text):
        found = [""]
        brackets = 0
        for part in _parts(item):
            ends = [part]
            if part.startswith("["):
                brackets += 1
                ends = list(_numbers(part, item, MAX_NAMES - len(names)))
            if len(found) * len(ends) + len(names) > MAX_NAMES or brackets > _MAX_BRACKETS:
                raise ParseError(f"{_shown(item)} stands for more than {MAX_NAMES} names")
            found = [start + end for start in found for end in ends]
        names += found
    return names


def _items(text: str) -> Iterator[str]:
    """Yield what stands between the commas that are in no bracket."""
    start = depth = 0
    for at, character in enumerate(text):
        depth += (character == "[") - (character == "]")
        if depth not in (0, 1):
            raise ParseError(f"{_shown(text)}: brackets do not match")
        if character == "," and not depth:
            yield text[start:at]
            start = at + 1
    if depth:
        raise ParseError(f"{_shown(text)}: a bracket is not closed")
    yield text[start:]


def _parts(item: str) -> list[str]:
    parts = _NAME_PARTS.findall(item)
    if not parts or "".join(parts) != item:
        raise ParseError(f"{_shown(item)} is no name" if item else "a name is empty")
    return parts


def _numbers(bracket: str, item: str, most: int) -> Iterator[str]:
    for one in bracket[1:-1].split(","):
        match = _RANGE.fullmatch(one)
        if match is None:
            raise ParseError(f"{_shown(item)}: {_shown(one)} is no number or range of numbers such as 0-15")
        low, high = match[1], match[2] or match[1]
        first, last = int(low), int(high)
        if last < first:
            raise ParseError(f"{_shown(item)}: the range {one} ends before it begins")
        if last - first >= most:
            raise ParseError(f"{_shown(item)} stands for more than {MAX_NAMES} names")
        yield from (f"{number:0{len(low)}d}" for number in range(first, last + 1))


def _shown(text: str) -> str:
    return repr(text if len(text) <= _MAX_SHOWN else text[:_MAX_SHOWN] + "...")
