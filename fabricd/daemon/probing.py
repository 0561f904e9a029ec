"""Looks at this machine again and again: at an interval, and at once when the kernel tells of a change."""

import asyncio
import logging
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import Protocol

from fabricd.background import in_thread
from fabricd.cluster.nodes import NodeMap
from fabricd.model.observation import Outcome
from fabricd.model.snapshot import Snapshot
from fabricd.probe.events import NetworkEvents

_log = logging.getLogger("fabricd.probe")

#: What an event of the kernel's network part makes old. They come settled, and twice a second at most.
NETWORK_PROBES = frozenset({"netlink", "pci"})
_RETRY_SECONDS = 5.0


class Source(Protocol):
    """What looks at a machine: ``fabricd.probe.runner.Runner``, or a replay."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the probes that it can run."""

    def refresh(self, names: Collection[str] | None = None, /) -> Snapshot:
        """Run the named probes, or all, and return everything known then. Called in a thread."""


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
        self._wanted: set[str] = set()
        self._poked = asyncio.Event()

    def poke(self, probes: Collection[str]) -> None:
        """Have these probes run soon."""
        self._wanted.update(probes)
        self._poked.set()

    async def follow_events(self) -> None:
        """Look again whenever links or addresses change, for ever. Without events the interval has to do."""
        while True:
            try:
                async with NetworkEvents() as events:
                    async for change in events:
                        _log.debug("links or addresses changed", extra={"facts": {"messages": change.messages}})
                        self.poke(NETWORK_PROBES.intersection(self._source.names))
            except OSError as error:
                _log.warning("no events from the kernel", extra={"facts": {"error": error}})
            await asyncio.sleep(_RETRY_SECONDS)
            self.poke(NETWORK_PROBES.intersection(self._source.names))  # what happened meanwhile nobody told

    async def run(self) -> None:
        """Look, for ever."""
        loop = asyncio.get_running_loop()
        due = loop.time()
        while True:
            full = loop.time() >= due
            if full:
                # A fixed cadence; after a look that took longer than the interval, it begins anew from now.
                due = max(due + self._interval(), loop.time())
            names = None if full else frozenset(self._wanted)
            self._wanted.clear()
            self._poked.clear()
            await self._look(names)
            with suppress(TimeoutError):
                async with asyncio.timeout_at(due):
                    await self._poked.wait()

    async def _look(self, names: Collection[str] | None) -> None:
        loop = asyncio.get_running_loop()
        begun = loop.time()
        try:
            snapshot = await in_thread(lambda: self._source.refresh(names), name="probing")
        except Exception:  # noqa: BLE001 - runners contain what probes do; its own fault must not end the daemon
            _log.exception("looking at this machine failed")
            return
        before = self._nodes.local if self._nodes.ready else None
        changed = self._nodes.set_local(snapshot)
        took = loop.time() - begun
        if changed:
            facts = {"generation": self._nodes.local_version.number, "seconds": round(took, 3)}
            _log.info(
                "this machine's facts changed" if before else "first look at this machine", extra={"facts": facts}
            )
        if took > self._interval():
            _log.warning("a look took longer than the interval", extra={"facts": {"seconds": round(took, 3)}})
        _log_outcomes(before, snapshot)


def _log_outcomes(before: Snapshot | None, now: Snapshot) -> None:
    """Log each probe whose outcome is another than before and is not simply that there is nothing to see."""
    known = {report.name: report.outcome for report in before.probes} if before else {}
    for report in now.probes:
        if known.get(report.name) == report.outcome:
            continue
        quiet = report.outcome in (Outcome.OK, Outcome.ABSENT, Outcome.NOT_RUN, Outcome.UNSUPPORTED)
        facts = {"probe": report.name, "outcome": report.outcome.value, "reason": report.reason}
        _log.log(logging.DEBUG if quiet else logging.WARNING, "probe", extra={"facts": facts})
