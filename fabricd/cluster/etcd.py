"""etcd's own HTTP interface (the JSON gateway of its v3 API), as much of it as membership needs.

Source: etcd 3.4, Documentation/dev-guide/api_grpc_gateway.md.
"""

import asyncio
import base64
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from typing import Any, TypeVar

import httpx
import msgspec

from fabricd.cluster.etcd_messages import (
    ErrorMessage,
    EtcdError,
    Header,
    KeyValue,
    Lease,
    LeaseLostError,
    Listing,
    Range,
    Streamed,
    Transaction,
    WatchAnswer,
    convert,
    decode,
    refusal,
)
from fabricd.cluster.peer_client import plain_client, read_body, reason_of
from fabricd.credentials import PeerAccess
from fabricd.errors import ParseError

T = TypeVar("T")

_CALL_SECONDS = 3.0
_MAX_ANSWER_BYTES = 64 << 20
#: Keys in one page of a listing, and keys fetched by one transaction (etcd allows 128 operations).
_PAGE, _FETCH = 5000, 64
#: Listed at most, so that nobody fills a daemon's memory with keys.
_MAX_KEYS = 100_000
# gRPC's codes (google/rpc/code.proto).
_NOT_FOUND, _FAILED_PRECONDITION, _OUT_OF_RANGE = 5, 9, 11
#: A refusal that another endpoint would give too.
_FINAL = frozenset({3, _NOT_FOUND, 7, _FAILED_PRECONDITION, _OUT_OF_RANGE, 12, 16})
#: Members that are cut off from their leader refuse instead of answering from what they last knew.
_HEADERS = {"Grpc-Metadata-hasleader": "true"}


