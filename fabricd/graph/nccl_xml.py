"""Topology files in NCCL's XML: text to elements and back, without knowing what they mean.

NCCL reads such a file with ``NCCL_TOPO_FILE`` and writes one with ``NCCL_TOPO_DUMP_FILE``; cloud images carry them.
The text may come from anywhere: document types and entities are refused, size, depth and number of elements are
bounded, and nothing here recurses on the input.

NCCL's own reader is narrower than XML (NCCL 2.30, graph/xml.cc). What it would not read is noted, not refused.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pyexpat import ExpatError
from typing import Any
from xml.parsers import expat  # safe as used here: a document type, hence any entity, ends the parse

from fabricd.errors import ParseError

#: Far above a real file: the dump of a 576-GPU NVLink domain has about 12,000 elements, 3 MB and depth 12.
MAX_BYTES = 16 * 1024 * 1024
MAX_DEPTH = 64
MAX_ELEMENTS = 65_536
MAX_ATTRIBUTES = 64
MAX_VALUE_CHARACTERS = 4096

#: Limits of NCCL's own reader.
NCCL_MAX_ATTRIBUTES = 16
NCCL_MAX_VALUE_CHARACTERS = 255
NCCL_MAX_CHILDREN = 640

#: The last are no characters of XML 1.0, in whatever form: no parser would take the file.
_ESCAPES = str.maketrans(
    {"&": "&amp;", "<": "&lt;", '"': "&quot;", "\n": "&#10;", "\r": "&#13;", "\t": "&#9;"}
    | {chr(code): "?" for code in (*range(9), 11, 12, *range(14, 32), 0xFFFE, 0xFFFF)}
)
_SPECIAL = re.compile('[&<"\n\r\t]')


@dataclass(frozen=True, slots=True)
class Element:
    """One element. Equal if tag, attributes and children are; where it stood does not count.

    Attributes:
        tag: as written.
        attributes: by name, in the order of the file.
        children: in the order of the file.
        line: where it begins, from 1; 0 if it was not read from a text.
    """

    tag: str
    attributes: dict[str, str] = field(default_factory=dict)
    children: tuple["Element", ...] = ()
    line: int = field(default=0, compare=False)

    def named(self, *tags: str) -> tuple["Element", ...]:
        """Return the children with one of these tags, in order."""
        return tuple(child for child in self.children if child.tag in tags)

    def walk(self) -> Iterator["Element"]:
        """Yield this element and all below it, in the order of the file."""
        stack = [self]
        while stack:
            element = stack.pop()
            yield element
            stack.extend(reversed(element.children))

    def with_children(self, children: tuple["Element", ...]) -> "Element":
        """Return the same element with other children."""
        return replace(self, children=children)


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A parsed text.

    Attributes:
        root: its outermost element.
        notes: what NCCL's own reader would refuse or read differently, one sentence each.
    """

    root: Element
    notes: tuple[str, ...] = ()


def parse(text: str | bytes, *, source: str = "NCCL topology") -> Document:
    """Read the XML of a topology file.

    Args:
        text: the whole file. Bytes may be in any encoding that their own declaration names.
        source: what to call it in messages, e.g. the file's name.

    Raises:
        ParseError: not well-formed (says line and column, and what was left open), a document type or entity, or
            beyond the bounds of this module.
    """
    if len(text) > MAX_BYTES:
        raise ParseError(f"{source}: {len(text)} bytes, more than {MAX_BYTES}", hint="is this a topology file?")
    try:
        data = text.encode() if isinstance(text, str) else text
    except UnicodeEncodeError as error:
        raise ParseError(f"{source}: not text: {error.reason} at character {error.start}") from error
    builder = _Builder(source, expat.ParserCreate("utf-8" if isinstance(text, str) else None))
    root = builder.run(data)
    return Document(root=root, notes=(*_raw_notes(data), *loading_notes(root)))


