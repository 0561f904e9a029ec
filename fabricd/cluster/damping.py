"""Links that flap: single changes are told until they are too many, then only that it flaps, and what came of it.

Pure: events and times go in, the events to tell come out. What the map holds is not touched: it always shows the
latest facts.
"""

from collections import deque
from dataclasses import dataclass, field, replace

from fabricd.model.event import Event, EventKind

#: So many changes of one link within so long make it one that flaps ...
FLAPS, WINDOW_SECONDS = 6, 60.0
#: ... until it has not changed for so long.
CALM_SECONDS = 30.0

_LINK_KINDS = frozenset({EventKind.LINK_UP, EventKind.LINK_DOWN, EventKind.LINK_DROPPED})
_ENDS = frozenset({EventKind.NODE_LEFT, EventKind.NODE_REPLACED})


@dataclass(slots=True)
class _Watched:
    """A link that changed lately."""

    changes: deque[tuple[float, int]] = field(default_factory=deque)  #: times, and how many changes each stands for
    flapping: Event | None = None  #: its first change that was held back; None while it does not flap
    latest: Event | None = None
    latest_at: float = 0.0
    count: int = 0  #: changes within the window, or since it began to flap


class Damper:
    """Holds back the changes of links that flap. Remembers only links that changed within the last minute."""

    def __init__(self) -> None:
        self._links: dict[tuple[str, str], _Watched] = {}

    @property
    def flapping(self) -> int:
        """How many links flap now."""
        return sum(watched.flapping is not None for watched in self._links.values())

    def take(self, event: Event, now: float) -> list[Event]:
        """Return what to tell of an event: itself, that its link flaps, or nothing."""
        if event.kind in _ENDS:
            for key in [key for key in self._links if key[0] in (event.node_id, event.before)]:
                del self._links[key]
        if event.kind not in _LINK_KINDS:
            return [event]
        watched = self._links.setdefault((event.node_id, event.subject), _Watched())
        watched.latest, watched.latest_at = event, now
        changes = event.count * (2 if event.kind is EventKind.LINK_DROPPED else 1)
        if watched.flapping is not None:
            watched.count += changes
            return []
        watched.changes.append((now, changes))
        while watched.changes[0][0] <= now - WINDOW_SECONDS:
            watched.changes.popleft()
        watched.count = sum(number for _, number in watched.changes)
        if watched.count < FLAPS:
            return [event]
        watched.flapping = event
        why = f"told again when it has been calm for {CALM_SECONDS:g} s"
        return [replace(event, kind=EventKind.LINK_FLAPPING, count=watched.count, detail=why)]

    def calm(self, now: float) -> list[Event]:
        """Return what links came to that have flapped and are calm; forget those that changed long ago."""
        told = []
        for key, watched in list(self._links.items()):
            quiet = now - watched.latest_at
            if watched.flapping is not None and watched.latest is not None and quiet >= CALM_SECONDS:
                told.append(_outcome(watched.flapping, watched.latest, watched.count))
                del self._links[key]
            elif watched.flapping is None and quiet >= WINDOW_SECONDS:
                del self._links[key]
        return told


def _outcome(first: Event, latest: Event, count: int) -> Event:
    """Return the one event that stands for all that were held back."""
    kind = EventKind.LINK_UP if latest.after == "up" else EventKind.LINK_DOWN
    return replace(latest, kind=kind, before=first.before, count=count, detail=f"calm after {count} changes")
