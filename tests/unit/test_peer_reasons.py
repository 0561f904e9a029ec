"""Why another daemon did not answer: what the system said, not what the HTTP library makes of it."""

import asyncio
import errno
import socket
import threading
from collections.abc import Iterator

import httpx
import pytest

from fabricd.cluster.peer_client import plain_client, reason_of
from fabricd.tls import client_context
from tests.support.etcd import free_port


def reason_at(url: str, seconds: float = 5) -> str:
    async def ask() -> str:
        async with plain_client({}, seconds=seconds, tls=client_context(None)) as client:
            with pytest.raises(httpx.HTTPError) as caught:
                await client.get(url)
            return reason_of(caught.value)

    return asyncio.run(ask())


@pytest.fixture
def deaf() -> Iterator[int]:
    """Return the port of a listener whose queue is full: its kernel answers no further SYN."""
    with socket.socket() as listener, socket.socket() as first, socket.socket() as second:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        port = listener.getsockname()[1]
        for one in (first, second):
            one.setblocking(False)
            one.connect_ex(("127.0.0.1", port))
        yield port


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_refused(host):
    assert reason_at(f"http://{host}:{free_port()}/") == "Connection refused"


def test_no_answer_to_a_connection(deaf):
    assert reason_at(f"http://127.0.0.1:{deaf}/", 0.2).startswith("no connection in time")


def test_a_name_that_is_none():
    assert "Errno" in reason_at("http://nosuch.invalid:1/")


def test_tls_with_who_speaks_none_keeps_its_own_words():
    def answer(plain: socket.socket) -> None:
        connection, _ = plain.accept()
        with connection:
            connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    with socket.create_server(("127.0.0.1", 0)) as plain:
        thread = threading.Thread(target=answer, args=(plain,))
        thread.start()
        assert "SSL" in reason_at(f"https://127.0.0.1:{plain.getsockname()[1]}/")
        thread.join(10)


def test_who_is_cut_off_by_tls_is_told_that_it_may_be_the_certificate() -> None:
    request = httpx.Request("GET", "https://10.0.0.1:7470/v1/node")
    cut = httpx.ReadError("", request=request)
    cut.__cause__ = ConnectionResetError(errno.ECONNRESET, "Connection reset by peer")
    assert reason_of(cut).startswith("Connection reset by peer, by TLS: the other end wants a certificate")
    cut.request = httpx.Request("GET", "http://10.0.0.1:7470/v1/node")
    assert reason_of(cut) == "Connection reset by peer"
    bare = httpx.ReadError("")
    bare.__cause__ = cut.__cause__
    assert reason_of(bare) == "Connection reset by peer"
