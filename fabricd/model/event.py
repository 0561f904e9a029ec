"""What changed in the cluster's map, one change at a time, in order."""

from dataclasses import dataclass
from enum import StrEnum

from fabricd.model.observation import missing_word


class EventKind(StrEnum):
    """What happened. ``before`` and ``after`` of the event hold what stands behind the colon here."""

    NODE_JOINED = "node_joined"  #: a node that was not known
    NODE_LEFT = "node_left"  #: it went in peace, is configured no more, or was gone for long
    NODE_STALE = "node_stale"  #: the latest try failed
    NODE_GONE = "node_gone"  #: silent for long
    NODE_BACK = "node_back"  #: stale or gone, and answers again
    NODE_RESTARTED = "node_restarted"  #: its daemon is a new process: "" or the boot ids of a machine that rebooted
    NODE_REPLACED = "node_replaced"  #: same place or name, other identity (a machine imaged anew): node_ids
    NODE_RENAMED = "node_renamed"  #: names
    NODE_CHANGED = "node_changed"  #: its facts differ: "", and the parts that differ, "interfaces, routes"
    INTERFACE_ADDED = "interface_added"  #: "", and its link's state
    INTERFACE_REMOVED = "interface_removed"
    ADDRESSES_CHANGED = "addresses_changed"  #: of an interface: "10.0.0.1/24, fd00::1/64"
    LINK_DOWN = "link_down"  #: of an interface, an HCA's port, an NVLink: states, "up" and "down"
    LINK_UP = "link_up"  #: states
    LINK_DROPPED = "link_dropped"  #: down and up again, ``count`` times, between two looks
    LINK_FLAPPING = "link_flapping"  #: it changes so often that single changes are told no more, until it is calm
    NETWORK_CHANGED = "network_changed"  #: a node's ports on a network: "eth0, eth1"
    DEVICE_ADDED = "device_added"  #: a GPU or HCA
    DEVICE_REMOVED = "device_removed"
    DEVICE_CHANGED = "device_changed"  #: a GPU's outcome: "ok", "failed", ...
    CONFLICT = "conflict"  #: nodes that cannot be told apart; ``detail`` says which
    CONFLICT_OVER = "conflict_over"
    STORE_LOST = "store_lost"  #: the cluster's store does not answer; the map is the last one known
    STORE_BACK = "store_back"
    OTHER = "other"  #: a kind that this version does not know

    @classmethod
    def _missing_(cls, value: object) -> "EventKind | None":
        return missing_word(value, cls.OTHER)


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One change, as one daemon saw it."""

    kind: EventKind
    node_id: str = ""  #: "" where no single node is meant
    node: str = ""  #: its display name
    subject: str = ""  #: "eth0", "mlx5_0:1", "gpu0/nvlink3", "gpu0", "10.1.0.0/24"; "" the node itself
    before: str = ""
    after: str = ""
    count: int = 1  #: how many changes this stands for
    detail: str = ""  #: why, in words
    number: int = 0  #: position in the daemon's history; rises by 1
    at: float = 0.0  #: Unix time of the daemon that tells, for people; never compared between hosts


@dataclass(frozen=True, slots=True, kw_only=True)
class EventPage:
    """A piece of a daemon's history."""

    cursor: str  #: pass it as ``since`` for what comes next
    events: tuple[Event, ...] = ()
    #: True: what was asked for is not kept any more, or another process's. Read ``/v1/cluster``, go on from its
    #: ``event_cursor``.
    resync: bool = False
