"""JSON for people: what fits on a line stands on a line, so that a file can be reviewed and compared line by line."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from enum import Enum
from typing import Any

WIDTH = 120


def readable(value: Any, *, width: int = WIDTH) -> str:
    """Return a value of dicts, lists, strings and numbers as JSON, with a line's end after it."""
    return "".join(_parts(value, 0, 0, width)) + "\n"


def lean(value: Any) -> Any:
    """Return a model as dicts, lists, strings and numbers, without the fields that are as they are by default.

    Nothing is lost: what reads it gives such fields their defaults.
    """
    if is_dataclass(value) and not isinstance(value, type):
        told = ((field, getattr(value, field.name)) for field in fields(value))
        return {field.name: lean(one) for field, one in told if one != _default(field)}
    if isinstance(value, Mapping):
        return {name: lean(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [lean(one) for one in value]
    return value.value if isinstance(value, Enum) else value


def _default(field: "Field[Any]") -> Any:
    return field.default if field.default_factory is MISSING else field.default_factory()


def _parts(value: Any, indent: int, column: int, width: int) -> Iterator[str]:
    """Yield the parts of a value that begins in a column of a line, and whose own lines are indented."""
    flat = _flat(value, width - column - 1)  # a comma may follow
    if flat is not None:
        yield flat
        return
    opening, closing = "{}" if isinstance(value, dict) else "[]"
    margin = "\n" + " " * (indent + 1)
    yield opening
    if isinstance(value, dict):
        for position, (name, inner) in enumerate(value.items()):
            start = f"{_text(name)}: "
            yield f"{',' if position else ''}{margin}{start}"
            yield from _parts(inner, indent + 1, indent + 1 + len(start), width)
    elif all(isinstance(one, int | float) for one in value):
        yield from _filled([_text(one) for one in value], margin, width - indent)
    else:
        for position, inner in enumerate(value):
            yield f"{',' if position else ''}{margin}"
            yield from _parts(inner, indent + 1, indent + 1, width)
    yield f"\n{' ' * indent}{closing}"


def _filled(words: list[str], margin: str, width: int) -> Iterator[str]:
    """Yield numbers, as many in a line as fit."""
    line = ""
    for position, word in enumerate(words):
        word += "," if position < len(words) - 1 else ""
        if line and len(line) + 1 + len(word) > width:
            yield margin + line
            line = word
        else:
            line = f"{line} {word}" if line else word
    yield margin + line


def _flat(value: Any, width: int) -> str | None:
    """Return a value on one line; None when it is longer than ``width``, and can be broken."""
    if not isinstance(value, dict | list | tuple) or not value:
        return _text(value)
    if len(value) * 2 > width:
        return None  # without looking further: a large file would be written once for each of its levels
    if isinstance(value, dict) and any(isinstance(inner, dict) and inner for inner in value.values()):
        return None  # a folder stands for itself
    text = _text(value)
    return text if len(text) <= width else None


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
