"""Has a communicator's path got worse since it was planned, or another one better? What the map's changes say."""

import threading
import time
from collections.abc import Set as AbstractSet

from fabric_client.connection import Connection
from fabricd.errors import FabricError
from fabricd.model.event import Event, EventKind, EventPage
from fabricd.model.plan import GroupPlan

_POLL_SECONDS = 10.0
_RETRY_SECONDS = 2.0
_TOLD_MAX = 100  #: changes kept; a plan is stale after the first

#: Of a planned device, the path is worse, or was for a while.
_WORSE = frozenset(
    {
        EventKind.LINK_DOWN,
        EventKind.LINK_DROPPED,
        EventKind.LINK_FLAPPING,
        EventKind.INTERFACE_REMOVED,
        EventKind.ADDRESSES_CHANGED,
        EventKind.DEVICE_REMOVED,
    }
)
#: Of a device, there may be a better path.
_BETTER = frozenset({EventKind.LINK_UP, EventKind.INTERFACE_ADDED, EventKind.DEVICE_ADDED, EventKind.ADDRESSES_CHANGED})


def concerns(event: Event, plan: GroupPlan) -> str:
    """Return what a change of the map means for a plan, in words; "" for nothing.

    Where all ranks are on one host no network matters.
    """
    if len({part.host_index for part in plan.ranks}) < 2:
        return ""
    planned = {device for part in plan.ranks if part.node == event.node for device in part.devices}
    if not any(part.node == event.node for part in plan.ranks):
        return ""
    ours = _is_among(event.subject, planned)
    if not (event.kind in _BETTER or (ours and event.kind in _WORSE)):
        return ""
    mark = "planned" if ours else "not planned"
    change = f": {event.before or 'nothing'} -> {event.after or 'nothing'}" if event.before or event.after else ""
    return f"{event.node}: {event.subject} ({mark}) {event.kind.replace('_', ' ')}{change}"


def changes_since(connection: Connection, plan: GroupPlan) -> list[str]:
    """Return what has changed on the map since a plan was made and concerns it; nothing where that is not known.

    Raises:
        FabricError: the daemon does not answer.
    """
    if not plan.map_cursor:
        return []
    page = connection.get("/v1/events", EventPage, params={"since": plan.map_cursor})
    return [text for event in page.events if (text := concerns(event, plan))]


def _is_among(subject: str, devices: AbstractSet[str]) -> bool:
    """Tell whether an event is about one of these; an HCA's events are about all of its ports."""
    return subject in devices or subject in {device.partition(":")[0] for device in devices}


class MapWatch:
    """A thread that follows the map's changes, from when it is made.

    Args:
        connection: the daemon that made the plan.
        plan: whose devices count.

    Attributes:
        changes: what concerns the plan so far, the oldest first.
    """

    def __init__(self, connection: Connection, plan: GroupPlan) -> None:
        self.changes: tuple[str, ...] = ()
        self._connection = connection
        self._plan = plan
        self._stopped = False
        self._cursor = self._ask(None, 0.0).cursor  # changes before now are in the plan, or have been told
        threading.Thread(target=self._run, name="fabricd-map", daemon=True).start()

    def stop(self) -> None:
        """Ask the daemon nothing more."""
        self._stopped = True

    def _run(self) -> None:
        while not self._stopped and len(self.changes) < _TOLD_MAX:
            try:
                page = self._ask(self._cursor, _POLL_SECONDS)
            except FabricError:
                time.sleep(_RETRY_SECONDS)
                continue
            self._cursor = page.cursor
            found = [text for event in page.events if (text := concerns(event, self._plan))]
            if page.resync:
                found.append("changes were missed: the daemon was restarted, or there were too many")
            self.changes += tuple(found)

    def _ask(self, since: str | None, wait: float) -> EventPage:
        params = {} if since is None else {"since": since}
        return self._connection.get("/v1/events", EventPage, params=params, wait=wait)
