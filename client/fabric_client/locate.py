"""Where the daemon is, and the secrets to show it: from arguments, else from the environment.

A daemon is looked for in this order: the argument ``url``; ``FABRICD_URL``; the daemon on ``MASTER_ADDR``, unless the
launcher says that every rank is on this host; the Unix socket that ``FABRICD_SOCKET`` names, else one of this user or
host; ``http://127.0.0.1:7470``. The last and ``MASTER_ADDR`` are asked by TLS where ``FABRICD_CA_FILE`` is set.
"""

import os
import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from fabricd.errors import FabricError, InputError
from fabricd.locations import DEFAULT_PORT, check_secret, find_socket, read_secret_file
from fabricd.tls import KeyPair, client_context

_OWN_CERTIFICATE = ("FABRICD_CERTIFICATE_FILE", "FABRICD_KEY_FILE")
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
_BARE = re.compile(r"(\[[0-9a-fA-F:.]+\]|[\w.-]+)(:\d+)?")  # a host, and maybe a port
_MAX_HOST = 260
#: Where a daemon is asked for that nothing names.
_DEFAULT = "the default address"


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonAddress:
    """A daemon's address."""

    url: str  #: base of its HTTP interface
    socket: str | None = None  #: path of its Unix socket, when that is the way
    source: str = "an argument"  #: what said so

    def __str__(self) -> str:
        return f"unix:{self.socket}" if self.socket else self.url

    @property
    def is_local(self) -> bool:
        """Whether it is on this host for sure."""
        return self.socket is not None or urlsplit(self.url).hostname in _LOOPBACK

    @property
    def advice(self) -> str:
        """What to do when nobody answers there."""
        if self.source == _DEFAULT:
            return f"start `fabricd serve`, or name a daemon elsewhere: FABRICD_URL=http://HOST:{DEFAULT_PORT}"
        return f"is `fabricd serve` running there? The address came from {self.source}"


def find_daemon(
    url: str | None = None, *, environ: Mapping[str, str] | None = None, all_local: bool = False
) -> DaemonAddress:
    """Return the daemon to ask.

    Args:
        url: ``http://HOST:PORT``, ``https://...`` or ``unix:/path``; None looks into the environment.
        environ: the environment, by default this process's.
        all_local: every rank of the job is on this host, so ``MASTER_ADDR`` says nothing new.

    Raises:
        InputError: an address that is none.
    """
    environ = os.environ if environ is None else environ
    if url is not None:
        return parse_address(url, source="an argument")
    if environ.get("FABRICD_URL"):
        return parse_address(environ["FABRICD_URL"], source="FABRICD_URL")
    master = environ.get("MASTER_ADDR", "")
    scheme = "https" if environ.get("FABRICD_CA_FILE") else "http"
    if master and master not in _LOOPBACK and not all_local:
        host = f"[{master}]" if ":" in master else master
        return parse_address(f"{scheme}://{host}:{DEFAULT_PORT}", source="MASTER_ADDR")
    path = find_socket(environ)
    if path is not None:
        source = "FABRICD_SOCKET" if environ.get("FABRICD_SOCKET") else "this host's Unix socket"
        return DaemonAddress(url="http://fabricd", socket=str(path), source=source)
    return DaemonAddress(url=f"{scheme}://127.0.0.1:{DEFAULT_PORT}", source=_DEFAULT)


def parse_address(text: str, *, source: str = "an argument") -> DaemonAddress:
    """Return the address that a URL names.

    Raises:
        InputError: not ``http://``, ``https://`` or ``unix:/path``.
    """
    if text.startswith("unix:"):
        path = text.removeprefix("unix:").removeprefix("//")
        if not path.startswith("/"):
            raise InputError(f"not an absolute path: {text[:80]!r} (from {source})", hint="expected unix:/path/to.sock")
        return DaemonAddress(url="http://fabricd", socket=path, source=source)
    try:
        parts = urlsplit(text)
        fine = parts.scheme in ("http", "https") and bool(parts.hostname) and not parts.username
        port = parts.port
    except ValueError:
        fine, port = False, None
    if not fine:
        raise InputError(
            f"not a daemon's address: {text[:80]!r} (from {source}){with_scheme(text)}",
            hint=f"expected http://HOST:{DEFAULT_PORT}, https://HOST or unix:/path/to.sock",
        )
    base = text.rstrip("/")
    if port is None and parts.scheme == "http" and parts.path in ("", "/"):
        base = f"{base}:{DEFAULT_PORT}"
    return DaemonAddress(url=base, source=source)


def with_scheme(text: str) -> str:
    """Return ``"; did you mean http://...?"`` for a host, or a host and its port, and ``""`` for other texts."""
    return f"; did you mean http://{text}?" if len(text) <= _MAX_HOST and _BARE.fullmatch(text) else ""


def find_token(environ: Mapping[str, str] | None = None) -> str | None:
    """Return the bearer token in the file that ``FABRICD_TOKEN_FILE`` names, or None.

    Raises:
        AccessError: the file cannot be read, or others could.
    """
    environ = os.environ if environ is None else environ
    path = environ.get("FABRICD_TOKEN_FILE")
    return read_secret_file(Path(path), "FABRICD_TOKEN_FILE") if path else None


def find_tls(environ: Mapping[str, str] | None = None) -> ssl.SSLContext:
    """Return what daemons with ``https://`` are checked with, and shown.

    ``FABRICD_CA_FILE`` names the CAs, by default this system's; ``FABRICD_CERTIFICATE_FILE`` and ``FABRICD_KEY_FILE`` a
    certificate of this client, by default none.

    Raises:
        FabricError: a file cannot be read or is none of its kind; or only one of the last two is given.
    """
    environ = os.environ if environ is None else environ
    named = {name: environ.get(name) for name in ("FABRICD_CA_FILE", *_OWN_CERTIFICATE)}
    ca, certificate, key = named.values()
    if bool(certificate) != bool(key):
        raise InputError(f"{' and '.join(_OWN_CERTIFICATE)} belong together: set both or none")
    pair = KeyPair(certificate_file=Path(certificate), key_file=Path(key)) if certificate and key else None
    try:
        return client_context(Path(ca) if ca else None, pair)
    except FabricError as error:
        error.hint = error.hint or f"set: {', '.join(f'{name}={value}' for name, value in named.items() if value)}"
        raise


def find_group_secret(secret: str | None = None, *, environ: Mapping[str, str] | None = None) -> str | None:
    """Return the group's secret: the argument, ``FABRICD_GROUP_SECRET_FILE``, ``FABRICD_GROUP_SECRET``, or None.

    Raises:
        AccessError: the file cannot be read, or others could.
        InputError: a secret that no header can carry.
    """
    environ = os.environ if environ is None else environ
    if secret is not None:
        return check_secret(secret, "argument secret")
    path = environ.get("FABRICD_GROUP_SECRET_FILE")
    if path:
        return read_secret_file(Path(path), "FABRICD_GROUP_SECRET_FILE")
    value = environ.get("FABRICD_GROUP_SECRET")
    return check_secret(value, "FABRICD_GROUP_SECRET") if value else None
