"""TLS between parts of a cluster that goes wrong after the handshake."""

import asyncio
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress

import httpx
import pytest

from fabricd.cluster.peer_client import plain_client
from fabricd.tls import server_context
from tests.support.certificates import Authority

#: A record of application data that no key fits.
SPOILED = b"\x17\x03\x03\x00\x40" + bytes(64)


@pytest.fixture
def authority(tmp_path):
    return Authority(tmp_path)


@pytest.fixture
def spoiled(authority, request) -> Iterator[int]:
    """Return the port of a server that begins an answer, of which a record is spoiled on its way."""
    context = server_context(authority.issue("node", "IP:127.0.0.1"), None)

    def serve() -> None:
        connection, _ = listener.accept()
        with context.wrap_socket(connection, server_side=True) as tls:
            tls.recv(65536)
            tls.sendall(request.param)
            os.write(tls.fileno(), SPOILED)
            with suppress(OSError):
                tls.recv(65536)  # until the client has had enough

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        yield listener.getsockname()[1]
        thread.join(10)
        assert not thread.is_alive()


@pytest.mark.parametrize(
    "spoiled", [b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\nbegun"], indirect=True
)
def test_a_spoiled_record_is_an_error_of_the_request_and_no_other(spoiled, authority):
    async def main() -> None:
        async with plain_client({}, seconds=5, tls=authority.client()) as client:
            with pytest.raises(httpx.ReadError, match="TLS: "):
                await client.get(f"https://127.0.0.1:{spoiled}/")

    asyncio.run(main())
