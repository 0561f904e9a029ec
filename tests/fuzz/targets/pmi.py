"""PMI-1: whatever lines come from MPICH or from whoever holds its socket, and whatever keys come from other ranks."""

from collections.abc import Mapping

from fabric_client.pmi import PmiSession, check_keys, parse_line
from fabricd.errors import ParseError
from tests.fuzz.target import Target


def check(data: bytes) -> None:
    lines = data.decode("latin-1").split("\n")
    session = PmiSession(size=2, kvsname="kvs_1", process_mapping="(vector,(0,1,2))", fence=_fence)
    for line in lines:
        try:
            answer = session.answer(line)
        except ParseError:
            return  # the server stops here, too
        assert answer is None or ("\n" not in answer and answer.isprintable() and answer.startswith("cmd=")), answer


def _fence(number: int, new: Mapping[str, str]) -> Mapping[str, str]:
    for key, value in check_keys(new).items():
        assert parse_line(f"cmd=put key={key} value={value}") == {"cmd": "put", "key": key, "value": value}
    return dict(new) | {"of-another": "1"}


_TALK = (
    b"cmd=init pmi_version=1 pmi_subversion=1\ncmd=get_maxes\ncmd=get_appnum\ncmd=get_my_kvsname\n"
    b"cmd=get kvsname=kvs_1 key=PMI_process_mapping\ncmd=get_universe_size\n"
    b"cmd=put kvsname=kvs_1 key=-bc-0 value=description#n0$port#5$ifname#10.0.0.1$\ncmd=barrier_in\n"
    b"cmd=get kvsname=kvs_1 key=-bc-0\ncmd=get kvsname=kvs_1 key=none\ncmd=finalize\n"
)
TARGET = Target(
    check=check,
    seeds=lambda: [
        _TALK,
        b"mcmd=spawn\nnprocs=2\nexecname=a\nendcmd\ncmd=init pmi_version=2\n",
        b"cmd=abort exitcode=-7\n",
        b"cmd=put key= value=\n",
    ],
    words=(
        "cmd=", "mcmd=", "endcmd", "init", "get_maxes", "get_appnum", "get_my_kvsname", "get_universe_size", "put",
        "get", "barrier_in", "finalize", "abort", " exitcode=", " key=", " value=", " kvsname=", " pmi_version=",
        "\n", " ", "=",
    ),
)  # fmt: skip
