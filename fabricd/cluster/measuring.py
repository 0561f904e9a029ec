"""Measurements between this daemon's node and its peers', one at a time, and remembered.

Who may ask for one: whoever may ask this daemon anything at all. That makes it no scanner of ports: it connects only
to an address that a configured peer says is its own, at the port that this peer's daemon has just opened for it; and
it listens only at addresses of its own node, for one client, for some seconds.
"""

import asyncio
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from ipaddress import ip_interface

from fabricd.background import in_thread
from fabricd.cluster.nodes import NodeMap
from fabricd.cluster.peer_post import PeerPost
from fabricd.errors import BusyError, InputError, ParseError, UnavailableError, UnknownNameError
from fabricd.measure import tcp
from fabricd.model.device import NetInterface
from fabricd.model.measurement import ListenAnswer, ListenRequest, Measurement, MeasureRequest
from fabricd.model.snapshot import Snapshot

#: For how many others this daemon listens at once.
_LISTENERS = 4
#: How many requests may wait for their turn.
_WAITING = 32
_REMEMBERED = 4096
#: A failure is believed for a shorter time than a success: cables get plugged in.
_FAILURE_SECONDS = 10.0
#: A peer that is busy listening is asked again.
_TRIES, _PAUSE_SECONDS = 4, 0.5
_ASK_SECONDS = 3.0
#: Of a text of a measurement, by whomever.
_MAX_TEXT = 500


@dataclass(frozen=True, slots=True)
class _Kept:
    measurement: Measurement
    at: float


