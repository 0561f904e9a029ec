"""When groups are put on record: at once or soon, and again where the disk was full or read-only."""

import asyncio
import logging

from fabricd.cluster.groups_live import Group
from fabricd.cluster.groups_record import GroupStore, record_of
from fabricd.model.wire import GroupPhase
from fabricd.shortage import Resource, Shortages

_log = logging.getLogger("fabricd.groups")

_SOON_SECONDS = 0.05
#: Well within the time after which a shortage would count as over.
_AGAIN_SECONDS = 2.0


class RecordKeeper:
    """Keeps the records of groups as the groups are. Lives in the event loop.

    Args:
        store: of the records.
        shortages: told while a record cannot be written: its group would not survive a restart of this daemon.
    """

    def __init__(self, store: GroupStore, shortages: Shortages) -> None:
        self._store = store
        self._shortages = shortages
        self._due: dict[Group, asyncio.TimerHandle] = {}  #: changed, and to be saved then

    def save(self, group: Group) -> None:
        """Put a group on record; one that ended well is taken off it."""
        error = self._write(group)
        if error is not None:
            self._shortages.note(Resource.STORAGE, f"group {group.state.name!r} is not on record: {error}")
            self._save_in(_AGAIN_SECONDS, group)

    def save_soon(self, group: Group) -> None:
        """Put a group on record with what else changes in the next moment."""
        if group not in self._due:
            self._save_in(_SOON_SECONDS, group)

    def forget(self, group: Group) -> None:
        """Take a group off the record."""
        self._not_due(group)
        self._store.remove(group.state.kvsname)

    def close(self) -> None:
        """Write what has changed, and do no more."""
        for group in [*self._due]:
            error = self._write(group)
            if error is not None:
                _log.warning("group %r goes without a record: %s", group.state.name, error)

    def _write(self, group: Group) -> OSError | None:
        self._not_due(group)
        if group.state.phase is GroupPhase.ENDED:
            self._store.remove(group.state.kvsname)
            return None
        try:
            self._store.save(record_of(group.state, group.access, group.owner))
        except OSError as error:
            return error
        return None

    def _save_in(self, seconds: float, group: Group) -> None:
        self._due[group] = asyncio.get_running_loop().call_later(seconds, self.save, group)

    def _not_due(self, group: Group) -> None:
        if group in self._due:
            self._due.pop(group).cancel()
