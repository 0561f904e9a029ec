"""Who asks: decided once for each request, before anything else looks at it."""

import ipaddress
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

from fastapi import Request

from fabricd.errors import TokenError
from fabricd.scopes import ALL_SCOPES, LOCAL_SCOPES, Grant, Grants, Scope

#: Key of the connection's peer in the ASGI scope's state; set by the server's protocol for Unix sockets.
PEER_STATE = "fabricd.unix_peer"
#: Key, in the same place, of the names in the client's verified certificate.
CERTIFICATE_STATE = "fabricd.certificate"
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
            "token": somebody who holds a bearer token; "certificate": somebody with a verified certificate; "stranger":
            anybody, who gets no further than health.
        uid: user of a Unix caller; None for the others, and for a Unix caller that cannot be told from others.
        name: of the line that lets a token or certificate in.
        scopes: what the caller may ask.
    """

    kind: Literal["unix", "loopback", "token", "certificate", "stranger"]
    uid: int | None = None
    pid: int | None = None
    name: str = ""
    scopes: frozenset[Scope] = frozenset()

    def __str__(self) -> str:
        if self.kind == "unix":
            return f"uid {self.uid}, pid {self.pid}"
        return f"{self.kind} {self.name}" if self.name else self.kind


async def caller(request: Request) -> Caller:  # FastAPI runs plain functions in threads, which costs more
    """Return who asks. A dependency for handlers; the gate has let nobody else in."""
    return cast(Caller, request.scope["state"][CALLER_STATE])


def unix_peer(pid: int, uid: int, gid: int) -> UnixPeer:
    """Return the peer that SO_PEERCRED tells of; a uid that stands for all unmapped users is nobody's."""
    return UnixPeer(pid=pid, uid=None if uid == _overflow_uid() else uid, gid=gid)


def identify(scope: Mapping[str, Any], grants: Grants) -> Caller:
    """Return who sent the request.

    A request that a proxy passed on is not a local one, wherever the proxy runs.

    Args:
        scope: the ASGI scope.
        grants: the tokens and certificates that this daemon knows; without any nobody beyond this host may ask.

    Raises:
        TokenError: not of this host, and nothing or something wrong to show.
    """
    state = scope.get("state", {})
    peer = state.get(PEER_STATE)
    if isinstance(peer, UnixPeer):  # the kernel vouches for it; a token would tell less
        scopes = ALL_SCOPES if peer.uid in (0, os.geteuid()) else LOCAL_SCOPES
        return Caller(kind="unix", uid=peer.uid, pid=peer.pid, scopes=scopes)
    shown = _bearer(scope)
    if shown is not None and grants.lines:
        grant = grants.of_token(shown)
        if grant is None:
            raise TokenError("the bearer token is none of this daemon", hint="see FABRICD_TOKEN_FILE")
        return _granted("token", grant)
    names = state.get(CERTIFICATE_STATE, ())
    grant = grants.of_certificate(names)
    if grant is not None:
        return _granted("certificate", grant)
    if is_loopback(scope) and not any(name in _FORWARDED for name, _ in scope["headers"]):
        return Caller(kind="loopback", scopes=LOCAL_SCOPES)
    raise TokenError(
        f"no line of access_file is for the certificate of {', '.join(names)[:200]}"
        if names
        else "requests from beyond this host need a bearer token",
        hint="send Authorization: Bearer TOKEN, the content of the daemon's token_file or a token of its access_file; "
        "fabricctl and programs send what is in the file that FABRICD_TOKEN_FILE names",
    )


def _granted(kind: Literal["token", "certificate"], grant: Grant) -> Caller:
    return Caller(kind=kind, name=grant.name, scopes=grant.scopes)


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
