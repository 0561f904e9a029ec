"""Configuration and credentials read again while the daemon runs: what has faults is told of, and changes nothing."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from fabricd import log
from fabricd.api.services import Services
from fabricd.background import in_thread
from fabricd.config import Config, keep_unreloadable, needs_restart
from fabricd.config_load import Loaded
from fabricd.credentials import Credentials, contradictions, expiry, files_signature, read_credentials
from fabricd.daemon.notify import Notifier
from fabricd.errors import ConfigError, FabricError

T = TypeVar("T")

_log = logging.getLogger("fabricd.daemon")

#: Files of a server that is gone do not answer at all.
READ_SECONDS = 20.0
#: Reads that hang, each in a thread, after which there are no more.
_MOST_HANGING = 8
#: Between two looks at the files of tokens and certificates.
LOOK_SECONDS = 5.0


class Reloader:
    """Keeps the services' configuration and credentials.

    Args:
        services: hold them.
        read: reads all layers again; raises ConfigError.
        taken: called after a change, for the rest of the daemon.
        notifier: tells a supervisor.
    """

    def __init__(
        self, services: Services, read: Callable[[], Loaded], taken: Callable[[], None], notifier: Notifier
    ) -> None:
        self._services = services
        self._read = read
        self._taken = taken
        self._notifier = notifier
        self._one = asyncio.Lock()
        self._waits = False
        self._hanging: set[asyncio.Future[Any]] = set()  # reads that did not end in time

    def begins(self) -> bool:
        """Whether a signal needs a reload of its own: one that has not begun yet will read what it is about, too."""
        begins, self._waits = not self._waits, True
        return begins

    async def on_signal(self) -> None:
        """Read everything again, and go on in any case."""
        try:
            await self.reload()
        except FabricError:
            pass  # logged and counted
        except Exception:  # noqa: BLE001 - whatever it is, jobs rest on this daemon
            _log.exception("the configuration stays as it is")

    async def reload(self) -> None:
        """Read everything again.

        Raises:
            ConfigError: lists every fault; nothing has changed.
        """
        async with self._one:  # one after the other: the last signal's content counts
            self._waits = False
            self._notifier.reloading()
            try:
                self._take(await self._in_time(self._read))
            except FabricError as error:
                self._services.metrics.reloads.labels("failed").inc()
                _log.error("the configuration stays as it is: %s", error)
                raise
            else:
                self._services.metrics.reloads.labels("ok").inc()
            finally:
                self._notifier.ready()

    async def follow_files(self) -> None:
        """Read tokens and certificates again whenever one of their files has changed, for ever.

        Those who renew certificates need not tell the daemon. The configuration itself is not read.
        """
        services = self._services
        seen = services.credentials.signature
        while True:
            self._tell_expiry(services.config, services.credentials)
            await asyncio.sleep(LOOK_SECONDS)
            if not services.credentials.signature:
                continue  # there are no such files
            async with self._one:
                config = services.config
                try:
                    now = await self._in_time(partial(files_signature, config))
                    if now not in (seen, services.credentials.signature):
                        await self._read_files(config)
                        seen = now
                except ConfigError as error:
                    services.nodes.set_faults("files", error.faults)
                else:
                    services.nodes.set_faults("files", ())

    async def _in_time(self, read: Callable[[], T]) -> T:
        """Return what files hold, read in a thread.

        Raises:
            ConfigError: they do not answer.
        """
        if len(self._hanging) >= _MOST_HANGING:
            raise ConfigError([f"files that were read {_MOST_HANGING} times before have not answered yet"])
        reading = asyncio.ensure_future(in_thread(read, name="reload"))
        done, _ = await asyncio.wait({reading}, timeout=READ_SECONDS)
        if not done:
            self._hanging.add(reading)
            reading.add_done_callback(self._answered_late)
            raise ConfigError([f"a file does not answer within {READ_SECONDS:g} s: is it on a server that is gone?"])
        return reading.result()

    def _answered_late(self, reading: asyncio.Future[Any]) -> None:
        self._hanging.discard(reading)
        if not reading.cancelled():
            reading.exception()  # nobody waits for it any more

    async def _read_files(self, config: Config) -> None:
        faults: list[str] = []
        found = await self._in_time(lambda: read_credentials(config, faults))
        faults += contradictions(config, found)
        self._services.nodes.set_faults("credentials", tuple(faults))
        if faults:
            self._services.metrics.reloads.labels("failed").inc()
            _log.error("tokens and certificates stay as they are: %s", ConfigError(faults, source="their files"))
            return
        self._services.credentials = self._as_it_began(found)
        self._services.metrics.reloads.labels("ok").inc()
        self._taken()
        _log.info("tokens and certificates were read again")

    def _take(self, loaded: Loaded) -> None:
        services = self._services
        late = needs_restart(services.config, loaded.config)
        if late:
            _log.warning("only a restart changes these", extra={"facts": {"settings": ", ".join(late)}})
        config = keep_unreloadable(services.config, loaded.config)
        found = self._as_it_began(loaded.credentials)
        services.config, services.credentials = config, found
        services.polls.limit = config.max_long_polls
        services.nodes.set_faults("credentials", ())
        self._tell_expiry(config, found)
        log.set_level(config.log_level)
        self._taken()
        for told in loaded.warnings:
            _log.warning("%s", told)
        _log.info("the configuration was read again", extra={"facts": {"file": loaded.file or "none"}})

    def _as_it_began(self, found: Credentials) -> Credentials:
        """Return the credentials with TLS on the port if it began so, and else without."""
        before = self._services.credentials.server_tls
        if (found.server_tls is None) == (before is None):
            return found
        _log.warning("only a restart begins or ends TLS on the port")
        return replace(found, server_tls=before)

    def _tell_expiry(self, config: Config, found: Credentials) -> None:
        self._services.nodes.set_faults("certificate", expiry(config, found))
