"""JSON for people: what fits on a line stands on a line, so that a file can be reviewed and compared line by line."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from enum import Enum
from typing import Any

WIDTH = 120


def readable(value: Any, *, width: int = WIDTH, dense: bool = False) -> str:
    """Return a value of dicts, lists, strings and numbers as JSON, with a line's end after it.

    Args:
        value: the value.
        width: of a line, where it can be kept.
        dense: as many fields of an object in a line as fit, instead of a line for each.
    """
    return "".join(_Writer(width, dense).parts(value, 0, 0)) + "\n"


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


class _Writer:
    def __init__(self, width: int, dense: bool) -> None:
        self._width = width
        self._dense = dense

    def parts(self, value: Any, indent: int, column: int) -> Iterator[str]:
        """Yield the parts of a value that begins in a column of a line, and whose own lines are indented."""
        flat = _flat(value, self._width - column - 1)  # a comma may follow
        if flat is not None:
            yield flat
            return
        opening, closing = "{}" if isinstance(value, dict) else "[]"
        yield opening
        yield from self._inside(value, indent + 1)
        yield f"\n{' ' * indent}{closing}"

    def _inside(self, value: Any, indent: int) -> Iterator[str]:
        """Yield the elements, each in a line of its own; numbers, and what is short if dense, several in a line."""
        named = isinstance(value, dict)
        items = value.items() if named else (("", one) for one in value)
        column = self._width
        for position, (name, inner) in enumerate(items):
            start = f"{_text(name)}: " if named else ""
            short = (isinstance(inner, int | float) and not named) or (self._dense and named)
            flat = _flat(inner, self._width - indent - len(start) - 1) if short else None
            comma = "," if position else ""
            if flat is not None and column + len(start) + len(flat) + 3 <= self._width:
                yield f"{comma} {start}{flat}"
                column += len(start) + len(flat) + 2
                continue
            yield f"{comma}\n{' ' * indent}{start}"
            if flat is not None:
                yield flat
                column = indent + len(start) + len(flat)
            else:
                yield from self.parts(inner, indent, indent + len(start))
                column = self._width


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
