"""A server of HTTP that is no fabricd, or one that lies: it answers as a test says, to the byte."""

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress

#: Takes method and path, the headers (names in lower case) and the connection, which it may write to itself; returns
#: what is sent then, None to close.
Respond = Callable[[str, dict[str, str], socket.socket], bytes | None]


def answer(body: object = None, status: str = "200 OK", **headers: str) -> bytes:
    """Return an answer, whose body is JSON unless it is bytes; ``Content_Type`` stands for ``Content-Type``."""
    content = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
    told = {"Content-Type": "application/json", "Content-Length": str(len(content))}
    told |= {name.replace("_", "-"): value for name, value in headers.items()}
    head = "".join(f"{name}: {value}\r\n" for name, value in told.items())
    return f"HTTP/1.1 {status}\r\n{head}\r\n".encode() + content


@contextmanager
def odd_server(respond: Respond) -> Iterator[str]:
    """Yield the URL of a server that answers so, each connection in a thread of its own."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listener:
        threading.Thread(target=_accept, args=(listener, respond), daemon=True).start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            listener.shutdown(socket.SHUT_RDWR)  # wakes who accepts


def _accept(listener: socket.socket, respond: Respond) -> None:
    with suppress(OSError):  # closed
        while True:
            connection, _ = listener.accept()
            threading.Thread(target=_converse, args=(connection, respond), daemon=True).start()


def _converse(connection: socket.socket, respond: Respond) -> None:
    with closing(connection), connection.makefile("rb") as lines, suppress(OSError):  # the client went
        while asked := lines.readline().decode("latin-1"):
            headers = {}
            while (line := lines.readline().decode("latin-1").strip()) != "":
                name, _, value = line.partition(":")
                headers[name.lower()] = value.strip()
            lines.read(int(headers.get("content-length", "0")))
            said = respond(asked.rpartition(" ")[0], headers, connection)
            if said is None:
                return
            connection.sendall(said)
