"""Whether the hosts of a group reach each other before MPI connects them: real sockets on the loopback device."""

import errno
import socket
import time

import pytest

from fabric_client.engine.pair_connect import Place
from fabric_client.engine.reach import Reach
from fabricd.model.plan import GroupPlan, RankSlice

#: Two ranks on the first host, one on the second.
ADDRESSES = {0: "127.0.0.1", 1: "127.0.0.1", 2: "127.0.0.2"}


def plan_of(addresses):
    ranks = (
        RankSlice(rank=rank, node="ab"[rank > 1], host_index=int(rank > 1), address=address, devices=("lo",))
        for rank, address in addresses.items()
    )
    return GroupPlan(engine="mpi", size=len(addresses), ranks=tuple(ranks))


@pytest.fixture
def reach():
    """Make those of ranks; closed at the end."""
    made = []

    def make(rank, addresses=ADDRESSES, place=True, environ=()):
        where = Place("lo", addresses[rank]) if place else None
        made.append(Reach(plan_of(addresses), rank, where, dict(environ)))
        return made[-1]

    yield make
    for one in made:
        one.close()


def quick(one, keys):
    """Look, and return whether it took no time."""
    began = time.monotonic()
    one.look(keys, 3.0)
    return time.monotonic() - began < 1.0


def test_hosts_reach_each_other_and_the_first_rank_of_each_answers_for_all(reach):
    ranks = [reach(rank) for rank in ADDRESSES]
    keys = {}
    for one in ranks:
        keys.update(one.with_port({}))
    assert sorted(keys) == ["fabricd-port-0", "fabricd-port-2"]
    assert all(quick(one, keys) for one in ranks)
    assert [one.told() for one in ranks] == ["a reaches b over lo now"] * 2 + ["b reaches a over lo now"]


def test_however_many_knock_all_are_answered_and_nothing_is_left_in_the_kernel(reach):
    """A socket that listens and is not accepted from has room for so many, and answers no more then."""
    held = reach(0)
    one, keys = reach(2), dict(held.with_port({}))
    port = int(keys["fabricd-port-0"])
    knocking = [socket.socket() for _ in range(100)]
    assert {each.connect_ex(("127.0.0.1", port)) for each in knocking} == {errno.ECONNREFUSED}
    assert quick(one, keys)
    for each in knocking:
        each.close()
    held.close()
    assert quick(one, keys)  # who refuses is there
    with open("/proc/net/tcp", encoding="ascii") as connections:
        assert not [line for line in connections if f":{port:04X} " in line]


def test_a_host_without_a_way_to_it_is_told_with_the_reason(reach):
    one = reach(2, {**ADDRESSES, 0: "224.0.0.1"})
    one.look({"fabricd-port-0": "4"}, 0.3)
    assert one.told() == "b does not reach a at 224.0.0.1 over lo: Network is unreachable"


def test_who_was_let_through_later_is_reached(reach):
    """A listener whose queue is full answers nothing, and then it does."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listener:
        port = listener.getsockname()[1]
        waiting = [socket.socket() for _ in range(2)]
        for each in waiting:
            each.setblocking(False)
            each.connect_ex(("127.0.0.1", port))
        one = reach(2)
        one.look({"fabricd-port-0": str(port)}, 0.3)
        assert one.told() == "b does not reach a at 127.0.0.1 over lo: no answer"
        for each in (*waiting, listener.accept()[0]):
            each.close()
        assert quick(one, {"fabricd-port-0": str(port)})


def test_addresses_of_another_family_are_not_asked(reach):
    one = reach(2, {**ADDRESSES, 0: "::1"})
    assert quick(one, {"fabricd-port-0": "4"})
    assert one.told() == "b was to reach a over lo"


@pytest.mark.parametrize("port", ["", "0", "65536", "99999999999", "-1", "4x", "²"])
def test_what_is_no_port_is_not_asked(reach, port):
    one = reach(2)
    assert quick(one, {"fabricd-port-0": port})
    assert one.told() == "b was to reach a over lo"


def test_where_mpi_uses_no_tcp_or_ports_of_its_own_nobody_answers_or_asks(reach):
    for one in (reach(0, place=False), reach(0, environ={"UCX_TCP_PORT_RANGE": "9000-9009"})):
        assert one.with_port({"card": "x"}) == {"card": "x"}
        assert quick(one, {"fabricd-port-2": "4"})
        assert one.told() == "a was to reach b over lo"


def test_on_one_host_there_is_nothing_to_tell(reach):
    one = reach(0, {0: "127.0.0.1", 1: "127.0.0.1"})
    assert one.with_port({}) == {}
    assert one.told() == ""
