"""Messages of etcd's JSON gateway, and its errors.

Source: etcd 3.4, etcdserver/etcdserverpb/rpc.proto. Numbers of 64 bits are strings in its JSON, keys and values are
base64; what has its default value is left out.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec

from fabricd.errors import UnreachableError

T = TypeVar("T")


class EtcdError(UnreachableError):
    """etcd does not answer, or refuses.

    Attributes:
        grpc_code: etcd's own code of a refusal; None without an answer.
    """

    def __init__(self, message: str, *, grpc_code: int | None = None) -> None:
        super().__init__(message)
        self.grpc_code = grpc_code


class LeaseLostError(EtcdError):
    """The lease has ended, and the keys under it are gone."""


@dataclass(frozen=True, slots=True)
class Header:
    """Of every answer."""

    cluster_id: int = 0
    revision: int = 0  #: of the whole store


@dataclass(frozen=True, slots=True)
class KeyValue:
    """A key."""

    key: bytes = b""
    value: bytes = b""
    mod_revision: int = 0  #: of its last change


@dataclass(frozen=True, slots=True)
class Change:
    """A change that a watch tells of."""

    kv: KeyValue = KeyValue()
    type: str = "PUT"  #: or "DELETE"


@dataclass(frozen=True, slots=True)
class WatchAnswer:
    """One message of a watch."""

    header: Header = Header()
    created: bool = False
    canceled: bool = False
    compact_revision: int = 0  #: with ``canceled``: what was asked for is kept no more
    cancel_reason: str = ""
    events: tuple[Change, ...] = ()


@dataclass(frozen=True, slots=True)
class Listing:
    """All keys of a prefix at one revision, by their last change; without values."""

    header: Header
    keys: Mapping[bytes, int]


@dataclass(frozen=True, slots=True)
class ErrorMessage:
    """A refusal."""

    message: str = ""
    error: str = ""
    code: int | None = None
    grpc_code: int | None = None


@dataclass(frozen=True, slots=True)
class Range:
    """Keys, or a page of them."""

    header: Header = Header()
    kvs: tuple[KeyValue, ...] = ()
    more: bool = False


@dataclass(frozen=True, slots=True)
class Response:
    """What one operation of a transaction found."""

    response_range: Range = Range()


@dataclass(frozen=True, slots=True)
class Transaction:
    """What a transaction found."""

    responses: tuple[Response, ...] = ()


@dataclass(frozen=True, slots=True)
class Lease:
    """A lease; no time left: it has ended."""

    TTL: int = 0


@dataclass(frozen=True, slots=True)
class Streamed:
    """A message of a stream: a result, or an error."""

    result: dict[str, Any] = field(default_factory=dict)
    error: dict[str, Any] | None = None


def decode(data: bytes, kind: type[T]) -> T:
    """Return a message of etcd's JSON.

    Raises:
        EtcdError: it is none.
    """
    try:
        return msgspec.json.decode(bytes(data), type=kind, strict=False)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise EtcdError(f"an answer that is not etcd's: {error}") from error


def convert(data: object, kind: type[T]) -> T:
    """Return the message that a part of another one is.

    Raises:
        EtcdError: it is none.
    """
    try:
        return msgspec.convert(data, type=kind, strict=False)
    except msgspec.ValidationError as error:
        raise EtcdError(f"an answer that is not etcd's: {error}") from error


def refusal(error: ErrorMessage) -> EtcdError:
    """Return the error that a refusal is."""
    code = error.code if error.code is not None else error.grpc_code
    return EtcdError(f"etcd refuses: {error.message or error.error or 'without a word'}", grpc_code=code)
