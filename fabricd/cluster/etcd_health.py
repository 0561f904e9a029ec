"""Whether etcd answers, as far as the map is concerned."""

import time
from collections.abc import Callable

from fabricd.cluster.nodes import NodeMap
from fabricd.model.cluster import NodeState, StoreStatus

#: Failures shorter than this, such as the election of a leader, make no node stale.
GRACE_SECONDS = 3.0


class StoreHealth:
    """Gathers how the parts fare that talk to etcd, and tells the node map.

    Args:
        nodes: is told.
        parts: who reports, e.g. "lease", "watch".
        clock: monotonic seconds.
    """

    def __init__(self, nodes: NodeMap, parts: tuple[str, ...], *, clock: Callable[[], float] = time.monotonic) -> None:
        self._nodes = nodes
        self._clock = clock
        self._good_at: dict[str, float | None] = dict.fromkeys(parts)
        self._reasons: dict[str, str] = {}
        self._begun = clock()
        self._tell(NodeState.UNKNOWN, "etcd has not answered yet")

    def ok(self, part: str) -> None:
        """A part got a good answer just now."""
        self._good_at[part] = self._clock()
        self._reasons.pop(part, None)
        self._judge()

    def failed(self, part: str, reason: str) -> None:
        """A part got none."""
        self._reasons[part] = reason
        self._judge()

    def _judge(self) -> None:
        now = self._clock()
        for part, reason in self._reasons.items():
            good = self._good_at[part]
            if now - (self._begun if good is None else good) >= GRACE_SECONDS:
                self._tell(NodeState.UNKNOWN if None in self._good_at.values() else NodeState.STALE, reason)
                return
        if None not in self._good_at.values():
            self._tell(NodeState.OK, "")

    def _tell(self, state: NodeState, reason: str) -> None:
        # A watch says nothing while nothing happens: only one that fails counts for the age.
        times = [at for part, at in self._good_at.items() if at is not None and part in self._reasons]
        fresh = [at for at in self._good_at.values() if at is not None]
        heard_at = min(times) if times else max(fresh, default=None)
        self._nodes.set_store(StoreStatus(backend="etcd", state=state, reason=reason), heard_at)
