"""What a daemon, or whoever stands in its place, answers a client: status line, headers, body, streams of lines."""

import os
import socket
import threading
from contextlib import suppress
from functools import cache

from fabric_client.connection import Connection
from fabric_client.locate import DaemonAddress
from fabricd.errors import FabricError
from fabricd.model.snapshot import Snapshot
from tests.fuzz.target import Target

_LINE_BYTES = 1 << 12


class _Server:
    """Answers every request with the same bytes, and hangs up."""

    def __init__(self) -> None:
        self.answer = b""
        self.path = f"\0fabricd-fuzz-{os.getpid()}"  # abstract: leaves no file
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(self.path)
        self._listener.listen()
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            connection, _ = self._listener.accept()
            with connection, suppress(OSError):
                connection.settimeout(5)
                while b"\r\n\r\n" not in connection.recv(1 << 16):
                    continue
                connection.sendall(self.answer)


@cache
def _server() -> _Server:
    return _Server()


def check(data: bytes) -> None:
    server = _server()
    server.answer = data
    connection = Connection(DaemonAddress(url="http://fabricd", socket=server.path))
    try:
        with suppress(FabricError):
            connection.get("/v1/node", Snapshot, seconds=5)
        with suppress(FabricError), connection.ask("GET", "/v1/groups/g/members/0/watch", seconds=5) as stream:
            while line := stream.line(longest=_LINE_BYTES, seconds=5):
                assert line.endswith(b"\n")
                assert len(line) <= _LINE_BYTES
    finally:
        connection.close()


_BODY = b'{"node":{"node_id":"a","name":"a"}}'
_LINES = b'{"kind":"hello"}\n{"kind":"alive"}\n'
TARGET = Target(
    check=check,
    seeds=lambda: [
        b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s" % (len(_BODY), _BODY),
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n" % (len(_LINES), _LINES),
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 204 No Content\r\n\r\n",
        b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\ncontent-type: application/problem+json\r\n"
        b'content-length: 75\r\n\r\n{"type":"t","title":"t","status":503,"detail":"d","code":"busy","hint":"h"}\n',
        b"HTTP/1.1 307 Temporary Redirect\r\nlocation: http://a/\r\ncontent-length: 0\r\n\r\n",
    ],
    words=(
        "HTTP/1.1 ", "HTTP/1.0 200\r\n", "\r\n", "\r\n\r\n", "content-length: ", "transfer-encoding: chunked",
        "0\r\n\r\n", "connection: close", "connection: keep-alive", "-1", "ffffffffffffffff", "content-type: ",
        "application/json", "application/problem+json", ";ext=1", "200 OK", "404", "503", "999", "\n", "\x00",
    ),
    max_bytes=1 << 13,
)  # fmt: skip
