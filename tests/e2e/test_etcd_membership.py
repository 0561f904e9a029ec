"""Members of a cluster in a real etcd, several in this process: they come, change, go, and outlive what etcd does."""

import asyncio
import signal
from dataclasses import replace

import pytest

from fabricd.cluster import etcd as etcd_client
from fabricd.cluster.etcd import Etcd
from fabricd.cluster.etcd_messages import EtcdError, LeaseLostError
from fabricd.model.cluster import NodeState
from tests.support.etcd import EtcdServer, b64, etcd_cluster, etcd_server, free_port
from tests.support.etcd_member import LEASE_SECONDS, Member, facts, until

pytestmark = pytest.mark.etcd


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    with etcd_server(tmp_path_factory.mktemp("etcd")) as server:
        yield server


@pytest.fixture
def server(shared):
    yield shared
    assert (shared.keys(), shared.leases(), shared.watchers()) == ([], 0, 0)


def test_members_see_each_other_change_and_leave(server):
    async def main() -> None:
        first, second = Member(server, "a"), Member(server, "b")
        await until(lambda: first.states() == {"b": "ok"} and second.states() == {"a": "ok"})
        assert first.nodes.url_of("id-b") == "http://b:7470"
        assert list(first.nodes.snapshots()) == ["id-a", "id-b"]
        assert (server.leases(), server.watchers()) == (2, 2)
        second.nodes.set_local(facts("b", "new"))
        assert await until(lambda: first.kernels() == {"b": "new"}) < 1.0
        await second.end()
        await until(lambda: first.states() == {})
        assert first.kinds() == ["node_joined", "node_joined", "node_changed", "node_left"]
        await first.end()

    asyncio.run(main())


def test_it_is_written_only_when_facts_change(server):
    async def main() -> None:
        first = Member(server, "a")
        await until(server.keys)
        version = server.call("kv/range", key=b64(server.keys()[0]))["kvs"][0]["version"]
        for taken_at in range(5):
            first.nodes.set_local(replace(facts("a"), taken_at=float(taken_at)))
        await asyncio.sleep(LEASE_SECONDS / 3 + 0.5)  # renewed at least once
        assert server.call("kv/range", key=b64(server.keys()[0]))["kvs"][0]["version"] == version == "1"
        for number in range(40):  # a link that flaps
            first.nodes.set_local(facts("a", str(number)))
            await asyncio.sleep(0.05)
        assert int(server.call("kv/range", key=b64(server.keys()[0]))["kvs"][0]["version"]) <= 10
        await first.end()

    asyncio.run(main())


def test_one_whose_lease_ends_is_stale_then_gone_and_comes_back(server):
    async def main() -> None:
        first, second = Member(server, "a"), Member(server, "b")
        await until(lambda: first.states() == {"b": "ok"})
        await second.die()
        took = await until(lambda: first.states() == {"b": "stale"}, LEASE_SECONDS + 5)
        assert took > LEASE_SECONDS / 2
        assert "lease in etcd has ended" in first.others()[0].reason
        assert list(first.nodes.snapshots()) == ["id-a", "id-b"]
        await until(lambda: first.states() == {"b": "gone"})
        assert list(first.nodes.snapshots()) == ["id-a"]
        again = Member(server, "b", slot="elsewhere")
        await until(lambda: first.states() == {"b": "ok"})
        assert first.kinds()[2:] == ["node_stale", "node_gone", "node_back", "node_restarted"]
        anew = Member(server, "b", node_id="other")
        await until(lambda: first.nodes.conflicts)
        assert "the name b is borne by" in first.nodes.conflicts[0]
        await anew.end()
        await again.end()
        await until(lambda: first.states() == {})
        await first.end()

    asyncio.run(main())


def test_a_machine_imaged_anew_takes_the_place_of_the_one_that_was(server):
    async def main() -> None:
        first, second = Member(server, "a"), Member(server, "b")
        await until(lambda: first.states() == {"b": "ok"})
        await second.die()
        await until(lambda: first.states() == {"b": "stale"}, LEASE_SECONDS + 5)
        anew = Member(server, "b", node_id="id-new")
        await until(lambda: first.states() == {"b": "ok"})
        assert [one.node_id for one in first.others()] == ["id-new"]
        assert "node_replaced" in first.kinds()
        assert first.nodes.conflicts == ()
        await anew.end()
        await first.end()

    asyncio.run(main())


