"""Tell whoever started the daemon where it listens."""

import json
import os
import secrets
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from fabricd.errors import UnavailableError


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """One line of JSON: the daemon answers there."""

    url: str
    socket: str  #: "" for none
    node_id: str
    pid: int


def announce(ready: Ready, *, file: Path | None, descriptor: int | None) -> None:
    """Write the line to the file (whole or not at all) and to the open file descriptor, which is closed.

    Raises:
        UnavailableError: it cannot be written.
    """
    line = (json.dumps(asdict(ready)) + "\n").encode()
    try:
        if file is not None:
            partial = file.with_name(f".{file.name}.{secrets.token_hex(4)}")
            partial.write_bytes(line)
            partial.replace(file)
        if descriptor is not None:
            with os.fdopen(descriptor, "wb") as stream:
                stream.write(line)
    except OSError as error:
        raise UnavailableError(f"cannot write the ready line: {error}") from error


def retract(file: Path | None) -> None:
    """Remove the ready file: nothing answers any more."""
    if file is not None:
        with suppress(OSError):
            file.unlink()
