"""Networks and places of the whole map: worked out when asked for, and not too often; files that place all nodes."""

import asyncio
from dataclasses import replace

import pytest

from fabricd.api.services import Services
from fabricd.cluster import overview as module
from fabricd.cluster.nodes import NodeMap
from fabricd.cluster.peer import Peer
from fabricd.cluster.placement_files import PlacementFiles
from fabricd.config import Config
from fabricd.model.cluster import NodeState
from fabricd.model.codec import content_hash
from fabricd.model.placement import Position
from tests.support.nodes import mapping, nic, node


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def with_peers(count, clock, **config):
    nodes = NodeMap(clock=clock)
    nodes.set_local(made("n0", "10.0.0.1/24"))
    for number in range(1, count):
        nodes.set_peer(peer(made(f"n{number}", f"10.0.0.{number + 1}/24")))
    return nodes, Services(config=Config(**config), nodes=nodes, clock=clock).overview


def made(name, address):
    bare = replace(node(name, interfaces=(nic("eth0", address),)), instance=f"i-{name}")
    return replace(bare, content_hash=content_hash(bare))


def peer(snapshot):
    return Peer(key=snapshot.node.name, url="http://x", state=NodeState.OK, snapshot=snapshot, heard_at=0.0)


def test_it_is_worked_out_once_and_anew_after_a_change():
    async def run():
        nodes, overview = with_peers(3, Clock())
        assert overview.version == ""
        first, same = await asyncio.gather(overview.find(), overview.find())
        assert first is same is await overview.find()
        assert overview.version == first.version
        assert [len(network.ports) for network in first.networks] == [3]
        nodes.set_local(nodes.local)  # looked at again: nothing is new
        assert await overview.find() is first
        nodes.set_peer(peer(made("n3", "10.0.0.9/24")))
        assert overview.version == ""
        assert [len(network.ports) for network in (await overview.find()).networks] == [4]

    asyncio.run(run())


def test_what_is_dear_is_given_with_its_age_until_it_may_be_worked_out_again(monkeypatch):
    monkeypatch.setattr(module, "_CHEAP_SECONDS", 0.0)
    clock = Clock()

    async def run():
        nodes, overview = with_peers(3, clock)
        first = await overview.find()
        assert first.seconds > 0
        assert overview.age_seconds(first) == 0.0
        nodes.set_peer(peer(made("n3", "10.0.0.9/24")))
        clock.now += 5 * first.seconds
        assert await overview.find() is first
        assert overview.version == first.version
        assert overview.age_seconds(first) == pytest.approx(5 * first.seconds)
        clock.now += 7 * first.seconds
        assert overview.version == ""
        assert [len(network.ports) for network in (await overview.find()).networks] == [4]

    asyncio.run(run())


def test_it_goes_on_when_the_one_who_asked_has_left():
    async def run():
        _, overview = with_peers(3, Clock())
        asked = asyncio.create_task(overview.find())
        await asyncio.sleep(0)
        asked.cancel()
        found = await overview.find()
        assert len(found.networks) == 1
        assert overview.version == found.version

    asyncio.run(run())


def test_files_of_a_daemon_with_the_map_place_all_its_nodes(tmp_path):
    file = tmp_path / "topology.conf"
    file.write_text("SwitchName=leaf1 Nodes=n[0-1]\nSwitchName=leaf2 Nodes=n2\nSwitchName=top Switches=leaf[1-2]\n")
    clock = Clock()

    async def run():
        _, overview = with_peers(4, clock, placement_files=(str(file),))

        async def leaves():
            return [place.leaf for place in (await overview.find()).places]

        assert await leaves() == ["leaf1", "leaf1", "leaf2", ""]
        file.write_text("SwitchName=leaf9 Nodes=n[0-3]\n")
        assert await leaves() == ["leaf1", "leaf1", "leaf2", ""]
        clock.now += 31
        assert await leaves() == ["leaf9"] * 4

    asyncio.run(run())


def test_what_nodes_say_themselves_stays_behind_the_files_and_a_wrong_file_says_nothing(tmp_path):
    own = Position(source="kubernetes", zone="z1")
    (told, wrong) = (tmp_path / "told.conf", tmp_path / "wrong.conf")
    told.write_text("SwitchName=leaf1 Nodes=a\n")
    wrong.write_text("SwitchName=leaf1 Nodes=[a\n")
    nodes = mapping(node("a", positions=(own,)), node("b", positions=(own,)))
    files = PlacementFiles([str(wrong), str(tmp_path / "none"), str(told)])
    (a, b) = files.applied(nodes).values()
    assert [(one.source, one.origin, one.switches) for one in a.positions] == [
        ("slurm", str(told), ("leaf1",)),
        ("kubernetes", "", ()),
    ]
    assert b is nodes[b.node.node_id]
    assert files.applied(mapping(a))[a.node.node_id] is a  # said once is enough
    assert PlacementFiles([]).applied(nodes) is nodes
