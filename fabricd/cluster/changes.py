"""What is different between two moments: of a node's facts, and of what a daemon knows of a node. Pure.

Laws, which the tests hold: equal facts make no event; whoever applies the events to the links, devices and networks of
``before`` has those of ``after``; and the way back tells the same in reverse.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace

from fabricd.cluster.peer import Peer
from fabricd.graph.networks import find_networks
from fabricd.model.cluster import NodeState
from fabricd.model.device import InterfaceKind, NetInterface
from fabricd.model.event import Event, EventKind
from fabricd.model.snapshot import Snapshot

#: Fields of a snapshot that are no facts of the machine.
_ABOUT = frozenset({"schema", "generation", "instance", "content_hash", "taken_at", "this_host"})
#: What links, devices and networks are read from.
_DERIVED = frozenset({"interfaces", "hcas", "gpus", "lldp", "ib_fabrics", "site_networks"})


@dataclass(frozen=True, slots=True)
class Link:
    """A link, as events tell of it."""

    state: str  #: "up", "down"; "" unknown
    losses: int | None = None  #: carrier losses counted by the kernel
    addresses: str | None = None  #: of an interface; None for what is none


_NO_LINK = Link("")


def node_events(before: Peer | None, after: Peer | None) -> list[Event]:
    """Return what changed in what a daemon knows of a node.

    Args:
        before: None: it did not know of it.
        after: None: it does not any more.
    """
    known = before.snapshot if before else None
    told = after.snapshot if after else None
    if told is None or after is None:
        return [_of(known, EventKind.NODE_LEFT)] if known else []
    if known is None or before is None:
        return [_of(told, EventKind.NODE_JOINED)]
    events = []
    if before.state is not after.state:
        kind = {NodeState.OK: EventKind.NODE_BACK, NodeState.GONE: EventKind.NODE_GONE}.get(
            after.state, EventKind.NODE_STALE
        )
        events.append(_of(told, kind, before=before.state, after=after.state, detail=after.reason))
    return events + snapshot_events(known, told)


def snapshot_events(before: Snapshot, after: Snapshot) -> list[Event]:
    """Return what changed between two snapshots of one node, or of one place that another node has taken."""
    old, new = before.node, after.node
    if old.node_id != new.node_id:
        why = f"{old.name} was {old.node_id}: a machine imaged anew, or another one"
        return [_of(after, EventKind.NODE_REPLACED, before=old.node_id, after=new.node_id, detail=why)]
    events = []
    if before.instance != after.instance:
        rebooted = old.boot_id != new.boot_id
        boots = (old.boot_id, new.boot_id) if rebooted else ("", "")
        why = "the machine was rebooted" if rebooted else ""
        events.append(_of(after, EventKind.NODE_RESTARTED, before=boots[0], after=boots[1], detail=why))
    if before.content_hash == after.content_hash:
        return events
    if old.name != new.name:
        events.append(_of(after, EventKind.NODE_RENAMED, before=old.name, after=new.name))
    parts = [
        field.name
        for field in fields(Snapshot)
        if field.name not in _ABOUT and getattr(before, field.name) != getattr(after, field.name)
    ]
    events.append(_of(after, EventKind.NODE_CHANGED, after=", ".join(parts)))
    if not _DERIVED.isdisjoint(parts):
        found = [*_link_events(before, after), *_device_events(before, after), *_network_events(before, after)]
        events += [replace(event, node_id=new.node_id, node=new.name) for event in found]
    return events


def links_of(snapshot: Snapshot) -> dict[str, Link]:
    """Return the links of a node by name: interfaces "eth0", HCA ports "mlx5_0:1", NVLinks "gpu0/nvlink3"."""
    links = {
        nic.name: Link(_state_of(nic), nic.carrier_down_count, _addresses_of(nic))
        for nic in snapshot.interfaces
        if nic.kind is not InterfaceKind.LOOPBACK
    }
    for name, _, port in snapshot.hca_ports():
        links[name] = Link(("up" if port.state == "active" else "down") if port.state else "")
    for gpu in snapshot.gpus:
        for link in gpu.links:
            links[f"gpu{gpu.index}/nvlink{link.index}"] = Link({True: "up", False: "down", None: ""}[link.active])
    return links


def devices_of(snapshot: Snapshot) -> dict[str, tuple[str, str]]:
    """Return the GPUs and HCAs of a node by name: how the reading of each ended, and why."""
    gpus = {f"gpu{gpu.index}": (gpu.outcome.value, gpu.reason) for gpu in snapshot.gpus}
    return gpus | {hca.name: ("ok", "") for hca in snapshot.hcas}


def networks_of(snapshot: Snapshot) -> dict[str, str]:
    """Return the networks that a node's own facts put it on, each with its ports there, "eth0, eth1"."""
    found = find_networks({snapshot.node.node_id: snapshot}).networks
    return {network.name: ", ".join(sorted({port.interface for port in network.ports})) for network in found}


