"""What the map says of one node: how it is, how old that is, and what to know of it."""

from fabricd.cluster.peer import Peer
from fabricd.model.cluster import NodeState, NodeStatus, StoreStatus, inventory_of
from fabricd.model.snapshot import SCHEMA, Snapshot


def local_status(local: Snapshot, age_seconds: float, *, summary: bool) -> NodeStatus:
    """Return the status of this node.

    Args:
        local: its snapshot.
        age_seconds: of that.
        summary: leave the snapshot out.
    """
    return NodeStatus(
        node_id=local.node.node_id,
        name=local.node.name,
        state=NodeState.OK,
        this_node=True,
        age_seconds=age_seconds,
        generation=local.generation,
        content_hash=local.content_hash,
        schema=local.schema,
        note=_note(local),
        inventory=inventory_of(local),
        snapshot=None if summary else local,
    )


def peer_status(
    peer: Peer, store: StoreStatus, store_heard_at: float | None, now: float, *, summary: bool
) -> NodeStatus:
    """Return the status of another node.

    Args:
        peer: what is known of it.
        store: how the store is, from which some nodes are known.
        store_heard_at: when that last answered, on the monotonic clock.
        now: on that clock.
        summary: leave the snapshot out.
    """
    snapshot = peer.snapshot
    state = state_of(peer, store)
    heard = store_heard_at if peer.heard_at is None and snapshot else peer.heard_at
    return NodeStatus(
        node_id=peer.node_id,
        name=peer.name,
        state=state,
        url=peer.url,
        age_seconds=None if heard is None else now - heard,
        reason=peer.reason or (store.reason if state is not peer.state else ""),
        generation=snapshot.generation if snapshot else 0,
        content_hash=snapshot.content_hash if snapshot else "",
        schema=snapshot.schema if snapshot else 0,
        note=_note(snapshot) if snapshot else "",
        inventory=inventory_of(snapshot) if snapshot else None,
        snapshot=None if summary else snapshot,
    )


def state_of(peer: Peer, store: StoreStatus) -> NodeState:
    """Return how a node is; one that is known from the store alone is no better than that."""
    stored = peer.state is NodeState.OK and peer.heard_at is None
    return store.state if stored else peer.state


def _note(snapshot: Snapshot) -> str:
    replayed = "" if snapshot.this_host else "a replay: captured or simulated, no machine that lives"
    return "; ".join(filter(None, (replayed, _schema_note(snapshot.schema))))


def _schema_note(schema: int) -> str:
    if schema == SCHEMA:
        return ""
    what = "newer: facts that this daemon does not know are left out" if schema > SCHEMA else "older: facts may lack"
    return f"its snapshot has schema {schema}, this daemon has {SCHEMA}; {what}"
