"""Who the static peers are: listed, in a file, or all addresses of a name."""

import asyncio
import socket
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from fabricd.background import in_thread
from fabricd.errors import InputError, UnavailableError
from fabricd.settings import MAX_EQUAL_PEERS, MAX_PEERS, check_peer
from fabricd.smallfile import read_bytes

_DNS = "dns://"
_DNS_SECONDS = 5.0
_MAX_FILE_BYTES = 4 << 20


@dataclass(slots=True)
class PeerList:
    """The list; ``urls`` is what it came to at the last look.

    A source that cannot be read now counts with what it held before: a name server that is down for a moment empties
    no cluster.
    """

    entries: tuple[str, ...] = ()  #: URLs, and ``dns://NAME:PORT``
    file: Path | None = None  #: more of them, one a line; what follows a # is for people
    equal: bool = True  #: no map nodes: every peer asks every other
    secure: bool = False  #: addresses of names are asked by TLS
    urls: tuple[str, ...] = ()
    faults: tuple[str, ...] = ()
    _names: dict[str, tuple[str, ...]] = field(default_factory=dict)
    _lines: tuple[str, ...] = ()

    @property
    def changes(self) -> bool:
        """Whether another look may find something else."""
        return self.file is not None or any(entry.startswith(_DNS) for entry in self.entries)

    async def look(self) -> None:
        """Read all sources."""
        faults: list[str] = []
        file = self.file
        if file is not None:
            try:
                self._lines = await in_thread(lambda: _read(file), name="peers file")
            except (InputError, UnavailableError) as error:
                faults.append(error.message)
        entries = [*self.entries, *self._lines]
        names = [entry for entry in entries if entry.startswith(_DNS)]
        found = await asyncio.gather(
            *(_addresses(name, "https" if self.secure else "http") for name in names), return_exceptions=True
        )
        for name, addresses in zip(names, found, strict=True):
            if isinstance(addresses, tuple):
                self._names[name] = addresses
            else:
                faults.append(f"{name}: {addresses or type(addresses).__name__}")
        self._take(entries, faults)

    def _take(self, entries: Iterable[str], faults: list[str]) -> None:
        urls = dict.fromkeys(
            url for entry in entries for url in (self._names.get(entry, ()) if entry.startswith(_DNS) else (entry,))
        )
        limit = MAX_EQUAL_PEERS if self.equal else MAX_PEERS
        if len(urls) > limit:
            hint = "choose 3 to 5 of them as map_nodes" if self.equal else "use cluster_backend etcd"
            faults.append(f"{len(urls)} peers are more than {limit}; the list stays as it was: {hint}")
        else:
            self.urls = tuple(urls)
        self.faults = tuple(faults)


def _read(file: Path) -> tuple[str, ...]:
    """Return the peers that a file lists.

    Raises:
        UnavailableError: it cannot be read.
        InputError: a line is no peer; says which.
    """
    try:
        data = read_bytes(file, _MAX_FILE_BYTES + 1)
    except (OSError, ValueError) as error:
        raise UnavailableError(f"peers_file: {error}") from error
    if len(data) > _MAX_FILE_BYTES:
        raise UnavailableError(f"peers_file: {file} has more than {_MAX_FILE_BYTES} bytes")
    text = data.decode("utf-8", "replace")
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        entry = line.partition("#")[0].strip()
        try:
            found += [check_peer(entry)] if entry else []
        except InputError as error:
            raise InputError(f"{file}, line {number}: {error.message}") from error
    return tuple(found)


async def _addresses(entry: str, scheme: str) -> tuple[str, ...]:
    """Return a URL for each address of a name.

    Raises:
        OSError: it has none, or nobody says.
        TimeoutError: no answer in time.
    """
    host, _, port = entry.removeprefix(_DNS).rpartition(":")
    name = host.strip("[]")
    async with asyncio.timeout(_DNS_SECONDS):
        found = await in_thread(
            lambda: socket.getaddrinfo(name, int(port), type=socket.SOCK_STREAM), name="name of peers"
        )
    addresses = sorted({str(sockaddr[0]) for *_, sockaddr in found})
    return tuple(f"{scheme}://[{one}]:{port}" if ":" in one else f"{scheme}://{one}:{port}" for one in addresses)