def _link_events(before: Snapshot, after: Snapshot) -> Iterator[Event]:
    old, new = links_of(before), links_of(after)
    for name in _either(old, new):
        was, now = old.get(name, _NO_LINK), new.get(name, _NO_LINK)
        interface = was.addresses is not None or now.addresses is not None
        kind = _link_kind(was, now, came_or_went=interface and (name not in old or name not in new))
        if kind is not None:
            losses = (now.losses or 0) - (was.losses or 0) if kind is EventKind.LINK_DROPPED else 1
            yield Event(kind=kind, subject=name, before=was.state, after=now.state, count=losses)
        addresses = (was.addresses or "", now.addresses or "")
        if addresses[0] != addresses[1]:
            yield Event(kind=EventKind.ADDRESSES_CHANGED, subject=name, before=addresses[0], after=addresses[1])


def _link_kind(was: Link, now: Link, *, came_or_went: bool) -> EventKind | None:
    if came_or_went:
        return EventKind.INTERFACE_REMOVED if now is _NO_LINK else EventKind.INTERFACE_ADDED
    if was.state != now.state:
        return EventKind.LINK_UP if now.state == "up" else EventKind.LINK_DOWN
    dropped = now.state == "up" and was.losses is not None and (now.losses or 0) > was.losses
    return EventKind.LINK_DROPPED if dropped else None


def _device_events(before: Snapshot, after: Snapshot) -> Iterator[Event]:
    old, new = devices_of(before), devices_of(after)
    for name in _either(old, new):
        was, why_not = old.get(name, ("", ""))
        now, why = new.get(name, ("", ""))
        if was == now:
            continue
        kind = EventKind.DEVICE_CHANGED
        if not was or not now:
            kind = EventKind.DEVICE_REMOVED if was else EventKind.DEVICE_ADDED
        yield Event(kind=kind, subject=name, before=was, after=now, detail=why if now else why_not)


def _network_events(before: Snapshot, after: Snapshot) -> Iterator[Event]:
    old, new = networks_of(before), networks_of(after)
    for name in _either(old, new):
        was, now = old.get(name, ""), new.get(name, "")
        if was != now:
            yield Event(kind=EventKind.NETWORK_CHANGED, subject=name, before=was, after=now)


def _of(snapshot: Snapshot, kind: EventKind, before: str = "", after: str = "", detail: str = "") -> Event:
    node = snapshot.node
    return Event(kind=kind, node_id=node.node_id, node=node.name, before=before, after=after, detail=detail)


def _either(old: Mapping[str, object], new: Mapping[str, object]) -> list[str]:
    """Return the keys of both, each once, in an order that does not depend on chance."""
    return list(dict.fromkeys([*old, *new]))


def _state_of(nic: NetInterface) -> str:
    fine = nic.admin_up and nic.carrier is not False and nic.oper_state in ("up", "unknown", "")
    return "up" if fine else "down"


def _addresses_of(nic: NetInterface) -> str:
    return ", ".join(sorted(f"{one.address}/{one.prefix_length}" for one in nic.addresses))
