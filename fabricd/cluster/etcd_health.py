"""Whether etcd answers, as far as the map is concerned."""

import time
from collections.abc import Callable

from fabricd.cluster.nodes import NodeMap
from fabricd.model.cluster import NodeState, StoreStatus

#: Failures shorter than this, such as the election of a leader, make no node stale.
GRACE_SECONDS = 3.0
#: The parts that talk to etcd. A lease is heard of when it is renewed; a watch is silent while nothing happens, and
#: holds until it fails.
LEASE, WATCH = "lease", "watch"


class StoreHealth:
    """Gathers how the parts fare that talk to etcd, and tells the node map.

    Args:
        nodes: is told.
        parts: which there are.
        clock: monotonic seconds.
    """

    def __init__(self, nodes: NodeMap, parts: tuple[str, ...], *, clock: Callable[[], float] = time.monotonic) -> None:
        self._nodes = nodes
        self._clock = clock
        self._good_at: dict[str, float | None] = dict.fromkeys(parts)
        self._failing: dict[str, tuple[float, str]] = {}  # since when, and why at the moment
        self._tell(NodeState.UNKNOWN, "etcd has not answered yet")

    def ok(self, part: str) -> None:
        """A part got a good answer just now."""
        self._good_at[part] = self._clock()
        self._failing.pop(part, None)
        self._judge()

    def failed(self, part: str, reason: str) -> None:
        """A part got none."""
        since, _ = self._failing.get(part, (self._clock(), ""))
        self._failing[part] = (since, reason)
        self._judge()

    def _judge(self) -> None:
        now = self._clock()
        late = [reason for since, reason in self._failing.values() if now - since >= GRACE_SECONDS]
        if None in self._good_at.values():
            if late:
                self._tell(NodeState.UNKNOWN, late[0])
        else:
            self._tell(NodeState.STALE if late else NodeState.OK, late[0] if late else "")

    def _tell(self, state: NodeState, reason: str) -> None:
        lease = self._good_at.get(LEASE)
        broke_at = self._failing[WATCH][0] if WATCH in self._failing else None
        known = [at for at in (lease, broke_at) if at is not None]
        heard_at = min(known) if lease is not None else None
        self._nodes.set_store(StoreStatus(backend="etcd", state=state, reason=reason), heard_at)
