"""Connections that are kept, broken, endless or not HTTP at all, with a server that says what a test wants."""

import socket
import threading
import time
from contextlib import closing, contextmanager

import pytest

from fabric_client.connection import Connection
from fabric_client.locate import parse_address
from fabric_client.transport import TransientError
from fabricd.errors import FabricError, ParseError
from fabricd.model.problem import Problem
from tests.support.odd_server import answer, odd_server

EMPTY = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"


@contextmanager
def server(*conversations):
    """Serve one connection after another; each is a list of answers to its requests, then it is closed."""
    listener = socket.create_server(("127.0.0.1", 0))
    closed = threading.Event()
    served = []

    def run():
        for answers in conversations:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            served.append(connection)
            with connection:
                for answer in answers:
                    if not connection.recv(65536):  # questions here are small
                        break
                    if answer is None:
                        closed.wait(10)
                    else:
                        connection.sendall(answer)

    thread = threading.Thread(target=run)
    thread.start()
    connection = Connection(parse_address(f"http://127.0.0.1:{listener.getsockname()[1]}"))
    try:
        yield connection, served
    finally:
        closed.set()
        connection.close()
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()


def test_a_connection_is_kept_for_the_next_question():
    with server([EMPTY, EMPTY]) as (connection, served):
        assert [connection.request("GET", "/a"), connection.request("GET", "/b")] == [b"{}", b"{}"]
        assert len(served) == 1


def test_one_that_the_daemon_has_closed_meanwhile_is_replaced_without_a_word():
    with server([EMPTY], [EMPTY]) as (connection, served):
        assert connection.request("GET", "/a") == b"{}"
        time.sleep(0.05)
        assert connection.request("GET", "/b") == b"{}"
        assert len(served) == 2


def test_one_that_is_to_be_closed_is_not_kept():
    last = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}"
    with server([last, EMPTY], [EMPTY]) as (connection, _):
        assert connection.request("GET", "/a") == connection.request("GET", "/b") == b"{}"


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 20\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\n{}",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzzz\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Le",
        b"\x15\x03\x01\x00\x02\x02\x16",
        b"",
    ],
)
def test_what_breaks_off_or_is_no_http_may_be_asked_again(answer):
    with server([answer]) as (connection, _), pytest.raises(TransientError, match="no answer from the daemon") as error:
        connection.request("GET", "/a")
    assert error.value.connected


def test_an_answer_that_no_daemon_gives_is_not_read():
    long = b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n{}"
    with server([long]) as (connection, _), pytest.raises(ParseError, match="an answer of 99999999999 bytes"):
        connection.request("GET", "/a")


def chunks(*parts):
    return b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts)


def test_lines_come_one_by_one_are_bounded_and_end():
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    whole = head + chunks(b"one\n", b"two\nt", b"hree\n") + b"0\r\n\r\n"
    with server([whole]) as (connection, _), connection.ask("GET", "/a") as answer:
        lines = [answer.line(longest=6, seconds=5) for _ in range(4)]
        assert lines == [b"one\n", b"two\n", b"three\n", b""]
    with server([head + chunks(b"one\n", b"two")]) as (connection, _), connection.ask("GET", "/a") as answer:
        assert [answer.line(longest=6, seconds=5) for _ in range(2)] == [b"one\n", b""]


def test_a_line_without_end_is_not_read():
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    with (
        server([head + chunks(b"x" * 8)]) as (connection, _),
        connection.ask("GET", "/a") as answer,
        pytest.raises(ParseError, match="a line longer than 6 bytes"),
    ):
        answer.line(longest=6, seconds=5)


def test_silence_is_given_up():
    with server([None]) as (connection, _):
        begun = time.monotonic()
        with pytest.raises(TransientError, match="timed out"):
            connection.request("GET", "/a", wait=0.2, seconds=0.2)
        assert time.monotonic() - begun < 5


@pytest.mark.parametrize(
    "beginning",
    [
        b"HTTP/1.1 200 OK\r\nX: ",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3e8\r\n",
    ],
)
def test_what_trickles_is_given_up(monkeypatch, beginning):
    monkeypatch.setattr("fabric_client.transport._WHOLE_SECONDS", 0.3)

    def respond(_what, _headers, connection):
        connection.sendall(beginning)
        while True:
            connection.sendall(b"x")
            time.sleep(0.02)

    with odd_server(respond) as url, closing(Connection(parse_address(url))) as connection:
        begun = time.monotonic()
        with pytest.raises(TransientError, match="it comes too slowly"):
            connection.request("GET", "/a", seconds=0.3)
        assert time.monotonic() - begun < 2


def test_heads_without_end_are_given_up():
    def respond(_what, _headers, connection):
        while True:
            connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")

    with (
        odd_server(respond) as url,
        closing(Connection(parse_address(url))) as connection,
        pytest.raises(TransientError, match="it comes too slowly"),
    ):
        connection.request("GET", "/a", seconds=0.3)


@pytest.mark.parametrize("said", [answer(status="302 Found", Location="/b"), answer(b"<!doctype html>")])
def test_what_another_service_says_is_told_as_such(said):
    with (
        odd_server(lambda *_: said) as url,
        closing(Connection(parse_address(url))) as connection,
        pytest.raises(FabricError, match=r"302|malformed") as error,
    ):
        connection.get("/v1/node", Problem)
    assert error.value.hint == "is it a fabricd, or a proxy before one?"


def test_a_fault_quotes_a_part_of_what_is_no_http_in_one_line():
    with server([b"x" * 5000 + b"\r\n"]) as (connection, _), pytest.raises(TransientError) as error:
        connection.request("GET", "/a")
    assert error.value.message.isprintable()
    assert len(error.value.message) < 400


def test_closing_ends_what_another_thread_waits_for():
    with server([None]) as (connection, _):
        found = []

        def ask():
            try:
                connection.request("GET", "/a", wait=30)
            except TransientError as error:
                found.append(error)

        thread = threading.Thread(target=ask)
        thread.start()
        time.sleep(0.2)
        connection.close()
        thread.join(5)
        assert not thread.is_alive()
        assert len(found) == 1
        with pytest.raises(TransientError, match="it was closed here"):
            connection.request("GET", "/b")


@pytest.mark.parametrize("host", ["a" * 70, "xn--" + "9" * 60 + ".de"])
def test_names_that_no_name_service_takes(host):
    connection = Connection(parse_address(f"http://{host}:1"))
    with pytest.raises(TransientError):
        connection.request("GET", "/a")
    connection.close()
