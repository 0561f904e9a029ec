"""The daemon's life: listen, look at the machine, say ready, answer, reload, end."""

import asyncio
import gc
import ipaddress
import logging
import os
import signal
import socket
import ssl
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fabricd import __version__, log
from fabricd.api.app import create_app
from fabricd.api.longpoll import LongPolls
from fabricd.api.services import Services
from fabricd.cluster.etcd_store import EtcdStore
from fabricd.cluster.nodes import NodeMap
from fabricd.cluster.peers import Peers, log_conflicts
from fabricd.cluster.reading_ahead import read_ahead
from fabricd.config_load import Loaded
from fabricd.daemon.advertise import listening_url
from fabricd.daemon.following import etcd_store, peer_settings
from fabricd.daemon.listeners import UnixListener, listen_tcp
from fabricd.daemon.memory_limit import MemoryLimit
from fabricd.daemon.notify import Notifier
from fabricd.daemon.probing import Prober, Source
from fabricd.daemon.ready import Ready, announce, retract
from fabricd.daemon.reloading import Reloader
from fabricd.daemon.room import Room, check_descriptors, connection_limit
from fabricd.daemon.server import Server
from fabricd.daemon.tidy import settle
from fabricd.errors import FabricError
from fabricd.log_output import Output
from fabricd.metrics import FindingsCollector, GroupCollector, NodeCollector, ShortageCollector
from fabricd.metrics_hardware import HardwareCollector
from fabricd.model.cluster import NodeStatus
from fabricd.probe.base import Roots
from fabricd.probe.glance import glance, port_states
from fabricd.shortage import Resource, shortage_of

_log = logging.getLogger("fabricd.daemon")


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """How the daemon was started, apart from its configuration."""

    source: Source
    reload: Callable[[], Loaded]  #: reads the configuration again; raises ConfigError
    live: bool = True  #: the source looks at this machine, whose kernel tells of changes
    #: Of a replayed cluster: its nodes, of which the source is one.
    others: Sequence[NodeStatus] = ()
    ready_file: Path | None = None
    ready_descriptor: int | None = None


def run(loaded: Loaded, launch: Launch) -> None:
    """Run the daemon until SIGTERM or SIGINT.

    Raises:
        UnavailableError: it cannot listen where it should.
    """
    output = log.configure(loaded.config.log_level, loaded.config.log_format)
    try:
        asyncio.run(Daemon(loaded, launch, output).run())
    finally:
        output.flush()  # before what the caller says of it
        gc.freeze()  # the interpreter would look through every module for garbage once more, for half a second
        # A second signal, while the interpreter cleans up, must not turn a clean end into a killed process.
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)


