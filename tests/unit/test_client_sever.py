"""Ending this process's own connections between two addresses, and no others."""

import socket
import threading

import pytest

from fabric_client.sever import sever


@pytest.fixture
def pairs():
    """Connections from 127.0.0.1 to some address of the loopback, by listening address."""
    opened = []

    def connect(address, source="127.0.0.1"):
        listener = socket.create_server((address, 0))
        near = socket.create_connection(listener.getsockname(), source_address=(source, 0))
        far, _ = listener.accept()
        opened.extend((listener, near, far))
        return near, far

    yield connect
    for one in opened:
        one.close()


def ended(one):
    one.settimeout(0.2)
    try:
        return one.recv(1) == b""
    except TimeoutError:
        return False


def test_only_connections_between_the_two_addresses_end(pairs):
    hit, peer = pairs("127.0.0.2")
    other_peer, _ = pairs("127.0.0.3")
    other_source, _ = pairs("127.0.0.2", source="127.0.0.4")
    assert sever("127.0.0.1", {"127.0.0.2"}) == 1
    assert (ended(hit), ended(peer)) == (True, True)
    assert (ended(other_peer), ended(other_source)) == (False, False)


def test_spared_ports_stay_at_either_end(pairs):
    near, far = pairs("127.0.0.2")
    assert sever("127.0.0.1", {"127.0.0.2"}, spared={near.getsockname()[1]}) == 0
    assert sever("127.0.0.1", {"127.0.0.2"}, spared={near.getpeername()[1]}) == 0
    assert (ended(near), ended(far)) == (False, False)


def test_who_reads_is_woken(pairs):
    near, _ = pairs("127.0.0.2")
    found = []
    reader = threading.Thread(target=lambda: found.append(near.recv(1)))
    reader.start()
    sever("127.0.0.1", {"127.0.0.2"})
    reader.join(5)
    assert found == [b""]


def test_ipv4_within_ipv6_counts_as_ipv4():
    with (
        socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True) as listener,
        socket.create_connection(("127.0.0.1", listener.getsockname()[1])) as near,
    ):
        far, peer = listener.accept()
        with far:
            assert peer[0] == "::ffff:127.0.0.1"
            assert sever("127.0.0.1", {"127.0.0.1"}) == 2  # both ends are this process's
            assert ended(near)
