"""Who may touch a group. Of secrets and claims only salted hashes are kept.

A group is made either with a secret, and then whoever shows the secret is let in, or without one, and then only
processes of the same user over the Unix socket are. Names of the second kind are each user's own: two users may have
a group of one name. Names of the first kind are taken by the first who comes, for as long as the group lives.
"""

import hashlib
import hmac
import re
import secrets
from dataclasses import dataclass, field

from fabricd.errors import AccessError, GroupGoneError, InputError
from fabricd.model.wire import CLAIM, GROUP_NAME, SECRET_MIN_LENGTH


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """What a request shows."""

    secret: str | None = field(default=None, repr=False)
    uid: int | None = None  #: as the kernel says, over the Unix socket
    claim: str | None = field(default=None, repr=False)
    incarnation: int | None = None
    caller: str = ""  #: for messages and for counting, e.g. "uid 1000", "10.0.0.7"

    def check(self) -> None:
        """Refuse what could open no group.

        Raises:
            AccessError: neither a good secret nor a known user.
        """
        if self.secret is None and self.uid is None:
            raise AccessError(
                "a group without a secret is only for processes of one user over the Unix socket of their host",
                hint="give all ranks one secret: FABRICD_GROUP_SECRET_FILE, a file of mode 600 with the output of "
                "python3 -c 'import secrets; print(secrets.token_hex(16))'; or use the daemon's Unix socket",
            )
        if self.secret is not None and len(self.secret) < SECRET_MIN_LENGTH:
            raise AccessError(
                f"the group's secret is shorter than {SECRET_MIN_LENGTH} characters",
                hint="make one with: python3 -c 'import secrets; print(secrets.token_hex(16))'",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """What opens one group."""

    salt: str  #: hex
    secret_hash: str = ""  #: "" for a group without secret
    uid: int | None = None  #: of a group without secret

    def admits(self, shown: Credentials) -> bool:
        """Whether the credentials open this group. Takes the same time whatever part of a secret is wrong."""
        if self.secret_hash:
            return shown.secret is not None and hmac.compare_digest(
                self.secret_hash, self._hash("secret", shown.secret)
            )
        return shown.secret is None and shown.uid is not None and shown.uid == self.uid

    def collides(self, shown: Credentials) -> bool:
        """Whether somebody with these credentials, which do not open this group, cannot use its name either."""
        return bool(self.secret_hash) or (shown.uid is not None and shown.uid == self.uid)

    def claim_hash(self, claim: str) -> str:
        """Return what is kept of a claim."""
        return self._hash("claim", claim)

    def _hash(self, what: str, text: str) -> str:
        return hmac.digest(bytes.fromhex(self.salt), f"{what}:{text}".encode(), hashlib.sha256).hex()


def access_for(shown: Credentials) -> Access:
    """Return what will open a new group, made with these credentials."""
    access = Access(salt=secrets.token_hex(16), uid=shown.uid)
    if shown.secret is None:
        return access
    return Access(salt=access.salt, secret_hash=access._hash("secret", shown.secret))


def check_name(name: str) -> None:
    """Refuse what can be no group's name.

    Raises:
        InputError: says what can.
    """
    if not re.fullmatch(GROUP_NAME, name):
        raise InputError(
            f"{name[:80]!r} is no group name", hint="1 to 200 letters, digits and ._:@+=-, the first a letter or digit"
        )


def check_claim(claim: str | None) -> str:
    """Return a claim that is one.

    Raises:
        InputError: it is none.
    """
    if claim is None or not re.fullmatch(CLAIM, claim):
        raise InputError(
            "the claim is missing or is none", hint="send 128 random bits in hex, the same in each request"
        )
    return claim


def not_here(name: str) -> GroupGoneError:
    """Return the one answer for a group that is not there and for one that the caller may not see."""
    return GroupGoneError(
        f"there is no group {name!r} for this caller", hint="it is unknown, over, or has another secret or user"
    )
