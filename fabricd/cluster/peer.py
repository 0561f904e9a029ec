"""Another node, as this daemon knows it."""

from dataclasses import dataclass

from fabricd.model.cluster import NodeState
from fabricd.model.snapshot import Snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """Another node's daemon, and what it said of its node."""

    key: str  #: unique in the map: its URL, or its key in the store
    url: str = ""  #: where it is asked; "" for one that can not be
    state: NodeState = NodeState.UNKNOWN
    reason: str = ""
    snapshot: Snapshot | None = None
    heard_at: float | None = None  #: monotonic clock of this daemon; None: never, or as fresh as the store

    @property
    def node_id(self) -> str:
        """Identity of its node; "" while it is not known."""
        return self.snapshot.node.node_id if self.snapshot else ""

    @property
    def name(self) -> str:
        """Display name of its node; "" while it is not known."""
        return self.snapshot.node.name if self.snapshot else ""

    @property
    def instance(self) -> str:
        """The daemon's process; "" while it is not known."""
        return self.snapshot.instance if self.snapshot else ""
