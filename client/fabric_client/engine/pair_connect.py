"""How two ranks come to a connection of their own, once MPI runs: what each has to know of the other goes by MPI."""

import hmac
import secrets
import socket
import struct
import time
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from fabric_client.engine.mpi_library import MPI
from fabric_client.engine.mpi_requests import Both, MpiPending, in_bytes, map_error, typed
from fabric_client.engine.pair_link import PairLink
from fabric_client.pending import Pending
from fabricd.model.plan import GroupPlan, RankSlice

#: Where a firewall drops what MPI may send, a communicator is made so much later, and goes without.
_CONNECT_SECONDS = 2.0
#: Of that for each stranger who connects and says nothing.
_STRANGER_SECONDS = 0.2
_TOKEN_BYTES = 16
#: Address, as text, "" for no place; port, 0 where nobody listens; what the other has to say first.
_HELLO = struct.Struct(f"!46sH{_TOKEN_BYTES}s")
#: Several messages, so that the kernel takes one at once; its own limits may be lower.
_BUFFER_BYTES = 256 << 10


@dataclass(frozen=True, slots=True)
class Place:
    """Where this rank's end of the connection is to be."""

    interface: str
    address: str


def are_two_hosts(plan: GroupPlan) -> bool:
    """Tell whether a plan is of two ranks on two hosts."""
    return plan.size == 2 and len({part.host_index for part in plan.ranks}) == 2


def place_of(mine: RankSlice, chosen: Mapping[str, str]) -> Place | None:
    """Return where that is; None where these two do not use TCP, or the user has set something else.

    Args:
        mine: this rank's part of the plan.
        chosen: the plan's settings without those that the user has set otherwise.
    """
    by_tcp = "tcp" in chosen.get("UCX_TLS", "").split(",") and chosen.get("UCX_NET_DEVICES") in mine.devices
    if not by_tcp or not mine.address or mine.address.startswith("fe80:"):
        return None
    return Place(chosen["UCX_NET_DEVICES"], mine.address)


def connect(comm: Any, place: Place | None, complete: Callable[[Pending], None]) -> PairLink | None:
    """Connect two ranks. None for both where one has no place, or they do not reach each other. Collective.

    Args:
        comm: of MPI, of the two ranks; stays in use, to drive MPI on.
        place: this rank's.
        complete: waits for an operation of MPI.
    """
    connection = _connected(comm, place, complete)
    both = np.array([connection is not None], np.int64)
    complete(MpiPending(comm.Iallreduce(MPI.IN_PLACE, typed(both), MPI.MIN)))
    if connection is None:
        return None
    if not both[0]:
        connection.close()
        return None

    def drive_mpi() -> None:
        try:
            comm.Iprobe()
        except MPI.Exception as error:
            raise map_error(error) from error

    return PairLink(connection, drive_mpi)


def _connected(comm: Any, place: Place | None, complete: Callable[[Pending], None]) -> socket.socket | None:
    """Return the connection as far as this rank knows. Rank 0 listens, and tells rank 1 where."""
    token = secrets.token_bytes(_TOKEN_BYTES)
    listener = None
    if place is not None and comm.Get_rank() == 0:
        with suppress(OSError):
            listener = new_socket(place)
            listener.listen()
    if listener is None:
        mine = "" if place is None else place.address
        host, port, expected = _exchange(comm, (mine, 0, token), complete)
        return None if place is None or not port else _call(place, (host, port), say=expected, hear=token)
    with closing(listener):
        called_from, _, expected = _exchange(comm, (*listener.getsockname()[:2], token), complete)
        return _accept(listener, say=expected, hear=token) if called_from else None


def _exchange(comm: Any, mine: tuple[str, int, bytes], complete: Callable[[Pending], None]) -> tuple[str, int, bytes]:
    """Tell the other rank one's address, port and token; return its."""
    sent = np.frombuffer(_HELLO.pack(mine[0].encode(), *mine[1:]), np.uint8)
    came, other = np.empty_like(sent), 1 - comm.Get_rank()
    receive, send = comm.Irecv(in_bytes(came), other), comm.Isend(in_bytes(sent), other)
    complete(Both(MpiPending(receive), MpiPending(send)))
    address, port, token = _HELLO.unpack(came.tobytes())
    return address.rstrip(b"\0").decode(), port, token


def new_socket(place: Place) -> socket.socket:
    """Return a socket at this rank's place.

    Raises:
        OSError: the place is not there any more.
    """
    one = socket.socket(socket.AF_INET6 if ":" in place.address else socket.AF_INET, socket.SOCK_STREAM)
    try:
        with suppress(OSError):  # kernels before 5.7 let only root do so; the address says the same in most cases
            one.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, place.interface.encode())
        for buffer in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            one.setsockopt(socket.SOL_SOCKET, buffer, _BUFFER_BYTES)
        one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        one.bind((place.address, 0))
    except OSError:
        one.close()
        raise
    return one


def _call(place: Place, address: tuple[str, int], *, say: bytes, hear: bytes) -> socket.socket | None:
    """Connect to the other rank; None where that fails."""
    with suppress(OSError):
        one = new_socket(place)
        with suppress(OSError):
            one.settimeout(_CONNECT_SECONDS)
            one.connect(address)
            if _is_the_other(one, say=say, hear=hear, seconds=_CONNECT_SECONDS):
                return one
        one.close()
    return None


def _accept(listener: socket.socket, *, say: bytes, hear: bytes) -> socket.socket | None:
    """Wait for the other rank to connect, past strangers; None where it does not."""
    deadline = time.monotonic() + _CONNECT_SECONDS
    while (left := deadline - time.monotonic()) > 0:
        listener.settimeout(left)
        with suppress(OSError):
            one, _ = listener.accept()
            with suppress(OSError):
                if _is_the_other(one, say=say, hear=hear, seconds=min(left, _STRANGER_SECONDS)):
                    return one
            one.close()
    return None


def _is_the_other(one: socket.socket, *, say: bytes, hear: bytes, seconds: float) -> bool:
    """Exchange tokens, which only the two ranks know."""
    one.settimeout(seconds)
    one.sendall(say)
    said = one.recv(_TOKEN_BYTES, socket.MSG_WAITALL)
    return hmac.compare_digest(said, hear)