def test_two_machines_of_one_identity_are_told_and_not_merged(server):
    async def main() -> None:
        first, twin, other = Member(server, "a"), Member(server, "b"), Member(server, "c", node_id="id-b")
        await until(lambda: first.nodes.conflicts)
        assert "node_id id-b is claimed by" in first.nodes.conflicts[0]
        assert list(first.nodes.snapshots()) == ["id-a"]
        await twin.end()
        await until(lambda: not first.nodes.conflicts)
        assert list(first.nodes.snapshots()) == ["id-a", "id-b"]
        # One key for both, as where neither can be asked by others: the one that was first says so.
        thief = Member(server, "x", node_id="id-b", slot="c")
        await until(lambda: other.nodes.status().faults)
        assert "another daemon writes to this one's key" in other.nodes.status().faults[0]
        for member in (thief, other, first):
            await member.end()

    asyncio.run(main())


def test_one_with_another_token_is_not_believed(server):
    async def main() -> None:
        first, stranger = Member(server, "a"), Member(server, "b", token="wrong")
        await until(first.others)
        (told,) = first.others()
        assert (told.state, told.name, told.url) == (NodeState.UNKNOWN, "", "")
        assert "not sealed with this daemon's token" in told.reason
        assert "b@b" in told.reason
        assert list(first.nodes.snapshots()) == ["id-a"]
        await stranger.end()
        await until(lambda: first.others() == [])
        await first.end()

    asyncio.run(main())


def test_one_that_publishes_only_holds_no_map(server):
    async def main() -> None:
        first, agent = Member(server, "a"), Member(server, "b", follow=False)
        await until(lambda: first.states() == {"b": "ok"})
        assert agent.others() == []
        assert agent.nodes.status().store.state is NodeState.OK
        assert server.watchers() == 1
        await agent.end()
        await first.end()

    asyncio.run(main())


def test_a_compacted_revision_is_read_over(server, monkeypatch):
    monkeypatch.setattr("fabricd.cluster.etcd_follow._WATCH_SECONDS", 0.3)

    async def main() -> None:
        first, second = Member(server, "a"), Member(server, "b")
        await until(lambda: first.states() == {"b": "ok"})
        for number in range(6):
            server.call("kv/put", key=b64("/elsewhere"), value=b64(str(number)))
            server.compact()
            second.nodes.set_local(facts("b", str(number)))
            await until(lambda number=number: first.kernels() == {"b": str(number)}, 15)
        assert first.states() == {"b": "ok"}
        assert "node_left" not in first.kinds()
        await second.end()
        await first.end()
        server.call("kv/deleterange", key=b64("/elsewhere"))

    asyncio.run(main())


def test_etcd_gone_for_a_while_is_told_with_its_age_and_the_map_stays(tmp_path):
    async def main(server: EtcdServer) -> None:
        first, second = Member(server, "a"), Member(server, "b")
        await until(lambda: first.states() == {"b": "ok"})
        server.kill()
        assert await until(lambda: first.states() == {"b": "stale"}, 12) > 2.0
        status = first.nodes.status()
        assert status.store.state is NodeState.STALE
        assert status.nodes[1].age_seconds > 2.0
        assert status.nodes[1].reason == status.store.reason
        assert list(first.nodes.snapshots()) == ["id-a", "id-b"]
        await asyncio.sleep(2.0)  # longer than it takes to be gone: etcd's outage says nothing of a node
        assert first.states() == {"b": "stale"}
        second.nodes.set_local(facts("b", "meanwhile"))
        await asyncio.to_thread(server.start)
        await until(lambda: first.states() == {"b": "ok"} and first.kernels() == {"b": "meanwhile"})
        assert [kind for kind in first.kinds() if kind.startswith(("store", "node_stale"))] == [
            "store_lost",
            "store_back",
        ]
        await second.end()
        await first.end()
        assert (server.keys(), server.leases(), server.watchers()) == ([], 0, 0)

    with etcd_server(tmp_path) as server:
        asyncio.run(main(server))


def test_an_etcd_that_lost_everything_is_filled_again(tmp_path):
    async def main(server: EtcdServer) -> None:
        members = {name: Member(server, name) for name in "abc"}
        await until(lambda: all(len(one.states()) == 2 for one in members.values()))
        server.kill()
        await members["c"].die()
        members["b"].nodes.set_local(facts("b", "new"))
        server.lose_data()
        await asyncio.to_thread(server.start)
        first = members["a"]
        await until(lambda: first.states() == {"b": "ok", "c": "gone"} and first.kernels()["b"] == "new", 15)
        await until(lambda: members["b"].states() == {"a": "ok", "c": "gone"})
        for name in "ba":
            await members[name].end()

    with etcd_server(tmp_path) as server:
        asyncio.run(main(server))


