"""What is different between two moments: a table of single changes, and laws for any two."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fabricd.cluster.changes import devices_of, links_of, networks_of, node_events, snapshot_events
from fabricd.cluster.peer import Peer
from fabricd.model.cluster import NodeState
from fabricd.model.codec import content_hash
from fabricd.model.device import Gpu, HcaPort, InterfaceKind, IpAddress, NvLink, NvlinkFabric
from fabricd.model.event import Event, EventKind
from fabricd.model.network import NetworkRule
from fabricd.model.observation import Outcome
from fabricd.model.placement import Position
from fabricd.model.snapshot import Snapshot
from tests.support.nodes import hca, ib_port, nic, node, nvlinks


def hashed(snapshot: Snapshot) -> Snapshot:
    return replace(snapshot, content_hash=content_hash(snapshot))


def told(events: list[Event]) -> list[str]:
    """Each event as "kind subject before>after"."""
    return [f"{event.kind} {event.subject} {event.before}>{event.after}" for event in events]


ETH0 = nic("eth0", "10.0.0.1/24", carrier=True, carrier_down_count=3)
GPU = Gpu(index=0, uuid="g", links=nvlinks(2))
BASE = hashed(node(interfaces=(ETH0,), gpus=(GPU,), hcas=(hca("mlx5_0", ib_port()),)))


def changed(**fields: object) -> Snapshot:
    return hashed(replace(BASE, **fields))


IB = "ib:fe80:0000:0000:0000"
FABRIC = NvlinkFabric(cluster_uuid="c", clique_id=1, state="completed", status="success")
TABLE = {
    "nothing": (BASE, []),
    "counters": (changed(interfaces=(replace(ETH0, rx_bytes=5),), taken_at=7.0), []),
    "kernel": (changed(node=replace(BASE.node, kernel="new")), ["node_changed  >node"]),
    "name": (changed(node=replace(BASE.node, name="b")), ["node_renamed  a>b", "node_changed  >node"]),
    "another process": (changed(instance="x"), ["node_restarted  >"]),
    "reboot": (
        changed(instance="x", node=replace(BASE.node, boot_id="2")),
        ["node_restarted  >2", "node_changed  >node"],
    ),
    "imaged anew": (changed(node=replace(BASE.node, node_id="id-z")), ["node_replaced  id-a>id-z"]),
    "the site's word": (
        changed(site_networks=(NetworkRule(name="fabric", subnet="10.0.0.0/8"),)),
        ["node_changed  >site_networks", "network_changed 10.0.0.0/24 eth0>", "network_changed fabric >eth0"],
    ),
    "place": (changed(positions=(Position(source="slurm", switches=("leaf",)),)), ["node_changed  >positions"]),
    "carrier lost": (
        changed(interfaces=(replace(ETH0, carrier=False, oper_state="down"),)),
        ["node_changed  >interfaces", "link_down eth0 up>down", "network_changed 10.0.0.0/24 eth0>"],
    ),
    "lost and back": (
        changed(interfaces=(replace(ETH0, carrier_down_count=5),)),
        ["node_changed  >interfaces", "link_dropped eth0 up>up"],
    ),
    "address": (
        changed(interfaces=(replace(ETH0, addresses=(IpAddress(address="10.9.0.1", prefix_length=24, family=4),)),)),
        [
            "node_changed  >interfaces",
            "addresses_changed eth0 10.0.0.1/24>10.9.0.1/24",
            "network_changed 10.0.0.0/24 eth0>",
            "network_changed 10.9.0.0/24 >eth0",
        ],
    ),
    "another interface": (
        changed(interfaces=(ETH0, nic("eth1", "10.0.0.2/24"))),
        [
            "node_changed  >interfaces",
            "interface_added eth1 >up",
            "addresses_changed eth1 >10.0.0.2/24",
            "network_changed 10.0.0.0/24 eth0>eth0, eth1",
        ],
    ),
    "no interface": (
        changed(interfaces=()),
        [
            "node_changed  >interfaces",
            "interface_removed eth0 up>",
            "addresses_changed eth0 10.0.0.1/24>",
            "network_changed 10.0.0.0/24 eth0>",
        ],
    ),
    "a loopback is no link": (
        changed(interfaces=(ETH0, nic("lo", "127.0.0.1/8", kind=InterfaceKind.LOOPBACK))),
        ["node_changed  >interfaces"],
    ),
    "HCA port down": (
        changed(hcas=(hca("mlx5_0", ib_port(state="down")),)),
        ["node_changed  >hcas", "link_down mlx5_0:1 up>down", f"network_changed {IB} mlx5_0:1>"],
    ),
    "HCA port unknown": (
        changed(hcas=(hca("mlx5_0", HcaPort(port=1)),)),
        ["node_changed  >hcas", "link_down mlx5_0:1 up>", f"network_changed {IB} mlx5_0:1>"],
    ),
    "HCA gone": (
        changed(hcas=()),
        [
            "node_changed  >hcas",
            "link_down mlx5_0:1 up>",
            "device_removed mlx5_0 ok>",
            f"network_changed {IB} mlx5_0:1>",
        ],
    ),
    "NVLink down": (
        changed(gpus=(replace(GPU, links=(GPU.links[0], replace(GPU.links[1], active=False))),)),
        ["node_changed  >gpus", "link_down gpu0/nvlink1 up>down"],
    ),
    "GPU lost": (
        changed(gpus=(replace(GPU, outcome=Outcome.FAILED, reason="lost"),)),
        ["node_changed  >gpus", "device_changed gpu0 ok>failed"],
    ),
    "NVLink domain": (
        changed(gpus=(replace(GPU, fabric=FABRIC),)),
        ["node_changed  >gpus", "network_changed nvlink:c.1 >gpu0"],
    ),
}


@pytest.mark.parametrize("name", TABLE)
def test_one_change(name):
    after, expected = TABLE[name]
    events = snapshot_events(BASE, after)
    assert told(events) == expected
    assert all((event.node_id, event.node) == (after.node.node_id, after.node.name) for event in events)


def test_a_change_that_is_counted_says_how_often():
    (dropped,) = [one for one in snapshot_events(BASE, TABLE["lost and back"][0]) if one.kind == "link_dropped"]
    assert dropped.count == 2
    (lost,) = [one for one in snapshot_events(BASE, TABLE["GPU lost"][0]) if one.subject == "gpu0"]
    assert lost.detail == "lost"


def peer(state: NodeState = NodeState.OK, snapshot: Snapshot | None = BASE, reason: str = "") -> Peer:
    return Peer(key="k", state=state, snapshot=snapshot, reason=reason)


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (None, None, []),
        (None, peer(NodeState.UNKNOWN, None), []),
        (peer(NodeState.UNKNOWN, None), None, []),
        (None, peer(), ["node_joined  >"]),
        (peer(NodeState.UNKNOWN, None), peer(), ["node_joined  >"]),
        (peer(), None, ["node_left  >"]),
        (peer(), peer(), []),
        (peer(), peer(NodeState.STALE, reason="no"), ["node_stale  ok>stale"]),
        (peer(NodeState.STALE), peer(NodeState.GONE), ["node_gone  stale>gone"]),
        (peer(NodeState.GONE), peer(), ["node_back  gone>ok"]),
        (peer(NodeState.STALE), peer(snapshot=changed(instance="x")), ["node_back  stale>ok", "node_restarted  >"]),
        (peer(NodeState.STALE), None, ["node_left  >"]),
    ],
)
def test_a_node_comes_and_goes(before, after, expected):
    assert told(node_events(before, after)) == expected


STATES = st.sampled_from(["up", "down"])
LOSSES = st.integers(0, 3)
INTERFACES = st.builds(
    lambda name, address, state, losses: nic(name, address, oper_state=state, carrier_down_count=losses),
    st.sampled_from(["a", "b", "c"]),
    st.sampled_from(["", "10.0.0.1/24", "10.0.1.1/24", "fd00::1/64"]),
    STATES,
    LOSSES,
)
HCAS = st.builds(
    lambda name, state: hca(name, ib_port(state=state)),
    st.sampled_from(["m0", "m1"]),
    st.sampled_from(["active", "down", ""]),
)
GPUS = st.builds(
    lambda index, outcome, active, links: Gpu(
        index=index, outcome=outcome, links=tuple(NvLink(index=number, active=active) for number in range(links))
    ),
    st.integers(0, 2),
    st.sampled_from([Outcome.OK, Outcome.FAILED]),
    st.sampled_from([True, False, None]),
    st.integers(0, 2),
)


def some(kind, key) -> st.SearchStrategy[tuple]:
    return st.lists(kind, max_size=3, unique_by=key).map(tuple)


SNAPSHOTS = st.builds(
    lambda interfaces, hcas, gpus: hashed(node(interfaces=interfaces, hcas=hcas, gpus=gpus)),
    some(INTERFACES, lambda one: one.name),
    some(HCAS, lambda one: one.name),
    some(GPUS, lambda one: one.index),
)


def seen(snapshot: Snapshot) -> dict[str, dict[str, str]]:
    """What events tell of, with what is unknown or absent left out."""
    links = links_of(snapshot)
    every = {
        "link": {name: link.state for name, link in links.items()},
        "addresses": {name: link.addresses or "" for name, link in links.items()},
        "device": {name: outcome for name, (outcome, _) in devices_of(snapshot).items()},
        "network": networks_of(snapshot),
    }
    return {kind: {name: value for name, value in found.items() if value} for kind, found in every.items()}


def applied(state: dict[str, dict[str, str]], events: list[Event]) -> dict[str, dict[str, str]]:
    """What a reader of the events makes of what it knew."""
    new = {kind: dict(found) for kind, found in state.items()}
    for event in events:
        kind = event.kind.value.partition("_")[0].replace("interface", "link")
        if kind in new:
            assert new[kind].pop(event.subject, "") == event.before
            if event.after:
                new[kind][event.subject] = event.after
    return new


@given(SNAPSHOTS)
def test_equal_snapshots_make_no_event(snapshot):
    assert snapshot_events(snapshot, replace(snapshot, taken_at=9.0, generation=7)) == []


@given(SNAPSHOTS, SNAPSHOTS)
def test_whoever_applies_the_events_has_what_is(before, after):
    events = snapshot_events(before, after)
    assert applied(seen(before), events) == seen(after)
    assert [event.kind for event in events].count(EventKind.NODE_CHANGED) == (before.content_hash != after.content_hash)


OPPOSITE = {
    EventKind.INTERFACE_ADDED: EventKind.INTERFACE_REMOVED,
    EventKind.DEVICE_ADDED: EventKind.DEVICE_REMOVED,
}


@given(SNAPSHOTS, SNAPSHOTS)
def test_the_way_back_is_the_way_in_reverse(before, after):
    def changes(events: list[Event], *, reverse: bool) -> set[tuple[str, ...]]:
        sides = ("after", "before") if reverse else ("before", "after")
        names = {**OPPOSITE, **{new: old for old, new in OPPOSITE.items()}} if reverse else {}
        return {
            (names.get(one.kind, one.kind), one.subject, *(getattr(one, side) for side in sides))
            for one in events
            if one.kind not in (EventKind.LINK_UP, EventKind.LINK_DOWN, EventKind.LINK_DROPPED, EventKind.NODE_CHANGED)
        }

    assert changes(snapshot_events(before, after), reverse=False) == changes(
        snapshot_events(after, before), reverse=True
    )
