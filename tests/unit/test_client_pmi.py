"""PMI-1 as MPICH speaks it, without MPICH."""

import os
import socket
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fabric_client.pmi import KEY_MAX, VALUE_MAX, PmiServer, PmiSession, check_keys, parse_line
from fabricd.errors import FabricError, GroupTimeoutError, ParseError


def alone(number, keys):
    return keys


def session(fence=alone):
    return PmiSession(size=2, kvsname="k" * 32, process_mapping="(vector,(0,1,2))", fence=fence)


def test_the_conversation_of_a_start():
    talk = session()
    # From MPICH 5.0.2, as it wrote them.
    for line, answer in [
        ("cmd=init pmi_version=1 pmi_subversion=1", "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0"),
        ("cmd=get_maxes", "cmd=maxes kvsname_max=256 keylen_max=64 vallen_max=4096 rc=0"),
        ("cmd=get_appnum", "cmd=appnum appnum=0 rc=0"),
        ("cmd=get_my_kvsname", f"cmd=my_kvsname kvsname={'k' * 32} rc=0"),
        ("cmd=get_universe_size", "cmd=universe_size size=2 rc=0"),
        ("cmd=get kvsname=k key=PMI_process_mapping", "cmd=get_result rc=0 msg=success value=(vector,(0,1,2))"),
        ("cmd=get kvsname=k key=PMI_hwloc_xmlfile", "cmd=get_result rc=-1 msg=key_not_found value=unknown"),
        ("cmd=put kvsname=k key=-allgather-1-0 value=segments=3", "cmd=put_result rc=0 msg=success"),
        ("cmd=get kvsname=k key=-allgather-1-0", "cmd=get_result rc=-1 msg=key_not_found value=unknown"),
        ("cmd=barrier_in", "cmd=barrier_out rc=0"),
        ("cmd=get kvsname=k key=-allgather-1-0", "cmd=get_result rc=0 msg=success value=segments=3"),
        ("cmd=finalize", None),
    ]:
        assert talk.answer(line) == answer
    assert talk.aborted is None


def test_a_fence_gets_each_round_its_new_keys_and_gives_everybodys():
    rounds = []

    def fence(number, keys):
        rounds.append((number, dict(keys)))
        return {**keys, f"other{number}": "theirs"}

    talk = session(fence)
    talk.answer("cmd=put key=a value=1")
    talk.answer("cmd=barrier_in")
    talk.answer("cmd=put key=b value=2")
    talk.answer("cmd=barrier_in")
    talk.answer("cmd=barrier_in")
    assert rounds == [(0, {"a": "1"}), (1, {"b": "2"}), (2, {})]
    for key, value in {"a": "1", "b": "2", "other0": "theirs", "other2": "theirs"}.items():
        assert talk.answer(f"cmd=get key={key}") == f"cmd=get_result rc=0 msg=success value={value}"


def test_what_a_job_of_one_group_cannot_have_is_refused():
    talk = session()
    assert talk.answer("cmd=publish_name service=x port=y") == "cmd=publish_name rc=-1 msg=not_supported"
    assert talk.answer("nothing here") == "cmd=unknown rc=-1 msg=not_supported"
    assert talk.answer("cmd=init pmi_version=2") == "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=-1"
    for line in ("mcmd=spawn", "nprocs=1", "execname=a", "cmd=get_maxes"):
        assert talk.answer(line) is None
    assert talk.answer("endcmd") == "cmd=spawn_result rc=-1 msg=not_supported"
    assert talk.answer("cmd=get_appnum") == "cmd=appnum appnum=0 rc=0"


@pytest.mark.parametrize(("text", "code"), [("3", 3), ("-7", -7), ("x", 1), ("9" * 30, 1)])
def test_an_abort_is_noted_and_not_answered(text, code):
    talk = session()
    assert talk.answer(f"cmd=abort exitcode={text}") is None
    assert talk.aborted == code


