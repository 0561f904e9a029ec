"""What a daemon shows and what it asks for: tokens, certificates and their files, read together and as a whole."""

import hashlib
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TypeVar

from fabricd.config import Config
from fabricd.errors import FabricError
from fabricd.locations import read_secret_file
from fabricd.scopes import Grants, grant_of_token, read_grants
from fabricd.tls import KeyPair, client_context, not_after, server_context

T = TypeVar("T")

#: A certificate that ends sooner than this is told of.
SOON = timedelta(days=14)


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerAccess:
    """How other daemons, or etcd, are asked. Equal when they would see no difference."""

    token: str | None = field(default=None, repr=False)
    tls: ssl.SSLContext | None = field(default=None, compare=False, repr=False)  #: None: as the system does
    name: str | None = None  #: that each peer's certificate bears, whatever its URL says
    files: str = field(default="", repr=False)  #: hash of what ``tls`` was made of


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """All of them, as they were read.

    Attributes:
        grants: who may ask from beyond this host, the holder of ``token_file`` included.
        peers: how other daemons are asked.
        etcd: how etcd is asked.
        server_tls: what the TCP port listens with; None: without TLS.
        not_after: until when the daemon's certificate is valid.
        signature: of the files; another one says that a file has changed.
    """

    grants: Grants = field(default_factory=Grants)
    peers: PeerAccess = field(default_factory=PeerAccess)
    etcd: PeerAccess = field(default_factory=PeerAccess)
    server_tls: ssl.SSLContext | None = field(default=None, repr=False)
    not_after: datetime | None = None
    signature: tuple[object, ...] = ()

    @property
    def token(self) -> str | None:
        """The content of ``token_file``: what this cluster's daemons show each other."""
        return self.peers.token


def read_credentials(config: Config, faults: list[str]) -> Credentials:
    """Read all files that the configuration names; add a sentence to ``faults`` for each thing that is wrong."""
    signature = files_signature(config)  # before they are read: a change in between is seen the next time

    def attempt(read: Callable[[], T], setting: str) -> T | None:
        try:
            return read()
        except FabricError as error:
            told = str(error)
            faults.append(told if setting in told else f"{setting}: {told}")
            return None

    token_file, access_file = config.token_file, config.access_file
    pair = _pair(config.tls_certificate_file, config.tls_key_file)
    token = attempt(lambda: read_secret_file(token_file, "token_file"), "token_file") if token_file else None
    lines = (attempt(lambda: read_grants(access_file, "access_file"), "access_file") or ()) if access_file else ()
    own = (grant_of_token(token),) if token is not None else ()
    server_tls = end = None
    if pair is not None:
        server_tls = attempt(lambda: server_context(pair, config.tls_client_ca_file), "tls")
        end = attempt(lambda: not_after(pair.certificate_file), "tls_certificate_file") if server_tls else None

    def access(ca_file: Path | None, pair: KeyPair | None, setting: str) -> PeerAccess:
        if (ca_file is None and pair is None) or faults:
            return PeerAccess()
        tls = attempt(lambda: client_context(ca_file, pair), setting)
        return PeerAccess(tls=tls, files=_content(ca_file, pair, faults))

    peers = access(config.tls_ca_file, pair, "tls_ca_file")
    shown = _pair(config.etcd_certificate_file, config.etcd_key_file) or pair
    return Credentials(
        grants=Grants(lines=(*own, *lines)),
        peers=replace(peers, token=token, name=config.tls_peer_name),
        etcd=access(config.etcd_ca_file or config.tls_ca_file, shown, "etcd_ca_file"),
        server_tls=server_tls,
        not_after=end,
        signature=signature,
    )


def contradictions(config: Config, credentials: Credentials) -> list[str]:
    """Return what does not fit together, one sentence each."""
    faults = []
    if config.beyond_loopback and config.token_file is None and config.access_file is None:
        faults.append(
            f"host {config.host} is beyond loopback, and no token guards it: set token_file (--token-file) or "
            "access_file, or host to 127.0.0.1"
        )
    if (config.tls_certificate_file is None) != (config.tls_key_file is None):
        faults.append("tls_certificate_file and tls_key_file belong together: set both or none")
    if (config.etcd_certificate_file is None) != (config.etcd_key_file is None):
        faults.append("etcd_certificate_file and etcd_key_file belong together: set both or none")
    asks = config.tls_client_ca_file is not None
    if asks and config.tls_certificate_file is None:
        faults.append("tls_client_ca_file needs TLS: set tls_certificate_file and tls_key_file")
    if asks and not credentials.grants.has_certificates:
        faults.append("tls_client_ca_file lets nobody in: no line of access_file says certificate:NAME")
    if not asks and credentials.grants.has_certificates:
        faults.append("access_file names certificates, and tls_client_ca_file does not say which CA vouches for them")
    return faults


def warnings(config: Config, credentials: Credentials, now: datetime | None = None) -> tuple[str, ...]:
    """Return what works, and should not stay as it is; one sentence each."""
    told = []
    if config.beyond_loopback and credentials.server_tls is None:
        told.append(
            f"host {config.host} is beyond loopback without TLS: tokens and groups' secrets can be read on the way; "
            "set tls_certificate_file and tls_key_file"
        )
    return (*told, *expiry(config, credentials, now))


def expiry(config: Config, credentials: Credentials, now: datetime | None = None) -> tuple[str, ...]:
    """Return a sentence when the daemon's certificate ends soon, or has ended."""
    end, now = credentials.not_after, now or datetime.now(UTC)
    if end is None or end - now >= SOON:
        return ()
    when = f"ended at {end:%Y-%m-%d %H:%M} UTC" if end <= now else f"ends in {(end - now).days} days, {end:%Y-%m-%d}"
    return (f"the certificate {config.tls_certificate_file} {when}: renew it, it is read again by itself",)


def files_signature(config: Config) -> tuple[object, ...]:
    """Return what is another when one of the files is."""
    return tuple(_status(path) for path in _files(config))


def _pair(certificate_file: Path | None, key_file: Path | None) -> KeyPair | None:
    if certificate_file is None or key_file is None:
        return None
    return KeyPair(certificate_file=certificate_file, key_file=key_file)


def _files(config: Config) -> list[Path]:
    every = (
        config.tls_certificate_file,
        config.tls_key_file,
        config.tls_ca_file,
        config.tls_client_ca_file,
        config.etcd_ca_file,
        config.etcd_certificate_file,
        config.etcd_key_file,
        config.token_file,
        config.access_file,
    )
    return [path for path in every if path is not None]


def _status(path: Path) -> object:
    try:
        status = path.stat()
    except OSError as error:
        return error.errno
    return status.st_mtime_ns, status.st_ino, status.st_size, status.st_mode


def _content(ca_file: Path | None, pair: KeyPair | None, faults: list[str]) -> str:
    """Return a hash of what others are asked with."""
    found = hashlib.sha256()
    for path in (ca_file, *((pair.certificate_file, pair.key_file) if pair else ())):
        if path is not None and not faults:  # they have been read just now, and are as short as they should be
            try:
                found.update(hashlib.sha256(path.read_bytes()).digest())
            except OSError as error:
                faults.append(f"cannot read {path}: {error.strerror or error}")
    return found.hexdigest()
