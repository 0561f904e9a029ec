"""A daemon that measures towards a peer that is too busy: once more, and then no verdict on the network."""

import asyncio
import socket
import threading
from dataclasses import replace
from types import SimpleNamespace

import pytest

from fabricd.cluster.measuring import Measurer
from fabricd.errors import InputError, UnavailableError
from fabricd.measure import tcp
from fabricd.model.measurement import ListenAnswer, MeasureRequest
from tests.support.nodes import nic, node

HERE = "127.0.0.1"
REQUEST = MeasureRequest(dst_node="b", src_address=HERE, dst_address=HERE, network="net")

pytestmark = pytest.mark.usefixtures("impatient")


class Peer:
    """Asked to listen, it does so as told: it accepts and is silent, or does its part."""

    def __init__(self, *does_its_part):
        self.does_its_part = list(does_its_part)
        self.silent = []

    async def post(self, url, path, request, answer, *, seconds):
        token = tcp.new_token()
        if not self.does_its_part.pop(0):
            self.silent.append(socket.create_server((HERE, 0)))
            return ListenAnswer(port=self.silent[-1].getsockname()[1], token=token)
        listener = tcp.listen(HERE, "lo")
        threading.Thread(target=tcp.serve, args=(listener, token, HERE)).start()
        return ListenAnswer(port=listener.getsockname()[1], token=token)


def measurer(peer):
    """Return a measurer on a node with one peer; both have this machine's loopback address."""
    known = {name: node(name, interfaces=(nic("lo", f"{HERE}/8"),)) for name in "ab"}
    nodes = SimpleNamespace(local=known["a"], url_of=lambda name: f"http://{name}", snapshots=lambda: known)
    return Measurer(nodes, peer.post)


def test_a_peer_that_was_busy_is_measured_again():
    peer = Peer(False, True)
    found = asyncio.run(measurer(peer).measure(REQUEST))
    assert found.reachable
    assert found.bandwidth_bytes_per_second > 0
    assert peer.does_its_part == []
    peer.silent[0].close()


def test_a_peer_that_stays_busy_is_not_called_unreachable():
    peer = Peer(False, False)
    one = measurer(peer)
    with pytest.raises(UnavailableError, match="timed out: the connection was made"):
        asyncio.run(one.measure(REQUEST))
    assert one.known() == ()
    for silent in peer.silent:
        silent.close()


@pytest.mark.parametrize("network", ["x" * 501, "a\nb"])
def test_what_a_measurement_is_remembered_by_is_a_name(network):
    with pytest.raises(InputError, match="network's name"):
        asyncio.run(measurer(Peer()).measure(replace(REQUEST, network=network)))
