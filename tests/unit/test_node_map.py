"""The node map: generations, states, conflicts, and which nodes paths may use."""

import asyncio
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fabricd.cluster.nodes import NodeMap
from fabricd.cluster.peer import Peer
from fabricd.cluster.version import Version
from fabricd.errors import BusyError, UnknownNameError
from fabricd.model.cluster import NodeState
from fabricd.model.codec import content_hash
from fabricd.model.identity import NodeIdentity
from fabricd.model.snapshot import Snapshot


def snapshot(node_id: str, name: str = "", *, instance: str = "i", kernel: str = "", taken_at: float = 0.0) -> Snapshot:
    made = Snapshot(
        node=NodeIdentity(node_id=node_id, name=name or node_id, kernel=kernel), instance=instance, taken_at=taken_at
    )
    return replace(made, content_hash=content_hash(made))


def peer(url: str, taken: Snapshot | None, state: NodeState = NodeState.OK, heard_at: float | None = 0.0) -> Peer:
    return Peer(key=url, url=url, snapshot=taken, state=state, heard_at=heard_at)


@pytest.fixture
def nodes() -> NodeMap:
    made = NodeMap(clock=lambda: 100.0)
    made.set_local(snapshot("here"))
    return made


def test_before_the_first_look_there_is_no_answer():
    nodes = NodeMap()
    assert not nodes.ready
    for ask in (lambda: nodes.local, nodes.status, nodes.snapshots):
        with pytest.raises(BusyError):
            ask()


def test_only_facts_make_a_new_generation(nodes):
    assert nodes.local.generation == 1
    assert not nodes.set_local(snapshot("here", taken_at=5.0))
    assert (nodes.local.generation, nodes.local.taken_at) == (1, 5.0)  # fresh counters, same generation
    assert nodes.set_local(snapshot("here", kernel="new"))
    assert nodes.local.generation == 2
    assert nodes.local.instance == nodes.instance


def test_an_age_is_no_news(nodes):
    nodes.set_peer(peer("u", snapshot("b"), heard_at=1.0))
    before = nodes.map_version.number
    nodes.set_peer(peer("u", snapshot("b"), heard_at=50.0))
    assert nodes.map_version.number == before
    assert nodes.status().nodes[1].age_seconds == 50.0
    nodes.set_peer(peer("u", snapshot("b"), NodeState.STALE, heard_at=50.0))
    nodes.drop_peer("u")
    nodes.drop_peer("u")
    assert nodes.map_version.number == before + 2


def test_paths_use_neither_gone_nodes_nor_those_in_conflict(nodes):
    nodes.set_peer(peer("1", snapshot("ok", instance="1")))
    nodes.set_peer(peer("2", snapshot("stale", instance="2"), NodeState.STALE))
    nodes.set_peer(peer("3", snapshot("gone", instance="3"), NodeState.GONE))
    nodes.set_peer(peer("4", None, NodeState.UNKNOWN, None))
    nodes.set_peer(peer("5", snapshot("twin", instance="5")))
    nodes.set_peer(peer("6", snapshot("twin", instance="6")))
    nodes.set_peer(peer("7", snapshot("here", instance="7")))
    assert list(nodes.snapshots()) == ["here", "ok", "stale"]
    assert nodes.snapshots()["here"] is nodes.local
    conflicts = "\n".join(nodes.status().conflicts)
    assert "node_id twin" in conflicts
    assert "node_id here" in conflicts
    assert nodes.url_of("ok") == "1"
    for name in ("twin", "nobody"):
        with pytest.raises(UnknownNameError):
            nodes.url_of(name)


def test_this_daemon_among_its_peers_is_no_other_node(nodes):
    nodes.set_peer(peer("me", snapshot("here", instance=nodes.instance)))
    status = nodes.status()
    assert [node.node_id for node in status.nodes] == ["here"]
    assert status.conflicts == ()


def test_one_daemon_under_two_urls_is_told_and_can_be_used(nodes):
    nodes.set_peer(peer("1", snapshot("b", instance="same")))
    nodes.set_peer(peer("2", snapshot("b", instance="same")))
    assert "listed twice" in nodes.status().conflicts[0]
    assert nodes.url_of("b") == "1"
    assert list(nodes.snapshots()) == ["here", "b"]


def test_a_name_finds_its_node_an_ambiguous_one_none(nodes):
    nodes.set_peer(peer("1", snapshot("b", "same", instance="1")))
    assert nodes.find("same").node_id == "b"
    assert nodes.find("here").this_node
    nodes.set_peer(peer("2", snapshot("c", "same", instance="2")))
    with pytest.raises(UnknownNameError, match="single node"):
        nodes.find("same")
    assert nodes.find("c").url == "2"
    nodes.set_peer(peer("3", snapshot("c", "third", instance="3")))
    with pytest.raises(UnknownNameError, match=r"called 'c' \(known: 2, 3\)"):
        nodes.find("c")
    with pytest.raises(UnknownNameError):
        nodes.find("")


def test_a_node_id_goes_before_a_name(nodes):
    nodes.set_peer(peer("1", snapshot("b", "c", instance="1")))
    nodes.set_peer(peer("2", snapshot("c", "d", instance="2")))
    assert nodes.find("c").url == "2"


def test_a_version_wakes_all_who_wait_and_only_once():
    async def main() -> None:
        version = Version()
        waiting = [asyncio.create_task(version.wait_for_change(0, 5)) for _ in range(3)]
        await asyncio.sleep(0)
        version.advance()
        assert await asyncio.gather(*waiting) == [1, 1, 1]
        assert await version.wait_for_change(0, 5) == 1  # missed, and still told
        assert await version.wait_for_change(1, 0.01) == 1

    asyncio.run(main())


PEERS = st.builds(
    lambda key, node_id, name, instance, state: peer(
        key,
        None if state is NodeState.UNKNOWN else snapshot(node_id, name, instance=instance),
        state,
        None if state is NodeState.UNKNOWN else 0.0,
    ),
    st.sampled_from("1234"),
    st.sampled_from(["here", "a", "b"]),
    st.sampled_from(["here", "a", "b", "c"]),
    st.sampled_from(["i1", "i2", "i3"]),
    st.sampled_from(NodeState),
)


def summary(nodes: NodeMap) -> object:
    """What a map says, but for times, versions and the order in which claims came."""
    found = {name: found_by(nodes, name) for name in ("here", "a", "b", "c")}
    conflicts = sorted(sentence.split(" by ")[0] for sentence in nodes.conflicts)
    status = sorted((one.url, one.node_id, one.name, one.state) for one in nodes.status(summary=True).nodes)
    return (set(nodes.snapshots()), conflicts, found, status, nodes.count())


def found_by(nodes: NodeMap, name: str) -> str:
    try:
        return nodes.find(name).url
    except UnknownNameError as error:
        return str(error.details["kind"])


@given(st.lists(st.one_of(PEERS, st.sampled_from("1234")), max_size=12))
def test_whatever_happened_the_map_is_that_of_what_is_now(steps):
    nodes = NodeMap(clock=lambda: 100.0)
    nodes.set_local(snapshot("here"))
    now: dict[str, Peer] = {}
    for step in steps:
        if isinstance(step, str):
            nodes.drop_peer(step)
            now.pop(step, None)
        else:
            nodes.set_peer(step)
            now[step.key] = step
    fresh = NodeMap(clock=lambda: 100.0)
    fresh.set_local(snapshot("here"))
    for one in now.values():
        fresh.set_peer(one)
    assert summary(nodes) == summary(fresh)
