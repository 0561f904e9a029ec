"""What a caller may do, and the file that says who may: tokens and certificates with their scopes.

Each line of the file has a name, scopes with commas between them, and what the caller shows::

    grafana   read             sha256:5e884898da28047151d0e56f8dc6292773603d0d6aabbdd62a11ef721d1542d8
    slurm     read,plan,join   a-token-of-at-least-16-characters
    backup    read             certificate:backup.example.org

A certificate counts when it was verified and has that name: a DNS name or URI among its alternative names, else its
common name. Several lines of one name are several ways in for one caller, e.g. while a token is being changed.
"""

import hashlib
import hmac
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from fabricd.errors import FabricError, InputError
from fabricd.locations import check_secret, read_private_file

_MAX_FILE_BYTES = 1 << 20
_MAX_LINES = 1000
#: A token that people could guess is none.
TOKEN_MIN_LENGTH = 16
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._@-]{0,62}[A-Za-z0-9])?")
_SHA256 = re.compile(r"sha256:[0-9a-f]{64}")
_CERTIFICATE = re.compile(r"certificate:[!-~]{1,253}")


class Scope(StrEnum):
    """A kind of question. None holds another, but ``ADMIN``, which holds them all."""

    READ = "read"  #: the map, paths, events, metrics
    PLAN = "plan"  #: plans, which take processor time
    JOIN = "join"  #: groups, each of which has its own secret besides
    MEASURE = "measure"  #: traffic between nodes
    ADMIN = "admin"  #: the daemon itself


ALL_SCOPES = frozenset(Scope)
#: Of a process of this host that is neither root nor the daemon's own user.
LOCAL_SCOPES = ALL_SCOPES - {Scope.ADMIN}


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """One line: a way in for one caller."""

    name: str
    scopes: frozenset[Scope]
    digest: str = ""  #: SHA-256 of the token, hex; "" for a certificate
    certificate: str = ""  #: name in a verified certificate; "" for a token


@dataclass(frozen=True, slots=True, kw_only=True)
class Grants:
    """All ways in from beyond this host."""

    lines: tuple[Grant, ...] = ()

    def __repr__(self) -> str:
        return f"Grants({len(self.lines)} lines)"

    def of_token(self, token: bytes) -> Grant | None:
        """Return what a token opens. Takes the same time whichever line it is, and however much of it is right."""
        shown = hashlib.sha256(token).hexdigest()
        found = None
        for line in self.lines:
            if hmac.compare_digest(shown, line.digest or "-" * len(shown)):
                found = line
        return found

    def of_certificate(self, names: Iterable[str]) -> Grant | None:
        """Return what a verified certificate of these names opens; the first line that fits counts."""
        known = frozenset(names)
        return next((line for line in self.lines if line.certificate and line.certificate in known), None)

    @property
    def has_certificates(self) -> bool:
        """Whether a line names a certificate."""
        return any(line.certificate for line in self.lines)


def grant_of_token(token: str) -> Grant:
    """Return the line that the one token of a cluster stands for, which opens everything."""
    return Grant(name="token_file", scopes=ALL_SCOPES, digest=hashlib.sha256(token.encode()).hexdigest())


def names_in_certificate(certificate: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names in a verified certificate, as ``ssl`` tells it; the common name only if there is no other."""
    names = tuple(str(value) for kind, value in certificate.get("subjectAltName", ()) if kind in ("DNS", "URI"))
    if names:
        return names
    subject = certificate.get("subject", ())
    return tuple(str(value) for part in subject for kind, value in part if kind == "commonName")


def read_grants(path: Path, source: str) -> tuple[Grant, ...]:
    """Return the lines of a file.

    Args:
        path: the file; what follows a # at the beginning of a word is for people.
        source: what named it, for messages, which never show a token.

    Raises:
        AccessError: it cannot be read, or others could.
        InputError: names every line that is wrong.
    """
    data = read_private_file(path, source, limit=_MAX_FILE_BYTES)
    lines = data.decode("utf-8", "replace").splitlines()
    if len(data) > _MAX_FILE_BYTES or len(lines) > _MAX_LINES:
        raise InputError(f"{path}: more than {_MAX_FILE_BYTES} bytes or {_MAX_LINES} lines")
    found: list[Grant] = []
    faults: list[str] = []
    for number, line in enumerate(lines, 1):
        words = re.sub(r"(^|\s)#.*", "", line).split()
        try:
            found += [_grant(words)] if words else []
        except FabricError as error:
            faults.append(f"line {number}: {error.message}")
    shown = [line.digest or line.certificate for line in found]
    if len(set(shown)) < len(shown):
        faults.append("two lines have the same token or certificate")
    if faults:
        raise InputError(f"{path}: " + "; ".join(faults[:20]))
    return tuple(found)


def _grant(words: list[str]) -> Grant:
    """Return what a line says.

    Raises:
        InputError: it is no such line.
    """
    if len(words) != 3:
        raise InputError(f"{len(words)} words, expected a name, scopes and a token, sha256:HEX or certificate:NAME")
    name, scopes, shown = words
    if not _NAME.fullmatch(name):
        raise InputError("the name is not at most 64 letters, digits and ._@- between letters or digits")
    grant = Grant(name=name, scopes=frozenset(_scope(word) for word in scopes.split(",")))
    if _CERTIFICATE.fullmatch(shown):
        return Grant(name=name, scopes=grant.scopes, certificate=shown.partition(":")[2])
    if _SHA256.fullmatch(shown):
        return Grant(name=name, scopes=grant.scopes, digest=shown.partition(":")[2])
    if shown.startswith(("sha256:", "certificate:")):
        raise InputError("after sha256: come 64 digits of 0-9a-f, after certificate: a name")
    check_secret(shown, "the token")
    if len(shown) < TOKEN_MIN_LENGTH:
        raise InputError(f"the token is shorter than {TOKEN_MIN_LENGTH} characters")
    return Grant(name=name, scopes=grant.scopes, digest=hashlib.sha256(shown.encode()).hexdigest())


def _scope(word: str) -> Scope:
    try:
        return Scope(word)
    except ValueError:
        raise InputError(f"{word[:20]!r} is no scope; there are {', '.join(Scope)}") from None
