"""TLS between daemons and with their clients: contexts made of files, and how long a certificate lasts.

Standard library only: the client uses it too.
"""

import ssl
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from fabricd.errors import AccessError, InputError
from fabricd.locations import read_private_file

_MAX_FILE_BYTES = 1 << 20
_SEQUENCE, _UTC_TIME, _GENERALIZED_TIME, _VERSION = 0x30, 0x17, 0x18, 0xA0


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyPair:
    """A certificate, with those between it and its CA behind it, and its key; PEM files."""

    certificate_file: Path
    key_file: Path


def server_context(pair: KeyPair, client_ca_file: Path | None) -> ssl.SSLContext:
    """Return what a daemon listens with: TLS 1.2 or later, HTTP/1.1.

    Args:
        pair: the daemon's own.
        client_ca_file: the CAs whose certificates clients may show; None: they are not asked for any. Nobody must show
            one: whether a caller needs it is decided for each request.

    Raises:
        FabricError: a file cannot be read, is none of its kind, or does not fit the other.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    _load(context, pair)
    if client_ca_file is not None:
        context.verify_mode = ssl.CERT_OPTIONAL
        _trust(context, client_ca_file)
    return context


def client_context(ca_file: Path | None, pair: KeyPair | None = None) -> ssl.SSLContext:
    """Return what daemons are asked with.

    Args:
        ca_file: the CAs that vouch for daemons, and no others; None: those of this system.
        pair: shown to daemons that ask for it.

    Raises:
        FabricError: a file cannot be read, is none of its kind, or does not fit the other.
    """
    context = ssl.create_default_context() if ca_file is None else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if ca_file is not None:
        _trust(context, ca_file)
    if pair is not None:
        _load(context, pair)
    return context


def not_after(certificate_file: Path) -> datetime:
    """Return until when the first certificate of a PEM file is valid.

    Raises:
        FabricError: it cannot be read, or is none.
    """
    text = _read(certificate_file).decode("ascii", "replace")
    begin, end = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
    _, found, rest = text.partition(begin)
    body, closed, _ = rest.partition(end)
    try:
        if not found or not closed:
            raise ValueError("no certificate in it")
        return _not_after(ssl.PEM_cert_to_DER_cert(begin + body + end))
    except (ValueError, IndexError) as error:
        raise InputError(f"{certificate_file}: not a PEM certificate: {error}") from error


def _load(context: ssl.SSLContext, pair: KeyPair) -> None:
    def no_password() -> str:  # without it OpenSSL would ask at the terminal
        raise InputError(f"{pair.key_file}: the key has a passphrase, which a daemon cannot be asked for")

    read_private_file(pair.key_file, str(pair.key_file), limit=_MAX_FILE_BYTES)
    not_after(pair.certificate_file)  # says more of a bad one than OpenSSL does
    try:
        context.load_cert_chain(pair.certificate_file, pair.key_file, password=no_password)
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        raise InputError(f"{pair.key_file}: not the key of {pair.certificate_file}, or none: {_told(error)}") from error


def _trust(context: ssl.SSLContext, ca_file: Path) -> None:
    _read(ca_file)
    try:
        context.load_verify_locations(ca_file)
    except (OSError, ValueError) as error:
        raise InputError(f"{ca_file}: not PEM certificates of CAs: {_told(error)}") from error


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_FILE_BYTES + 1)
    except OSError as error:
        raise AccessError(f"cannot read {path}: {error.strerror or error}") from None
    if len(data) > _MAX_FILE_BYTES:
        raise InputError(f"{path}: more than {_MAX_FILE_BYTES} bytes")
    return data


def _told(error: Exception) -> str:
    reason = getattr(error, "reason", None)
    return str(reason or error).lower().replace("_", " ")


def _not_after(der: bytes) -> datetime:
    """Return ``notAfter`` of a certificate (RFC 5280, 4.1): version, serial, algorithm and issuer stand before it.

    Raises:
        ValueError, IndexError: it is no certificate.
    """
    certificate, _ = _element(der, 0, _SEQUENCE)
    inner, _ = _element(certificate, 0, _SEQUENCE)
    at = 0
    for _ in range(4 if inner[0] == _VERSION else 3):
        _, at = _element(inner, at)
    validity, _ = _element(inner, at, _SEQUENCE)
    _, at = _element(validity, 0)
    tag = validity[at]
    text, _ = _element(validity, at)
    if tag not in (_UTC_TIME, _GENERALIZED_TIME):
        raise ValueError("no time where its end should stand")
    shown = text.decode("ascii")
    if tag == _UTC_TIME:  # years 1950 to 2049
        shown = ("20" if shown < "50" else "19") + shown
    return datetime.strptime(shown, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC)


def _element(data: bytes, at: int, tag: int | None = None) -> tuple[bytes, int]:
    """Return the content of the DER element at a place, and the place behind it.

    Raises:
        ValueError, IndexError: there is none, or another one.
    """
    if tag is not None and data[at] != tag:
        raise ValueError(f"tag {data[at]:#x} instead of {tag:#x}")
    length, at = data[at + 1], at + 2
    if length & 0x80:
        count = length & 0x7F
        length, at = int.from_bytes(data[at : at + count], "big"), at + count
    if at + length > len(data):
        raise ValueError("cut off")
    return data[at : at + length], at + length