@pytest.mark.parametrize(
    "keys",
    [
        {"a": "x cmd=finalize"},
        {"a": "x\ncmd=abort"},
        {"a b": "x"},
        {"": "x"},
        {"k" * (KEY_MAX + 1): "x"},
        {"k": "v" * (VALUE_MAX + 1)},
        {"k": "é"},
        {"k": "\0"},
    ],
)
def test_keys_from_the_network_cannot_become_commands(keys):
    with pytest.raises(ParseError):
        check_keys(keys)
    with pytest.raises(ParseError):
        session(lambda number, new: keys).answer("cmd=barrier_in")


def test_a_line_has_bounds():
    with pytest.raises(ParseError):
        parse_line("a" * 70000)
    assert parse_line("cmd=put key=a value=x=y=z  junk") == {"cmd": "put", "key": "a", "value": "x=y=z"}


@given(
    st.lists(
        st.one_of(
            st.text(max_size=200),
            st.sampled_from(
                [
                    "cmd=put key=a value=b",
                    "cmd=barrier_in",
                    "cmd=get key=a",
                    "mcmd=spawn",
                    "endcmd",
                    "cmd=abort",
                    "cmd=put",
                ]
            ),
        ),
        max_size=20,
    )
)
def test_garbage_gets_one_line_or_none_or_a_parse_error(lines):
    talk = session()
    for line in lines:
        try:
            answer = talk.answer(line)
        except ParseError:
            continue
        assert answer is None or (answer.startswith("cmd=") and answer.isprintable())


class Mpich:
    """MPICH's side of the socket."""

    def __init__(self, fence=alone):
        self.aborts = []
        self.server = PmiServer(session(fence), on_abort=self.aborts.append)
        self.socket = socket.socket(fileno=os.dup(self.server.fd))
        self.socket.settimeout(5)
        self.server.start()

    def ask(self, *lines):
        self.socket.sendall("".join(f"{line}\n" for line in lines).encode("latin-1"))

    def read(self):
        return self.socket.recv(100_000).decode()


@pytest.fixture
def mpich():
    made = []

    def make(fence=alone):
        made.append(Mpich(fence))
        return made[-1]

    yield make
    for one in made:
        one.socket.close()
        os.close(one.server.fd)
        one.server._ours.close()


def test_the_thread_answers_on_its_socket(mpich):
    one = mpich()
    one.ask("cmd=get_appnum")
    assert one.read() == "cmd=appnum appnum=0 rc=0\n"
    one.ask("cmd=abort exitcode=5", "cmd=get_appnum")
    assert one.read() == "cmd=appnum appnum=0 rc=0\n"
    assert one.aborts == [5, 5][: len(one.aborts)]
    assert one.aborts


def test_a_failed_fence_is_kept_and_not_answered(mpich):
    def fence(number, keys):
        raise GroupTimeoutError("rank 1 did not come")

    one = mpich(fence)
    one.ask("cmd=barrier_in")
    deadline = time.monotonic() + 5
    while one.server.failure is None and time.monotonic() < deadline:
        time.sleep(0.005)
    assert isinstance(one.server.failure, FabricError)
    one.socket.settimeout(0.05)
    with pytest.raises(TimeoutError):
        one.read()


def test_the_answer_to_finalize_lies_ready(mpich):
    one = mpich()
    one.server.answer_finalize()
    one.ask("cmd=finalize")
    assert one.read() == "cmd=finalize_ack rc=0\n"
    one.socket.settimeout(0.05)
    with pytest.raises(TimeoutError):
        one.read()


def test_an_endless_line_ends_the_conversation(mpich):
    one = mpich()
    one.ask("cmd=put key=a value=" + "x" * 70_000)
    deadline = time.monotonic() + 5
    while one.server.failure is None and time.monotonic() < deadline:
        time.sleep(0.005)
    assert isinstance(one.server.failure, ParseError)
