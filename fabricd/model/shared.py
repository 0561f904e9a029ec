"""Decodes snapshots of many nodes so that what is alike on them is one object.

The machines of a cluster are mostly of few kinds: their PCI trees, NUMA nodes, NVLinks and drivers are equal to the
byte. Such a part is recognised by its JSON and decoded once, which saves memory and time, and keeps each single call
of the decoder short: it holds the interpreter, whoever calls it.
"""

import functools
import hashlib
import types
import typing
from dataclasses import MISSING, Field, fields
from typing import Any, TypeVar

import msgspec

from fabricd.errors import ParseError
from fabricd.model.device import Gpu
from fabricd.model.snapshot import Snapshot

T = TypeVar("T")

#: Fields that tend to be equal between nodes, of the classes that are walked through to find them.
_SHARED: dict[type, frozenset[str]] = {
    Snapshot: frozenset({"numa", "pci", "routes", "gpu_driver", "topology_file"}),
    Gpu: frozenset({"pcie", "cpu_affinity", "links", "peers", "fabric", "mig", "notes"}),
}
#: Fields that may be long and are no node's like another's.
_OWN: dict[type, frozenset[str]] = {Snapshot: frozenset({"interfaces", "hcas", "lldp", "ib_fabrics"})}
#: Longer lists are decoded one by one.
_LONG_BYTES = 1 << 18
#: Parts that are remembered, and bytes of their JSON; when there are more, nodes are not of few kinds, and all are
#: forgotten.
_MAX_PARTS = 4096
_MAX_BYTES = 64 << 20


class SharedParts:
    """Decodes, and remembers the parts that it has seen. Threads may share it."""

    def __init__(self) -> None:
        self._known: dict[tuple[type, str, bytes], Any] = {}
        self._bytes = 0

    def decode(self, data: bytes, kind: type[T], *, what: str = "message") -> T:
        """Decode and validate a model that is a snapshot or has one; as ``codec.from_json`` does.

        Raises:
            ParseError: not JSON, or not of that shape; says where.
        """
        model: type = kind
        try:
            made: T = self._whole(model, msgspec.json.decode(data, type=_outline(model)))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise ParseError(f"{what} is not a valid {kind.__name__}: {error}") from error
        return made

    def _whole(self, kind: type, outline: msgspec.Struct) -> Any:
        values = msgspec.structs.asdict(outline)
        for name, known in _raw(kind).items():
            raw = values.pop(name)
            if raw != _ABSENT:
                values[name] = (self._part if known else _decoded)(kind, name, bytes(raw))
        for name, inner in _walked(kind).items():
            value = values[name]
            if isinstance(value, tuple):
                values[name] = tuple([self._whole(inner, one) for one in value])
            elif value is not None:
                values[name] = self._whole(inner, value)
        return kind(**values)

    def _part(self, kind: type, name: str, data: bytes) -> Any:
        key = (kind, name, hashlib.blake2b(data, digest_size=16).digest())
        part = self._known.get(key)
        if part is None:
            part = _decoded(kind, name, data)
            if len(self._known) >= _MAX_PARTS or self._bytes + len(data) > _MAX_BYTES:
                self._known.clear()
                self._bytes = 0
            self._known[key] = part
            self._bytes += len(data)
        return part


_ABSENT = msgspec.Raw()


def _decoded(kind: type, name: str, data: bytes) -> Any:
    """Return the value of a field."""
    hint = _hints(kind)[name]
    try:
        if len(data) < _LONG_BYTES or typing.get_origin(hint) is not tuple:
            return msgspec.json.decode(data, type=hint)
        element = typing.get_args(hint)[0]
        pieces = msgspec.json.decode(data, type=list[msgspec.Raw])
        return tuple(msgspec.json.decode(one, type=element) for one in pieces)
    except msgspec.ValidationError as error:
        raise msgspec.ValidationError(f"{error}, in `{name}`") from error


@functools.cache
def _fields(kind: type) -> tuple[Field[Any], ...]:
    return fields(kind)


@functools.cache
def _hints(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)


@functools.cache
def _raw(kind: type) -> dict[str, bool]:
    """Return the fields that an outline leaves as JSON, and of each whether its value is remembered."""
    return dict.fromkeys(_OWN.get(kind, ()), False) | dict.fromkeys(_SHARED.get(kind, ()), True)


@functools.cache
def _walked(kind: type) -> dict[str, type]:
    """Return the fields whose value is walked through, or each of whose values is, and their class."""
    found = {}
    for name, hint in _hints(kind).items():
        inner = [one for one in (hint, *typing.get_args(hint)) if one in _SHARED]
        if inner:
            found[name] = inner[0]
    return found


@functools.cache
def _outline(kind: type) -> type[msgspec.Struct]:
    """Return a class that decodes as ``kind`` does, but leaves the parts that may be shared as JSON."""
    made = []
    for field in _fields(kind):
        hint, default = _hints(kind)[field.name], field.default
        if field.name in _raw(kind):
            hint, default = msgspec.Raw, _ABSENT
        elif inner := _walked(kind).get(field.name):
            hint = _swapped(hint, inner)
        made.append((field.name, hint) if default is MISSING else (field.name, hint, default))
    return msgspec.defstruct(kind.__name__, made, kw_only=True, gc=False)


def _swapped(hint: Any, kind: type) -> Any:
    """Return a field's type with ``kind`` in it decoded as its outline."""
    outline = _outline(kind)
    if hint is kind:
        return outline
    if isinstance(hint, types.UnionType):
        return outline | None
    return tuple[outline, ...]  # type: ignore[valid-type] # made at run time