class Etcd:
    """A client of one etcd cluster; each call goes to the endpoint that answered last, then to the others.

    Args:
        endpoints: URLs of client ports.
        access: what etcd is asked with at the moment, where those are ``https``.
    """

    def __init__(self, endpoints: Sequence[str], access: Callable[[], PeerAccess] = PeerAccess) -> None:
        self._endpoints = list(endpoints)
        self._access = access
        self._shown = access()
        self._client = self._new_client()

    async def close(self) -> None:
        """Close its connections."""
        await self._client.aclose()

    def _new_client(self) -> httpx.AsyncClient:
        return plain_client(_HEADERS, seconds=_CALL_SECONDS, tls=self._shown.tls)

    async def _current_client(self) -> httpx.AsyncClient:
        """Return the client that trusts and shows what is to be trusted and shown now.

        Files that were renewed end the connections of those before: a watch ends, and begins again.
        """
        access = self._access()
        if access != self._shown:
            self._shown, before = access, self._client
            self._client = self._new_client()
            await before.aclose()
        return self._client

    async def grant(self, lease: int, seconds: int) -> None:
        """Begin a lease with a number of the caller's choice; that it exists already is fine.

        Raises:
            EtcdError: no answer, or a refusal.
        """
        try:
            await self._call("/v3/lease/grant", {"ID": str(lease), "TTL": str(seconds)}, dict)
        except EtcdError as error:
            if error.grpc_code != _FAILED_PRECONDITION:
                raise

    async def keep_alive(self, lease: int) -> None:
        """Renew a lease.

        Raises:
            LeaseLostError: it has ended.
            EtcdError: no answer, or a refusal.
        """
        answer = await self._call("/v3/lease/keepalive", {"ID": str(lease)}, Streamed)
        if answer.error is not None:
            raise refusal(convert(answer.error, ErrorMessage))
        if convert(answer.result, Lease).TTL <= 0:
            raise LeaseLostError("the lease in etcd has ended")

    async def revoke(self, lease: int) -> None:
        """End a lease and what is under it; that it is gone already is fine.

        Raises:
            EtcdError: no answer, or a refusal.
        """
        try:
            await self._call("/v3/lease/revoke", {"ID": str(lease)}, dict)
        except EtcdError as error:
            if error.grpc_code != _NOT_FOUND:
                raise

    async def put(self, key: bytes, value: bytes, lease: int) -> None:
        """Write a key under a lease.

        Raises:
            LeaseLostError: the lease has ended.
            EtcdError: no answer, or a refusal.
        """
        try:
            await self._call("/v3/kv/put", {"key": _text(key), "value": _text(value), "lease": str(lease)}, dict)
        except EtcdError as error:
            if error.grpc_code == _NOT_FOUND:
                raise LeaseLostError("the lease in etcd has ended") from error
            raise

    async def listing(self, prefix: bytes) -> Listing:
        """Return all keys of a prefix (of very many, as many as there is room for), without values.

        Raises:
            EtcdError: no answer, or a refusal.
        """
        keys: dict[bytes, int] = {}
        header: Header | None = None
        start = prefix
        while True:
            ask: dict[str, Any] = {"key": _text(start), "range_end": _text(_end(prefix)), "keys_only": True}
            ask["limit"] = str(_PAGE)
            if header is not None:
                ask["revision"] = str(header.revision)  # all pages of one moment
            page = await self._call("/v3/kv/range", ask, Range)
            header = header or page.header
            keys |= {kv.key: kv.mod_revision for kv in page.kvs}
            if not page.more or not page.kvs or len(keys) > _MAX_KEYS:
                return Listing(header, keys)
            start = page.kvs[-1].key + b"\0"

    async def fetch(self, keys: Sequence[bytes]) -> AsyncIterator[list[KeyValue]]:
        """Yield keys with their values, some at a time; those that are gone are left out.

        Raises:
            EtcdError: no answer, or a refusal.
        """
        for start in range(0, len(keys), _FETCH):
            asked = [{"request_range": {"key": _text(key)}} for key in keys[start : start + _FETCH]]
            answer = await self._call("/v3/kv/txn", {"success": asked}, Transaction)
            yield [kv for response in answer.responses for kv in response.response_range.kvs]

    async def watch(self, prefix: bytes, start_revision: int) -> AsyncGenerator[WatchAnswer, None]:
        """Yield what happens to the keys of a prefix, from a revision on, until the stream ends.

        Raises:
            EtcdError: no answer, a refusal, or the stream ends.
        """
        create = {"key": _text(prefix), "range_end": _text(_end(prefix)), "start_revision": str(start_revision)}
        body = msgspec.json.encode({"create_request": {**create, "fragment": True}})
        timeout = httpx.Timeout(_CALL_SECONDS, read=None)  # nothing comes while nothing happens
        client = await self._current_client()
        url = self._endpoints[0]
        try:
            async with client.stream("POST", f"{url}/v3/watch", content=body, timeout=timeout) as response:
                async for line in _lines(response):
                    message = decode(line, Streamed)
                    if message.error is not None:
                        raise refusal(convert(message.error, ErrorMessage))
                    yield convert(message.result, WatchAnswer)
        except httpx.HTTPError as error:
            self._turn_to_next(url)
            raise EtcdError(f"watch at {url}: {error or type(error).__name__}") from error
        except EtcdError:
            self._turn_to_next(url)
            raise
        raise EtcdError(f"watch at {url}: it ended")

    async def _call(self, path: str, body: Mapping[str, Any], kind: type[T]) -> T:
        """Return the answer of the first endpoint that has one.

        Raises:
            EtcdError: none has, or etcd refuses.
        """
        faults = []
        for url in list(self._endpoints):
            try:
                return await self._ask(url, path, msgspec.json.encode(body), kind)
            except EtcdError as error:
                if error.grpc_code in _FINAL:
                    raise
                faults.append(f"{url}: {error.message}")
                self._turn_to_next(url)
        raise EtcdError("; ".join(faults))

    async def _ask(self, url: str, path: str, body: bytes, kind: type[T]) -> T:
        client = await self._current_client()
        try:
            async with (
                asyncio.timeout(2 * _CALL_SECONDS),
                client.stream("POST", url + path, content=body) as response,
            ):
                data = await read_body(response, _MAX_ANSWER_BYTES)
        except ParseError as error:
            raise EtcdError(f"an answer of more than {_MAX_ANSWER_BYTES} bytes") from error
        except TimeoutError as error:
            raise EtcdError("no whole answer in time") from error
        except httpx.HTTPError as error:
            raise EtcdError(reason_of(error)) from error
        if response.status_code != httpx.codes.OK:
            raise refusal(decode(data, ErrorMessage))
        return decode(data, kind)

    def _turn_to_next(self, url: str) -> None:
        """Ask another endpoint first from now on, unless that was done meanwhile."""
        if self._endpoints[0] == url:
            self._endpoints.append(self._endpoints.pop(0))


async def _lines(response: httpx.Response) -> AsyncIterator[bytes]:
    """Yield the lines of a stream, bounded in length."""
    buffer = bytearray()
    async for chunk in response.aiter_raw():
        buffer += chunk
        if len(buffer) > _MAX_ANSWER_BYTES:
            raise EtcdError(f"a message of more than {_MAX_ANSWER_BYTES} bytes")
        *whole, rest = buffer.split(b"\n") if b"\n" in chunk else (buffer,)
        for line in whole:
            if line.strip():
                yield bytes(line)
        buffer = bytearray(rest)


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def _end(prefix: bytes) -> bytes:
    """Return the first key behind all keys of a prefix.

    Raises:
        ParseError: there is none.
    """
    stripped = prefix.rstrip(b"\xff")
    if not stripped:
        raise ParseError("a prefix of etcd must not be empty")
    return stripped[:-1] + bytes([stripped[-1] + 1])
