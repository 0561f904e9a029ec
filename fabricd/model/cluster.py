"""What a daemon knows of the nodes around it."""

from dataclasses import dataclass
from enum import StrEnum

from fabricd.model.network import Network
from fabricd.model.observation import missing_word
from fabricd.model.path import Rejected
from fabricd.model.placement import Place
from fabricd.model.snapshot import Snapshot


class NodeState(StrEnum):
    """How fresh a daemon's knowledge of a node is."""

    OK = "ok"  #: this node, or a peer that answered lately
    STALE = "stale"  #: the latest try failed; the snapshot is the last good one
    GONE = "gone"  #: no answer for long; its ports are no candidates any more
    UNKNOWN = "unknown"  #: never answered since this daemon started

    @classmethod
    def _missing_(cls, value: object) -> "NodeState | None":
        return missing_word(value, cls.UNKNOWN)


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """A node in numbers."""

    gpus: int
    hcas: int
    cards: int  #: network interfaces that are backed by a PCI device
    system: str  #: operating system, and the hypervisor where there is one


def inventory_of(snapshot: Snapshot) -> Inventory:
    """Return a node in numbers."""
    return Inventory(
        gpus=len(snapshot.gpus),
        hcas=len(snapshot.hcas),
        cards=sum(1 for interface in snapshot.interfaces if interface.pci_address),
        system=", ".join(filter(None, (snapshot.node.os, snapshot.node.hypervisor))),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeStatus:
    """A node as one daemon knows it."""

    node_id: str  #: "" for a peer that never answered
    name: str  #: "" for a peer that never answered
    state: NodeState
    this_node: bool = False  #: the node of the daemon that answers
    url: str = ""  #: where its daemon is asked; "" for this node
    #: Seconds since the last good answer, on the answering daemon's monotonic clock; None: never.
    age_seconds: float | None = None
    reason: str = ""  #: why not ok
    generation: int = 0
    content_hash: str = ""
    schema: int = 0  #: of its snapshot; 0 none
    note: str = ""  #: what a reader should know beside the state, e.g. that its schema is another
    inventory: Inventory | None = None  #: None: never seen
    snapshot: Snapshot | None = None  #: None when a summary was asked for, or never seen

    @property
    def was_seen(self) -> bool:
        """Whether its snapshot can be had; the first daemons told no schema."""
        return bool(self.schema or self.content_hash)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreStatus:
    """How the place is where nodes tell of themselves: each other's HTTP interface, or etcd."""

    backend: str = "static"
    state: NodeState = NodeState.OK  #: ok, stale (the map is the last one known), unknown (never answered)
    age_seconds: float | None = None  #: since its last good answer; None: never, or there is no store
    reason: str = ""  #: why not ok


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterStatus:
    """All nodes that a daemon knows, this one first."""

    instance: str  #: random, new with each start of the answering daemon
    generation: int  #: counts changes of this answer; ages do not count
    nodes: tuple[NodeStatus, ...]
    #: Nodes that cannot be told apart: one node_id twice, or one name for two nodes; one sentence each.
    conflicts: tuple[str, ...] = ()
    #: Place in ``/v1/events`` of this answer: what comes after it has changed since.
    event_cursor: str = ""
    store: StoreStatus = StoreStatus()
    #: Faults of membership that no node shows: a list of peers that cannot be read, too many of them.
    faults: tuple[str, ...] = ()
    #: Which ports can talk to which; None here and in the next two: not asked for.
    networks: tuple[Network, ...] | None = None
    no_network: tuple[Rejected, ...] | None = None  #: ports that are on none, "node_id/port", and why
    places: tuple[Place, ...] | None = None  #: where nodes stand
    #: Age of these three where the map has changed since; 0: they are of the nodes above.
    networks_age_seconds: float | None = None
