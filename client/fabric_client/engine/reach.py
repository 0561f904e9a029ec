"""Whether a rank reaches the other hosts of its group on their planned addresses, looked at before MPI connects them.

Where a network has just come back, the kernel may still hold that its neighbours do not answer. What connects then gets
"no route to host", asks anew by that, and would be let through a second later; but UCX takes it for final, and MPI ends
the process. So each rank knocks first, until it is answered, at a port that the first rank of each other host holds and
does not listen on: the other kernel refuses, at once and however many come, where it would let only so many wait to be
accepted. What is not reached is left for MPI to find out, and told if it does.
"""

import errno
import os
import selectors
import socket
import time
from collections.abc import Iterable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass

from fabric_client.engine.mpi_form import speakers
from fabric_client.engine.pair_connect import Place, new_socket
from fabricd.model.plan import GroupPlan
from fabricd.units import format_names

#: The kernel asks three times, a second apart, before it gives up a neighbour. Source: arp(7), mcast_solicit.
_SECONDS = 4.0
_LAST_LOOK_SECONDS = 1.0
_ATTEMPT_SECONDS, _PAUSE_SECONDS = 1.0, 0.1
#: Hosts after one's own, in order: of a larger group each looks at some.
_LOOKED_AT = 64
_NAMED = 4
_KEY = "fabricd-port-"
#: Who says so is there.
_REACHED = (0, errno.ECONNREFUSED)
#: What a user has MPI listen on, so that a firewall lets it through, is not for this to guess.
_PORT_RANGE = "UCX_TCP_PORT_RANGE"


@dataclass(frozen=True, slots=True)
class _Peer:
    node: str
    address: str
    port: int


class Reach:
    """Of one rank, for one start of MPI. To be closed when MPI has started.

    Args:
        plan: the group's.
        rank: this one.
        place: where it talks from; None where MPI does not use TCP there.
        environ: MPI's.
    """

    def __init__(self, plan: GroupPlan, rank: int, place: Place | None, environ: Mapping[str, str]) -> None:
        parts = {part.rank: part for part in plan.ranks}
        self._rank, mine, firsts = rank, parts[rank], speakers(plan)
        self._node, self._devices = mine.node, mine.devices
        at = next(at for at, first in enumerate(firsts) if parts[first].host_index == mine.host_index)
        self._others = [parts[first] for first in (firsts[at + 1 :] + firsts[:at])[:_LOOKED_AT]]
        self._place = place if self._others and _PORT_RANGE not in environ else None
        self._peers: list[_Peer] = []
        self._door: socket.socket | None = None
        if self._place is not None and firsts[at] == rank:
            with suppress(OSError):
                self._door = new_socket(self._place)

    def close(self) -> None:
        """Let go of the port."""
        if self._door is not None:
            self._door.close()

    def with_port(self, keys: Mapping[str, str]) -> Mapping[str, str]:
        """Return a rank's keys, and with them the port that it holds, where it does."""
        if self._door is None:
            return keys
        return {**keys, f"{_KEY}{self._rank}": str(self._door.getsockname()[1])}

    def look(self, keys: Mapping[str, str], seconds: float) -> None:
        """Return when the others are reached, or the time is over: after 4 s at the latest.

        Args:
            keys: of all ranks. Of those that say nothing, as ranks of earlier versions, nothing is found out.
            seconds: at most.
        """
        if self._place is None:
            return
        self._peers = [
            _Peer(part.node, part.address, port)
            for part in self._others
            if part.address and (":" in part.address) == (":" in self._place.address)
            if (port := _port(keys.get(f"{_KEY}{part.rank}", "")))
        ]
        _missed(self._place, self._peers, min(seconds, _SECONDS))

    def told(self) -> str:
        """Look again for a moment, and return what is to be known when MPI has not started; "" on one host."""
        if not self._others:
            return ""
        over = ", ".join(self._devices) or "no planned device"
        if self._place is None or not self._peers:
            return f"{self._node} was to reach {format_names((part.node for part in self._others), _NAMED)} over {over}"
        missed = _missed(self._place, self._peers, _LAST_LOOK_SECONDS)
        if not missed:
            return f"{self._node} reaches {format_names((peer.node for peer in self._peers), _NAMED)} over {over} now"
        reasons = [f"{peer.node} at {peer.address} over {over}: {reason}" for peer, reason in missed.items()]
        return f"{self._node} does not reach {format_names(reasons, _NAMED)}"


def _port(text: str) -> int:
    """Return the port that another rank says it holds; 0 where that is none."""
    port = int(text) if text.isdecimal() and len(text) <= len("65535") else 0
    return port if port < 1 << 16 else 0


def _missed(place: Place, peers: Iterable[_Peer], seconds: float) -> dict[_Peer, str]:
    """Knock at each until it answers or the time is over; return those that are not reached, and why."""
    deadline = time.monotonic() + seconds
    missed = dict.fromkeys(peers, "no answer")
    while True:
        for peer, error in _connected(place, missed, min(deadline, time.monotonic() + _ATTEMPT_SECONDS)).items():
            if error in _REACHED:
                del missed[peer]
            else:
                missed[peer] = os.strerror(error)
        if not missed or time.monotonic() + _PAUSE_SECONDS > deadline:
            return missed
        time.sleep(_PAUSE_SECONDS)


def _connected(place: Place, peers: Iterable[_Peer], deadline: float) -> dict[_Peer, int]:
    """Knock at all at once; return what became of it, by errno, where that is known in time."""
    became: dict[_Peer, int] = {}
    with ExitStack() as sockets, selectors.DefaultSelector() as waiting:
        for peer in peers:
            try:
                one = sockets.enter_context(new_socket(place))
            except OSError as failed:
                became[peer] = failed.errno or errno.EIO
                continue
            one.setblocking(False)
            error = one.connect_ex((peer.address, peer.port))
            if error == errno.EINPROGRESS:
                waiting.register(one, selectors.EVENT_WRITE, (peer, one))
            else:
                became[peer] = error
        while waiting.get_map() and (left := deadline - time.monotonic()) > 0:
            for key, _ in waiting.select(left):
                peer, one = key.data
                became[peer] = one.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                waiting.unregister(one)
    return became
