"""Attributes of NCCL's XML as values, with bounds on every number. Messages name the line.

Integers are in C notation, ``guid`` and ``host_hash`` in hexadecimal, as NCCL 2.30 reads them (graph/xml.cc).
"""

import math
import re
from typing import NoReturn

from fabricd.errors import ParseError
from fabricd.graph.nccl_xml import Element

INT_MAX = 2**31 - 1

_BUSID = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", re.IGNORECASE | re.ASCII)
_HEX = re.compile(r"(0x)?[0-9a-f]{1,16}", re.IGNORECASE | re.ASCII)


class AttributeReader:
    """Reads the attributes of one file's elements. A value that cannot be is a ParseError.

    Args:
        source: names the file in errors.
    """

    def __init__(self, source: str) -> None:
        self._source = source

    def busid(self, element: Element, name: str) -> str:
        """Return a PCI address, which may not be missing."""
        value = element.attributes.get(name)
        if value is None or not _BUSID.fullmatch(value):
            what = "is missing" if value is None else f"{value[:40]!r} is no PCI address"
            self.fault(element, f"{name} {what}", 'it looks like "0000:17:00.0"')
        return value

    def integer(self, element: Element, name: str, *, low: int = 0, high: int = INT_MAX) -> int | None:
        """Return a C integer (decimal, 0x hexadecimal, leading 0 octal) within bounds, ``None`` if absent."""
        text = element.attributes.get(name)
        if text is None:
            return None
        value = _c_integer(text)
        if value is None:
            self.fault(element, f"{name} {text[:40]!r} is not an integer")
        if not low <= value <= high:
            self.fault(element, f"{name} is {text[:40]}", f"it lies between {low} and {high}")
        return value

    def id16(self, element: Element, name: str) -> int:
        """Return a number of 16 bits, 0 if absent."""
        return self.integer(element, name, high=0xFFFF) or 0

    def optional(self, element: Element, name: str, *, high: int = INT_MAX) -> int | None:
        """Return an integer for which NCCL writes -1 where there is none, ``None`` then."""
        value = self.integer(element, name, low=-1, high=high)
        return None if value == -1 else value

    def switch(self, element: Element, name: str) -> bool | None:
        """Return whether a switch is on, ``None`` if absent."""
        value = self.integer(element, name, low=-1)
        return None if value is None else value > 0

    def hexadecimal(self, element: Element, name: str) -> int:
        """Return a hexadecimal number of up to 64 bits, 0 if absent."""
        text = element.attributes.get(name, "0")
        if not _HEX.fullmatch(text):
            self.fault(element, f"{name} {text[:40]!r} is not a hexadecimal number of up to 64 bits")
        return int(text, 16)

    def microseconds(self, element: Element, name: str) -> float:
        """Return a time, 0 if absent."""
        text = element.attributes.get(name, "0")
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not 0 <= value < math.inf:
            self.fault(element, f"{name} {text[:40]!r} is not a time in microseconds")
        return value

    def fault(self, element: Element, what: str, hint: str = "") -> NoReturn:
        """Say what is wrong with an element, and how it should be."""
        raise ParseError(
            f"{self._source}: line {element.line}: <{element.tag[:40]}>: {what}",
            hint=hint,
            details={"line": element.line},
        )


def _c_integer(text: str) -> int | None:
    if len(text) > 40 or not text.isascii() or "_" in text:
        return None
    digits = text.strip().lstrip("+-")
    base = 16 if digits[:2] in ("0x", "0X") else 8 if digits.startswith("0") and len(digits) > 1 else 10
    try:
        return int(text, base)
    except ValueError:
        return None