class _Builder:
    """Collects elements from expat's events. A fault is an exception, which ends the parse at once."""

    def __init__(self, source: str, parser: Any) -> None:
        self._source = source
        self._parser = parser
        #: Tag, attributes, line and children of each element that is not closed yet.
        self._open: list[tuple[str, dict[str, str], int, list[Element]]] = []
        self._root: Element | None = None
        self._count = 0
        parser.ordered_attributes = True
        parser.StartElementHandler = self._start
        parser.EndElementHandler = self._end
        parser.StartDoctypeDeclHandler = self._refuse_doctype
        parser.CharacterDataHandler = self._characters

    def run(self, data: bytes) -> Element:
        try:
            self._parser.Parse(data, True)
        except (ExpatError, LookupError, ValueError) as error:  # LookupError: an encoding Python does not know
            raise self._fault(f"not well-formed: {_reason(error)}{self._still_open()}") from error
        if self._root is None:
            raise self._fault("no element")
        return self._root

    def _start(self, tag: str, attributes: list[str]) -> None:
        self._count += 1
        if len(self._open) >= MAX_DEPTH:
            raise self._fault(f"<{tag}> is nested {MAX_DEPTH + 1} deep, more than {MAX_DEPTH}")
        if self._count > MAX_ELEMENTS:
            raise self._fault(f"more than {MAX_ELEMENTS} elements")
        if len(attributes) > 2 * MAX_ATTRIBUTES:
            raise self._fault(f"<{tag[:40]}> has {len(attributes) // 2} attributes, more than {MAX_ATTRIBUTES}")
        if max(map(len, attributes), default=0) > MAX_VALUE_CHARACTERS or len(tag) > MAX_VALUE_CHARACTERS:
            raise self._fault(f"<{tag[:40]}> has a name or value of more than {MAX_VALUE_CHARACTERS} characters")
        values = dict(zip(attributes[::2], attributes[1::2], strict=True))
        self._open.append((tag, values, self._parser.CurrentLineNumber, []))

    def _end(self, _tag: str) -> None:
        tag, attributes, line, children = self._open.pop()
        element = Element(tag, attributes, tuple(children), line)
        if self._open:
            self._open[-1][3].append(element)
        else:
            self._root = element

    def _characters(self, text: str) -> None:
        if text.strip():
            raise self._fault(f"text between elements: {text.strip()[:40]!r}")

    def _refuse_doctype(self, *_: object) -> None:
        raise self._fault("a document type (DOCTYPE) has no place in a topology file and is not read")

    def _still_open(self) -> str:
        if not self._open:
            return ""
        tags = ", ".join(f"<{tag[:40]}> of line {line}" for tag, _, line, _ in self._open[-3:])
        return f"; still open: {tags}"

    def _fault(self, what: str) -> ParseError:
        line, column = self._parser.CurrentLineNumber, self._parser.CurrentColumnNumber + 1
        return ParseError(f"{self._source}: line {line}, column {column}: {what}", details={"line": line})


def _reason(error: Exception) -> str:
    return expat.ErrorString(error.code) or "unknown error" if isinstance(error, ExpatError) else str(error)


def render(root: Element) -> str:
    """Return the text of an element and all below it, laid out as NCCL writes it: two spaces a level.

    ``parse(render(x)).root == x``, and a file that NCCL wrote comes out byte for byte.
    """
    lines: list[str] = []
    stack: list[tuple[Element | str, str]] = [(root, "")]
    while stack:
        item, indent = stack.pop()
        if isinstance(item, str):
            lines.append(f"{indent}</{item}>\n")
            continue
        values = "".join(f' {name}="{value.translate(_ESCAPES)}"' for name, value in item.attributes.items())
        lines.append(f"{indent}<{item.tag}{values}{'' if item.children else '/'}>\n")
        if item.children:
            stack.append((item.tag, indent))
            stack.extend((child, indent + "  ") for child in reversed(item.children))
    return "".join(lines)


def loading_notes(root: Element) -> tuple[str, ...]:
    """Return what NCCL's own reader would not take of these elements, one sentence each (at most 20)."""
    return tuple(note for _, note in zip(range(20), _element_notes(root), strict=False))


def _element_notes(root: Element) -> Iterator[str]:
    for element in root.walk():
        where = f"line {element.line}: <{element.tag}>" if element.line else f"<{element.tag}>"
        if len(element.attributes) > NCCL_MAX_ATTRIBUTES:
            yield f"{where} has {len(element.attributes)} attributes; NCCL reads at most {NCCL_MAX_ATTRIBUTES}"
        if len(element.children) > NCCL_MAX_CHILDREN:
            yield f"{where} has {len(element.children)} children; NCCL reads at most {NCCL_MAX_CHILDREN}"
        for name, value in element.attributes.items():
            if len(value) > NCCL_MAX_VALUE_CHARACTERS:
                yield f"{where} {name} has {len(value)} characters; NCCL reads at most {NCCL_MAX_VALUE_CHARACTERS}"
            if _SPECIAL.search(value):
                yield f"{where} {name} holds {value[:40]!r}: NCCL does not decode character references"


def _raw_notes(data: bytes) -> Iterator[str]:
    if data.lstrip().startswith(b"<?"):
        yield "line 1: NCCL's own reader does not take an XML declaration"
    for number, line in enumerate(data.splitlines(), 1):
        if line[: len(line) - len(line.lstrip())].count(b"\t"):
            yield f"line {number}: indented with a tab, which NCCL's own reader does not take"
            return
