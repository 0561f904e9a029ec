"""Looks at this machine again and again: at an interval, and at once when the kernel tells of a change.

Probes run in two lanes, so that those that can take long hold up no other: what the kernel's files and sockets tell is
looked at, and served, while a GPU library hangs.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import suppress
from functools import partial
from typing import Protocol

from fabricd.background import in_thread
from fabricd.cluster.nodes import NodeMap
from fabricd.model.observation import Outcome
from fabricd.model.snapshot import Snapshot
from fabricd.probe.base import ProbeFailed
from fabricd.probe.events import NetworkEvents
from fabricd.probe.glance import Glance, infiniband_ports
from fabricd.probe.nvml_events import gpu_events
from fabricd.shortage import shortage_of

_log = logging.getLogger("fabricd.probe")

#: What an event of the kernel's network part makes old: an RDMA port goes down with its interface. They come settled,
#: and twice a second at most. Where PCI functions came or went with them, a glance tells.
NETWORK_PROBES = frozenset({"netlink", "rdma"})
#: What an event of a GPU makes old.
GPU_PROBES = frozenset({"nvml", "pci"})
#: Probes that ask a library or a service which may take many seconds, or for ever, or that may read a file of many
#: megabytes.
SLOW_PROBES = frozenset({"nvml", "verbs", "ibfabric", "placement", "instance"})
#: Probes of what hardly ever changes on a machine that runs, and what tells of it when it does: nothing. They look
#: in the first of so many full looks, and again in the next when they failed.
RARE_PROBES = frozenset({"host", "numa"})
_RARELY = 10
_PORT_PROBES = frozenset({"rdma", "verbs"})
_FAILED = frozenset({Outcome.FAILED, Outcome.STALE, Outcome.NOT_RUN})
#: Between two glances; between two looks at the states of InfiniBand ports, which are to be in the map within a second.
GLANCE_SECONDS = 5.0
PORTS_SECONDS = 0.8
_RETRY_SECONDS = 5.0
_GPU_RETRY_SECONDS = 60.0
# A look without the slow probes is served after so long; the GPUs of a healthy node are there by then.
_FIRST_PATIENCE_SECONDS = 3.0


class Source(Protocol):
    """What looks at a machine: ``fabricd.probe.runner.Runner``, or a replay."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the probes that it can run."""

    def refresh(self, names: Collection[str] | None = None, /) -> Snapshot:
        """Run the named probes (all, or none), and return everything known then. Called in a thread."""


class Prober:
    """Keeps this node's entry in the node map fresh.

    Args:
        source: looks at the machine, in threads.
        nodes: takes the snapshots.
        interval: seconds between two full looks; asked anew each time.
    """

    def __init__(self, source: Source, nodes: NodeMap, interval: Callable[[], float]) -> None:
        self._source = source
        self._nodes = nodes
        self._interval = interval
        slow = SLOW_PROBES.intersection(source.names)
        self._lanes = (_Lane(source, interval, frozenset(source.names) - slow), _Lane(source, interval, slow))
        self._serving = False
        self._glance_now = asyncio.Event()
        self._publishing = asyncio.Lock()

    def poke(self, probes: Collection[str]) -> None:
        """Have these probes run soon."""
        for lane in self._lanes:
            lane.poke(probes)

    async def follow_events(self) -> None:
        """Look again whenever links or addresses change, for ever. Without events the interval has to do."""
        while True:
            try:
                async with NetworkEvents() as events:
                    async for change in events:
                        _log.debug("links or addresses changed", extra={"facts": {"messages": change.messages}})
                        self.poke(NETWORK_PROBES.intersection(self._source.names))
                        self._glance_now.set()
            except OSError as error:
                _log.warning("no events from the kernel", extra={"facts": {"error": error}})
            await asyncio.sleep(_RETRY_SECONDS)
            self.poke(NETWORK_PROBES.intersection(self._source.names))  # what happened meanwhile nobody told

    async def follow_gpu_events(self, environment: Mapping[str, str] | None = None) -> None:
        """Look again whenever NVML tells of an error or a change of a GPU, for ever.

        Args:
            environment: of the process in which NVML waits, by default this one's.
        """
        while True:
            try:
                async for event in gpu_events(environment):
                    facts = {"gpu": event.gpu, "kind": event.kind, "data": event.data}
                    _log.warning("GPU event", extra={"facts": facts})
                    self.poke(GPU_PROBES)
            except (ProbeFailed, OSError) as error:
                _log.info("no GPU events", extra={"facts": {"error": error}})
            await asyncio.sleep(_GPU_RETRY_SECONDS)
            self.poke(GPU_PROBES)  # what happened meanwhile nobody told

    async def glance_around(self, glance: Callable[[], Glance]) -> None:
        """Look again when a glance shows another state than the one before, for ever."""
        before: Glance = {}
        while True:
            now = await in_thread(glance, name="glance")  # a card that hangs holds up nothing else
            for probes, state in now.items():
                if before and before[probes] != state:
                    _log.debug("changed at a glance", extra={"facts": {"probes": probes}})
                    self.poke(set(probes).intersection(self._source.names))
            before = now
            with suppress(TimeoutError):
                async with asyncio.timeout(GLANCE_SECONDS):
                    await self._glance_now.wait()
            self._glance_now.clear()

    async def watch_ports(self, states: Callable[[tuple[str, ...]], object]) -> None:
        """Look again when an InfiniBand port is in another state than just before, for ever.

        Args:
            states: reads those of ``fabricd.probe.glance.infiniband_ports``.
        """
        before: object = None
        while True:
            ports = infiniband_ports(self._nodes.local) if self._nodes.ready else ()
            now = (ports, await in_thread(partial(states, ports), name="ports")) if ports else None
            if before is not None and now is not None and now != before:
                self.poke(_PORT_PROBES.intersection(self._source.names))
            before = now
            await asyncio.sleep(PORTS_SECONDS)

    async def run(self) -> None:
        """Look, for ever."""
        quick, slow = self._lanes
        async with asyncio.TaskGroup() as group:
            if slow.names:
                group.create_task(slow.run(self._publish))
            else:
                slow.looked.set()
            group.create_task(quick.run(lambda: self._publish_after(slow.looked)))

    async def _publish_after(self, looked: asyncio.Event) -> None:
        """Publish; the first time, give the slow probes a moment, so that a healthy node's first map is whole."""
        if not self._serving:
            with suppress(TimeoutError):
                async with asyncio.timeout(_FIRST_PATIENCE_SECONDS):
                    await looked.wait()
        self._serving = True
        await self._publish()

    async def _publish(self) -> None:
        """Put what is known by now into the node map."""
        if not self._serving:
            return
        # One at a time: what one lane knew before the other published would put the map back in time.
        async with self._publishing:
            snapshot = await in_thread(lambda: self._source.refresh(()), name="publishing")
            before = self._nodes.local if self._nodes.ready else None
            if self._nodes.set_local(snapshot):
                facts = {"generation": self._nodes.local_version.number}
                _log.info(
                    "this machine's facts changed" if before else "first look at this machine", extra={"facts": facts}
                )
        _log_outcomes(before, snapshot)