class Daemon:
    """One running daemon."""

    def __init__(self, loaded: Loaded, launch: Launch, output: Output) -> None:
        self._launch = launch
        self._output = output
        config = loaded.config
        self._nodes = NodeMap()
        self._nodes.replay(launch.others)
        self.services = Services(
            config=config,
            nodes=self._nodes,
            polls=LongPolls(config.max_long_polls),
            credentials=loaded.credentials,
            near_memory_limit=MemoryLimit().near,
        )
        self.services.metrics.watch(NodeCollector(self._nodes))
        self.services.metrics.watch(FindingsCollector(self._nodes, self.services.findings))
        self.services.metrics.watch(HardwareCollector(self._nodes, self.services.findings))
        self.services.metrics.watch(GroupCollector(self.services.groups))
        self.services.metrics.watch(ShortageCollector(self.services.shortages))
        self.services.metrics.watch_long_polls(lambda: self.services.polls.open)
        self._prober = Prober(launch.source, self._nodes, lambda: self.services.config.probe_interval_seconds)
        self._peers = Peers(
            self._nodes,
            count=lambda outcome: self.services.metrics.peer_polls.labels(outcome).inc(),
            shortages=self.services.shortages,
        )
        self._store: EtcdStore | None = None
        self._notifier = Notifier()
        self._stopping = asyncio.Event()
        self._room: Room | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._reloader = Reloader(self.services, launch.reload, self._take_up, self._notifier)
        self.services.reload = self._reloader.reload
        self._warnings = loaded.warnings
        self._failure: BaseException | None = None

    async def run(self) -> None:
        """Listen, serve and end.

        Raises:
            UnavailableError: it cannot listen where it should, or cannot say that it does, or gets no descriptors.
        """
        config = self.services.config
        check_descriptors()
        retract(self._launch.ready_file)  # of a daemon that was killed
        tcp = listen_tcp(config.host, config.port)
        try:
            unix = UnixListener(config.socket) if config.socket else None
        except BaseException:
            tcp.close()
            raise
        try:
            await self._serve(tcp, unix)
        finally:
            retract(self._launch.ready_file)
            if unix:
                unix.close()

    async def _serve(self, tcp: socket.socket, unix: UnixListener | None) -> None:
        self._handle_signals()
        asyncio.get_running_loop().set_exception_handler(self._left_over)
        app = create_app(self.services)
        limit = connection_limit(self.services.config.max_connections)
        server = Server(
            app,
            self._stopping,
            limit,
            self.services.shortages,
            self._beat,
            near_memory_limit=self.services.near_memory_limit,
            tls=self._tls(),
        )
        self._room = server.room
        url = self._url(tcp)
        self._start(self._prober.run, "probing")
        if self._launch.live:
            self._start(self._prober.follow_events, "events")
            self._start(lambda: self._prober.glance_around(lambda: glance(Roots())), "glances")
            self._start(lambda: self._prober.watch_ports(lambda ports: port_states(Roots(), ports)), "ports")
            if self.services.config.gpu_events == "on":
                self._start(self._prober.follow_gpu_events, "gpu events")
        self._start(lambda: self._announce(url, unix), "ready")
        self._start(self._reloader.follow_files, "credentials")
        self._start(lambda: log_conflicts(self._nodes), "conflicts")
        self._start(lambda: read_ahead(self._nodes, self.services.ends), "reading ahead")
        self._peers.follow(peer_settings(self.services))
        if self.services.config.cluster_backend == "etcd":
            self._store = await etcd_store(self.services, tcp.getsockname()[1])
            self._start(self._store.run, "etcd")
        self.services.groups.start()
        facts = {"version": __version__, "url": url, "host": self.services.config.host, "pid": os.getpid()}
        _log.info("fabricd starts", extra={"facts": facts})
        for told in self._warnings:
            _log.warning("%s", told)
        try:
            await server.serve(sockets=[tcp, *([unix.socket] if unix else [])])
        finally:
            tasks = list(self._tasks)
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks, timeout=0.2)
            await self._peers.close()
            if self._store is not None:
                await self._store.close()
            _log.info("fabricd ends")
        if self._failure is not None:
            raise self._failure

    def _start(self, work: Callable[[], Awaitable[None]], name: str) -> None:
        """Start what runs beside the server.

        For a shortage it begins anew; when it fails otherwise the daemon ends rather than live on without it.
        """
        task = asyncio.create_task(self.services.shortages.outlast(work, name), name=name)
        task.add_done_callback(self._ended)
        self._tasks.add(task)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            foreseen = isinstance(error, FabricError)
            _log.error("%s failed; the daemon ends", task.get_name(), exc_info=None if foreseen else error)
            self._failure = error
            self._stop()

    def _left_over(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Take what nobody else took: for want of memory a callback may fail anywhere."""
        error = context.get("exception")
        lacking = shortage_of(error) if isinstance(error, BaseException) else None
        if lacking is None:
            loop.default_exception_handler(context)
        else:
            self.services.shortages.note(lacking, context.get("message", ""))

    def _handle_signals(self) -> None:
        """Have signals call the loop. The loop's own handlers would end with it, before the process does."""
        loop = asyncio.get_running_loop()
        actions = {signal.SIGTERM: self._stop, signal.SIGINT: self._stop, signal.SIGHUP: self._start_reload}

        def handle(number: int, _frame: object) -> None:
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(actions[signal.Signals(number)])

        for number in actions:
            signal.signal(number, handle)

    def _start_reload(self) -> None:
        if self._reloader.begins():
            self._start(self._reloader.on_signal, "reload")

    def _stop(self) -> None:
        if not self._stopping.is_set():
            self._notifier.stopping()
            self._stopping.set()
            self.services.groups.stop()
            self.services.polls.stop()

    def _beat(self) -> None:
        self.services.beat_at = time.monotonic()
        self._nodes.history.settle()
        if self._output.full:
            self.services.shortages.note(Resource.LOG, "nobody reads the log")
        if near := self.services.near_memory_limit():
            self.services.shortages.note(Resource.MEMORY, near)
        self.services.shortages.settle()
        self._notifier.beat()

    async def _announce(self, url: str, unix: UnixListener | None) -> None:
        """Say ready as soon as this machine has been looked at."""
        while not self._nodes.ready:
            await self._nodes.local_version.wait_for_change(0, 3600)
        ready = Ready(
            url=url,
            socket=str(unix.path) if unix else "",
            node_id=self._nodes.local.node.node_id,
            pid=os.getpid(),
        )
        announce(ready, file=self._launch.ready_file, descriptor=self._launch.ready_descriptor)
        self._notifier.ready()
        settle()
        _log.info("ready", extra={"facts": {"url": ready.url, "socket": ready.socket, "node_id": ready.node_id}})

    def _take_up(self) -> None:
        """Go by a configuration, or credentials, that are new."""
        self._peers.follow(peer_settings(self.services))
        if self._room is not None:
            self._room.resize(connection_limit(self.services.config.max_connections))

    def _tls(self) -> Callable[[], ssl.SSLContext] | None:
        """Return what gives the TCP port's TLS at the moment; None: it has none, until the daemon's end."""
        services = self.services
        if services.credentials.server_tls is None:
            return None
        services.metrics.watch_certificate(lambda: services.credentials.not_after)

        def current() -> ssl.SSLContext:
            context = services.credentials.server_tls
            if context is None:  # the reloader keeps what the port began with
                raise ConnectionAbortedError("no certificate")
            return context

        return current

    def _url(self, listener: socket.socket) -> str:
        """Return the URL under which a process of this host reaches the listener."""
        host, port = listener.getsockname()[:2]
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - no bind: what is told for "any"
        secure = self.services.credentials.server_tls is not None
        return listening_url(ipaddress.ip_address(host), port, secure=secure)
