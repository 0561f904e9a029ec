"""Configuration and credentials read again while the daemon runs: what has faults is told of, and changes nothing."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from fabricd import log
from fabricd.api.services import Services
from fabricd.background import in_thread
from fabricd.config import Config, keep_unreloadable, needs_restart
from fabricd.config_load import Loaded
from fabricd.credentials import Credentials, contradictions, expiry, files_signature, read_credentials
from fabricd.daemon.notify import Notifier
from fabricd.errors import ConfigError, FabricError

_log = logging.getLogger("fabricd.daemon")

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
                self._take(await in_thread(self._read, name="reload"))
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
                now = await in_thread(partial(files_signature, config), name="credentials")
                if now not in (seen, services.credentials.signature):
                    seen = now
                    await self._read_files(config)

    async def _read_files(self, config: Config) -> None:
        faults: list[str] = []
        found = await in_thread(lambda: read_credentials(config, faults), name="credentials")
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