class _Lane:
    """Looks with some of the probes, one look after another."""

    def __init__(self, source: Source, interval: Callable[[], float], names: frozenset[str]) -> None:
        self.names = names
        self.looked = asyncio.Event()  #: set after the first look
        self._source = source
        self._interval = interval
        self._wanted: set[str] = set()
        self._poked = asyncio.Event()
        self._full_looks = 0
        self._failed: frozenset[str] = frozenset()

    def poke(self, probes: Collection[str]) -> None:
        """Have those of these probes that are this lane's run soon."""
        mine = self.names.intersection(probes)
        if mine:
            self._wanted |= mine
            self._poked.set()

    async def run(self, looked: Callable[[], Awaitable[None]]) -> None:
        """Look, for ever, and call ``looked`` after each time."""
        loop = asyncio.get_running_loop()
        due = loop.time()
        while True:
            full = loop.time() >= due
            if full:
                # A fixed cadence; after a look that took longer than the interval, it begins anew from now.
                due = max(due + self._interval(), loop.time())
            names = (self._due() if full else frozenset()) | self._wanted
            self._wanted.clear()
            self._poked.clear()
            await self._look(names)
            self.looked.set()
            await looked()
            with suppress(TimeoutError):
                async with asyncio.timeout_at(due):
                    await self._poked.wait()

    def _due(self) -> frozenset[str]:
        """Return the probes of the full look that begins now."""
        resting = RARE_PROBES - self._failed if self._full_looks % _RARELY else frozenset()
        self._full_looks += 1
        return self.names - resting

    async def _look(self, names: Collection[str]) -> None:
        loop = asyncio.get_running_loop()
        begun = loop.time()
        try:
            snapshot = await in_thread(lambda: self._source.refresh(names), name="probing")
            self._failed = frozenset(report.name for report in snapshot.probes if report.outcome in _FAILED)
        except Exception as error:
            if shortage_of(error) is not None:
                raise  # told, and begun anew, by what runs this
            _log.exception("looking at this machine failed")  # runners contain what probes do; this must not end all
        took = loop.time() - begun
        if took > self._interval():
            _log.warning("a look took longer than the interval", extra={"facts": {"seconds": round(took, 3)}})


def _log_outcomes(before: Snapshot | None, now: Snapshot) -> None:
    """Log each probe whose outcome is another than before and is not simply that there is nothing to see."""
    known = {report.name: report.outcome for report in before.probes} if before else {}
    for report in now.probes:
        if known.get(report.name) == report.outcome:
            continue
        quiet = report.outcome in (Outcome.OK, Outcome.ABSENT, Outcome.NOT_RUN, Outcome.UNSUPPORTED)
        facts = {"probe": report.name, "outcome": report.outcome.value, "reason": report.reason}
        _log.log(logging.DEBUG if quiet else logging.WARNING, "probe", extra={"facts": facts})