class Measurer:
    """Measures, and remembers what was measured. Lives in the server's event loop.

    Args:
        nodes: this node's addresses; the peers' addresses and URLs.
        post: how peers are asked to listen.
        clock: monotonic seconds.
    """

    def __init__(self, nodes: NodeMap, post: PeerPost, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._nodes = nodes
        self._post = post
        self._clock = clock
        self._kept: dict[tuple[str, str], _Kept] = {}
        self._turn = asyncio.Lock()
        self._waiting = 0
        self._listening = 0
        self._serving: set[asyncio.Task[None]] = set()

    def known(self) -> tuple[Measurement, ...]:
        """Return everything that is remembered, with its age."""
        now = self._clock()
        return tuple(_aged(kept, now) for kept in self._kept.values())

    def find(self, src_address: str, dst_address: str, max_age_seconds: float) -> Measurement | None:
        """Return what is remembered of a pair of addresses, from either side, if it is young enough."""
        now = self._clock()
        found = [self._kept.get(pair) for pair in ((src_address, dst_address), (dst_address, src_address))]
        ages = {kept: now - kept.at for kept in found if kept}
        fresh = [kept for kept, age in ages.items() if age <= _believed(kept.measurement, max_age_seconds)]
        return _aged(min(fresh, key=lambda kept: now - kept.at), now) if fresh else None

    def remember(self, measurement: Measurement) -> Measurement:
        """Keep a measurement, of this daemon or of another one; the oldest go when there are too many."""
        key = (measurement.src_address, measurement.dst_address)
        self._kept.pop(key, None)
        while len(self._kept) >= _REMEMBERED:
            del self._kept[next(iter(self._kept))]
        self._kept[key] = _Kept(measurement, self._clock() - measurement.age_seconds)
        return measurement

    async def listen(self, request: ListenRequest) -> ListenAnswer:
        """Be the other end of one measurement.

        Raises:
            InputError: not an address of this node.
            BusyError: it listens for others already.
            UnavailableError: the address is gone.
        """
        interface = _interface_with(self._nodes.local, request.address)
        _check_address(request.client_address)
        if self._listening >= _LISTENERS:
            raise BusyError(f"this node is measured by {_LISTENERS} others already", retry_after_seconds=1)
        listener = tcp.listen(request.address, interface.name)
        answer = ListenAnswer(port=listener.getsockname()[1], token=tcp.new_token())
        self._listening += 1
        self._serving = {task for task in self._serving if not task.done()}
        self._serving.add(asyncio.create_task(self._serve(listener, answer.token, request.client_address)))
        return answer

    async def _serve(self, listener: socket.socket, token: str, client_address: str) -> None:
        try:
            await in_thread(lambda: tcp.serve(listener, token, client_address), name="measured")
        finally:
            self._listening -= 1

    async def measure(self, request: MeasureRequest) -> Measurement:
        """Measure towards a peer, or return a measurement that is young enough.

        Raises:
            InputError: not an address of this node, or not one of the peer; no name of a network.
            UnknownNameError: no such peer.
            BusyError: too many wait, or the peer is measured by too many.
            UnreachableError: the peer's daemon does not answer, or refuses.
            UnavailableError: the address is gone, or an end is too busy: connected twice, and no answer in time.
        """
        if not _is_text(request.network):  # it is remembered
            raise InputError(f"the network's name is not printable, or longer than {_MAX_TEXT}")
        url = self._nodes.url_of(request.dst_node)
        own = _interface_with(self._nodes.local, request.src_address)
        nodes = self._nodes.snapshots()
        if request.dst_node not in nodes:
            raise UnknownNameError("node that answers", request.dst_node, list(nodes))
        other = _interface_with(nodes[request.dst_node], request.dst_address)
        if self._waiting >= _WAITING:
            raise BusyError(f"{_WAITING} measurements wait already", retry_after_seconds=5)
        self._waiting += 1
        try:
            async with self._turn:  # two at once would measure each other
                known = self.find(request.src_address, request.dst_address, request.max_age_seconds)
                if known is not None:
                    return known
                timing = await self._time(url, request, own.name)
                if timing.busy:
                    timing = await self._time(url, request, own.name)
        finally:
            self._waiting -= 1
        if timing.busy and timing.up is None:
            raise UnavailableError(timing.reason, hint="measure again when both ends have time")
        return self.remember(_measurement(self._nodes.local.node.node_id, request, own, other, timing))

    async def _time(self, url: str, request: MeasureRequest, interface: str) -> tcp.Timing:
        ask = ListenRequest(address=request.dst_address, client_address=request.src_address)
        for attempt in range(_TRIES):
            try:
                there = await self._post(url, "/v1/measure/listen", ask, ListenAnswer, seconds=_ASK_SECONDS)
                break
            except BusyError:
                if attempt == _TRIES - 1:
                    raise
                await asyncio.sleep(_PAUSE_SECONDS)
        if not 0 < there.port < 1 << 16:
            raise ParseError(f"{url} says that it listens at port {there.port}")
        return await in_thread(
            lambda: tcp.measure(request.src_address, interface, request.dst_address, there.port, there.token),
            name="measure",
        )


def checked(measurement: Measurement, src_node: str, request: MeasureRequest) -> Measurement:
    """Return what another daemon says that it measured, if that is what it was asked for, and can be.

    Raises:
        ParseError: it is of other nodes or addresses, or holds figures or texts that nothing can have.
    """
    asked = (src_node, request.dst_node, request.src_address, request.dst_address)
    told = (measurement.src_node, measurement.dst_node, measurement.src_address, measurement.dst_address)
    if told != asked:
        raise ParseError(f"{' '.join(told)[:200]!r} was measured, and not {' '.join(asked)!r}")
    figures = (measurement.latency_seconds, measurement.bandwidth_bytes_per_second)
    if any(figure is not None and figure <= 0 for figure in figures) or measurement.age_seconds < 0:
        raise ParseError(
            f"no measurement gives {measurement.bandwidth_bytes_per_second} bytes/s, half a round trip of "
            f"{measurement.latency_seconds} s and an age of {measurement.age_seconds} s"
        )
    texts = (measurement.src_interface, measurement.dst_interface, measurement.network, measurement.reason)
    if not all(map(_is_text, texts)):
        raise ParseError(f"a measurement holds a text that is not printable, or longer than {_MAX_TEXT}")
    return measurement


def _measurement(
    node_id: str, request: MeasureRequest, own: NetInterface, other: NetInterface, timing: tcp.Timing
) -> Measurement:
    bursts = [burst for burst in (timing.up, timing.down) if burst]
    slower = min((burst.bytes_per_second for burst in bursts), default=0.0)
    return Measurement(
        src_node=node_id,
        dst_node=request.dst_node,
        src_interface=own.name,
        dst_interface=other.name,
        src_address=request.src_address,
        dst_address=request.dst_address,
        network=request.network or _subnet(own, request.src_address),
        reachable=timing.reachable,
        latency_seconds=timing.round_trip_seconds / 2 if timing.round_trip_seconds else None,
        bandwidth_bytes_per_second=slower or None,
        bytes_moved=sum(burst.bytes for burst in bursts),
        reason=timing.reason,
    )


def _is_text(text: str) -> bool:
    return len(text) <= _MAX_TEXT and text.isprintable()


def _interface_with(snapshot: Snapshot, address: str) -> NetInterface:
    """Return the interface of a node that has an address.

    Raises:
        InputError: none has.
    """
    for interface in snapshot.interfaces:
        if any(one.address == address for one in interface.addresses):
            return interface
    raise InputError(f"{address[:64]!r} is not an address of {snapshot.node.name}", hint="see GET /v1/cluster")


def _subnet(interface: NetInterface, address: str) -> str:
    found = next(one for one in interface.addresses if one.address == address)
    return str(ip_interface(f"{found.address}/{found.prefix_length}").network)


def _check_address(address: str) -> None:
    with suppress(ValueError):
        ip_interface(address)
        if "/" not in address:
            return
    raise InputError(f"{address[:64]!r} is not an IP address")


def _believed(measurement: Measurement, max_age_seconds: float) -> float:
    return max_age_seconds if measurement.reachable else min(max_age_seconds, _FAILURE_SECONDS)


def _aged(kept: _Kept, now: float) -> Measurement:
    return replace(kept.measurement, age_seconds=max(0.0, now - kept.at))
