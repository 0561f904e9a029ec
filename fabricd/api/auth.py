"""Who asks: decided once for each request, before anything else looks at it."""

import hmac
import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

from fastapi import Request

from fabricd.errors import TokenError

#: Key of the connection's peer in the ASGI scope's state; set by the server's protocol for Unix sockets.
PEER_STATE = "fabricd.unix_peer"
#: Key of the caller in the ASGI scope's state; set by the gate.
CALLER_STATE = "fabricd.caller"

_FORWARDED = (b"forwarded", b"x-forwarded-for", b"x-real-ip", b"via")


@dataclass(frozen=True, slots=True, kw_only=True)
class UnixPeer:
    """The process at the other end of a Unix socket, as the kernel names it (SO_PEERCRED)."""

    pid: int
    uid: int | None  #: None where it has no identity here: a user namespace that does not map it
    gid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Who asks.

    Attributes:
        kind: "unix": a process of this host, known by its uid; "loopback": some process of this network namespace;
            "token": somebody who holds the bearer token; "stranger": anybody, who gets no further than health.
        uid: user of a Unix caller; None for the others, and for a Unix caller that cannot be told from others.
    """

    kind: Literal["unix", "loopback", "token", "stranger"]
    uid: int | None = None
    pid: int | None = None

    def __str__(self) -> str:
        return f"uid {self.uid}, pid {self.pid}" if self.kind == "unix" else self.kind


async def caller(request: Request) -> Caller:  # FastAPI runs plain functions in threads, which costs more
    """Return who asks. A dependency for handlers; the gate has let nobody else in."""
    return cast(Caller, request.scope["state"][CALLER_STATE])


def unix_peer(pid: int, uid: int, gid: int) -> UnixPeer:
    """Return the peer that SO_PEERCRED tells of; a uid that stands for all unmapped users is nobody's."""
    return UnixPeer(pid=pid, uid=None if uid == _overflow_uid() else uid, gid=gid)


def identify(scope: Mapping[str, Any], token: str | None) -> Caller:
    """Return who sent the request.

    A request that a proxy passed on is not a local one, wherever the proxy runs.

    Args:
        scope: the ASGI scope.
        token: the bearer token of this daemon; None: nobody beyond this host may ask.

    Raises:
        TokenError: not of this host, and no token or a wrong one.
    """
    peer = scope.get("state", {}).get(PEER_STATE)
    if isinstance(peer, UnixPeer):  # the kernel vouches for it; a token would tell less
        return Caller(kind="unix", uid=peer.uid, pid=peer.pid)
    local = is_loopback(scope) and not any(name in _FORWARDED for name, _ in scope["headers"])
    shown = _bearer(scope)
    if shown is not None and token is not None:
        if not hmac.compare_digest(shown, token.encode()):
            raise TokenError("the bearer token is not the one of this daemon", hint="see FABRICD_TOKEN_FILE")
        return Caller(kind="token")
    if local:
        return Caller(kind="loopback")
    raise TokenError(
        "requests from beyond this host need the bearer token",
        hint="send Authorization: Bearer TOKEN, the content of the daemon's token_file",
    )


def is_loopback(scope: Mapping[str, Any]) -> bool:
    """Whether the connection's other end has a loopback address."""
    client = scope.get("client")
    if not client:
        return False
    try:
        address = ipaddress.ip_address(client[0])
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback


def _bearer(scope: Mapping[str, Any]) -> bytes | None:
    """Return the token that the request shows, or None when it has no Authorization header."""
    values = [value for name, value in scope["headers"] if name == b"authorization"]
    if not values:
        return None
    scheme, _, shown = values[0].partition(b" ")
    return cast(bytes, shown.strip()) if len(values) == 1 and scheme.lower() == b"bearer" else b""


def _overflow_uid() -> int:
    try:
        return int(Path("/proc/sys/kernel/overflowuid").read_text(encoding="ascii"))
    except (OSError, ValueError):
        return 65534