def test_a_lost_leader_is_no_outage_and_a_lost_majority_is_one(tmp_path):
    async def main(servers: list[EtcdServer]) -> None:
        urls = [server.url for server in servers]
        first, second = (Member(servers[0], name, endpoints=urls) for name in "ab")
        await until(lambda: first.states() == {"b": "ok"} and second.states() == {"a": "ok"})
        leader = next(server for server in servers if server.leads())
        leader.kill()
        second.nodes.set_local(facts("b", "after the leader"))
        await until(lambda: first.kernels() == {"b": "after the leader"})
        await asyncio.sleep(3.0)
        assert first.states() == {"b": "ok"}
        assert not {"store_lost", "node_stale"} & set(first.kinds())
        another = next(server for server in servers if server is not leader)
        another.kill()
        # The member that is left answers, but knows that it leads nowhere.
        await until(lambda: first.states() == {"b": "stale"} and second.states() == {"a": "stale"}, 20)
        for server in (leader, another):
            server.launch()
        await until(lambda: first.states() == {"b": "ok"} and second.states() == {"a": "ok"}, 20)
        await second.end()
        await first.end()
        assert (servers[0].keys(), servers[0].leases()) == ([], 0)
        assert sum(server.watchers() for server in servers) == 0

    with etcd_cluster(tmp_path) as servers:
        asyncio.run(main(servers))


def test_an_etcd_that_hangs_is_an_outage(tmp_path):
    async def main(server: EtcdServer) -> None:
        first, second = Member(server, "a"), Member(server, "b")
        await until(lambda: first.states() == {"b": "ok"})
        assert server.process is not None
        server.process.send_signal(signal.SIGSTOP)
        try:
            await until(lambda: first.states() == {"b": "stale"}, 20)
        finally:
            server.process.send_signal(signal.SIGCONT)
        await until(lambda: first.states() == {"b": "ok"} and second.states() == {"a": "ok"}, 20)
        await second.end()
        await first.end()

    with etcd_server(tmp_path) as server:
        asyncio.run(main(server))


def test_endpoints_that_do_not_answer_are_passed_over(server):
    async def main() -> None:
        dead = f"http://127.0.0.1:{free_port()}"
        first = Member(server, "a", endpoints=[dead, server.url])
        await until(lambda: server.keys() and first.nodes.status().store.state is NodeState.OK)
        await first.end()

    asyncio.run(main())


def test_leases_are_exact_and_refusals_have_words(server):
    async def main() -> None:
        etcd = Etcd([server.url])
        await etcd.grant(77, 5)
        await etcd.grant(77, 5)  # an answer that was lost is asked for again
        await etcd.keep_alive(77)
        await etcd.put(b"/k", b"v", 77)
        await etcd.revoke(77)
        await etcd.revoke(77)
        for lost in (etcd.keep_alive(77), etcd.put(b"/k", b"v", 77)):
            with pytest.raises(LeaseLostError):
                await lost
        with pytest.raises(EtcdError, match="future revision"):
            await etcd._call("/v3/kv/range", {"key": b64("/k"), "revision": "999999"}, dict)
        with pytest.raises(EtcdError, match="etcd"):
            await etcd._call("/v3/nothing", {}, dict)
        await etcd.close()

    asyncio.run(main())


def test_long_listings_come_in_pages_and_values_in_pieces(server, monkeypatch):
    monkeypatch.setattr(etcd_client, "_PAGE", 3)
    monkeypatch.setattr(etcd_client, "_FETCH", 2)

    async def main() -> None:
        etcd = Etcd([server.url])
        await etcd.grant(78, 60)
        names = [f"/p/{number}".encode() for number in range(8)]
        for name in [*names, b"/o", b"/p0"]:
            await etcd.put(name, name, 78)
        listing = await etcd.listing(b"/p/")
        assert list(listing.keys) == names
        found = [kv async for part in etcd.fetch([*names, b"/p/none"]) for kv in part]
        assert {kv.key: kv.value for kv in found} == {name: name for name in names}
        assert {kv.key: kv.mod_revision for kv in found} == listing.keys
        await etcd.revoke(78)
        await etcd.close()

    asyncio.run(main())


def test_a_server_that_is_not_etcd_is_an_error_and_no_crash():
    async def main() -> None:
        async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read(10)
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n[1, true]")
            await writer.drain()
            writer.close()

        async with await asyncio.start_server(talk, "127.0.0.1", 0) as listener:
            etcd = Etcd([f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"])
            for call in (etcd.grant(1, 5), etcd.keep_alive(1), etcd.listing(b"/"), etcd.put(b"k", b"v", 1)):
                with pytest.raises(EtcdError, match="not etcd's"):
                    await call
            await etcd.close()

    asyncio.run(main())
