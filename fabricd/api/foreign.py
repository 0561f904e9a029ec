"""Requests that a web page makes, or that are meant for somebody else: whose they are, their headers tell."""

import ipaddress
import socket
from urllib.parse import urlsplit

from fabricd.api.problem import MisdirectedError
from fabricd.errors import AccessError, InputError


def check_host(headers: list[tuple[bytes, bytes]], allowed: tuple[str, ...]) -> None:
    """Refuse a local request that is meant for another name.

    A browser on this host can be made to ask 127.0.0.1 under a name of an attacker's web site (DNS rebinding); then
    the Host header bears that name. Addresses cannot be rebound. Callers with a token need no such check: no web
    site has the token.

    Raises:
        MisdirectedError: the name is neither an address nor this host's.
        InputError: no Host header, or several.
    """
    values = [value for name, value in headers if name == b"host"]
    if len(values) != 1:
        raise InputError("the request must bear exactly one Host header")
    name = _host_of(values[0].decode("latin-1"))
    if not _is_address(name) and name not in ("localhost", *_own_names(), *(host.lower() for host in allowed)):
        raise MisdirectedError(
            f"this daemon is not {name[:100]!r}", hint="use an address or localhost, or add the name to allowed_hosts"
        )


def check_origin(headers: list[tuple[bytes, bytes]]) -> None:
    """Refuse what a web page of another site sends.

    Browsers tell the page's origin with every POST, and with every request whether it crosses sites (Fetch Metadata).

    Raises:
        AccessError: the request comes from a page of another host.
    """
    if any(name == b"sec-fetch-site" and value in (b"cross-site", b"same-site") for name, value in headers):
        raise AccessError("requests from web pages of other sites are refused")
    origins = [value for name, value in headers if name == b"origin"]
    if not origins:
        return
    hosts = [value.decode("latin-1").lower() for name, value in headers if name == b"host"]
    try:
        origin = urlsplit(origins[0].decode("latin-1")).netloc.lower()
    except ValueError:
        origin = ""
    if len(origins) != 1 or not origin or [origin] != hosts:
        raise AccessError("requests from web pages of other sites are refused", hint="ask without an Origin header")


def _host_of(value: str) -> str:
    """Return the host of a Host header, without port and brackets, in lower case; "" when there is none, or more."""
    try:
        parts = urlsplit(f"//{value}")
    except ValueError:
        return ""
    return (parts.hostname or "") if parts.netloc == value and "@" not in value else ""


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _own_names() -> tuple[str, ...]:
    name = socket.gethostname().lower()
    return (name, name.partition(".")[0])
