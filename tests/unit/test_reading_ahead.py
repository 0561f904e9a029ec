"""Ports of nodes are read before anybody asks, again when they change, and forgotten when their nodes leave."""

import asyncio
from collections.abc import Callable
from dataclasses import replace

from fabricd.cluster import reading_ahead
from fabricd.cluster.nodes import NodeMap
from fabricd.cluster.peer import Peer
from fabricd.cluster.reading_ahead import read_ahead
from fabricd.model.cluster import NodeState
from fabricd.model.snapshot import Snapshot
from fabricd.paths.ends import Ends
from tests.support.nodes import nic, node


async def _read_until(nodes: NodeMap, ends: Ends, fits: Callable[[], bool]) -> None:
    work = asyncio.create_task(read_ahead(nodes, ends))
    try:
        async with asyncio.timeout(10):
            while not fits():  # noqa: ASYNC110 - nothing tells when it has read, and nothing but a test needs to know
                await asyncio.sleep(0.01)
    finally:
        work.cancel()


def _peer(snapshot: Snapshot) -> Peer:
    return Peer(key=snapshot.node.name, state=NodeState.OK, snapshot=snapshot, heard_at=0.0)


def test_what_is_new_changes_or_leaves_is_followed(monkeypatch):
    monkeypatch.setattr(reading_ahead, "_SLICE_SECONDS", 0.0)  # one node at a time
    nodes, ends = NodeMap(), Ends()
    a, b, c = (node(name, interfaces=(nic("eth0", f"10.0.0.{at}/24"),)) for at, name in enumerate("abc", 1))
    nodes.set_local(a)
    nodes.set_peer(_peer(b))
    nodes.set_peer(_peer(c))
    asyncio.run(_read_until(nodes, ends, lambda: all(ends.ports.has(*one) for one in nodes.snapshots().items())))
    read = ends.ports.of_node(b.node.node_id, b)
    assert "ip" in vars(read), "its addresses were not read ahead"
    assert not ends.learn(b.node.node_id, b), "it was read twice"
    changed = replace(b, content_hash="other", interfaces=(nic("eth0", "10.9.0.2/24"),))
    nodes.set_peer(_peer(changed))
    nodes.drop_peer("c")

    def follows() -> bool:
        return ends.ports.has(b.node.node_id, changed) and not ends.ports.has(c.node.node_id, c)

    asyncio.run(_read_until(nodes, ends, follows))
    assert [one.subnet for one in ends.ports.of_node(b.node.node_id, changed).ip[0]] == ["10.9.0.0/24"]
    many = node("m", interfaces=tuple(nic(f"eth{at}") for at in range(300)))
    assert not ends.learn("id-m", many), "what takes long is left to the thread of who asks"
    found = ends.find(nodes.snapshots(), "b/eth0")
    assert found.ports is ends.ports.of_node(b.node.node_id, changed), "queries read it again"
