"""What lines of NCCL's log tell, in the forms of its versions and behind what launchers put before them."""

from hypothesis import given
from hypothesis import strategies as st

from fabricd.findings.joblog.read import MAX_LINE, read_log

_IB = "NET/IB : Using [0]mlx5_0:1/IB/SHARP [1]mlx5_1:1/RoCE [RO]; OOB eno1:10.0.0.1<0>"


def _info(text: str, host: str = "gpu7") -> str:
    return f"{host}:4711:4730 [0] NCCL INFO {text}\n"


def test_hosts_networks_and_adapters():
    log = read_log(
        [
            "NCCL version 2.18.3+cuda12.2\n",
            _info("Bootstrap : Using eno1:10.0.0.1<0>"),
            _info(_IB),
            _info("Using network IB"),
            _info(
                "ncclCommInitRank comm 0x55 rank 0 nranks 16 cudaDev 0 nvmlDev 0 busId 1b000 commId 0x9c - Init START"
            ),
            _info("NCCL_IB_DISABLE set by environment to 0."),
            _info("Bootstrap: Using eth0:fe80::1%eth0<0>", "gpu8.cluster"),
            _info("Assigned NET plugin AWS Libfabric to comm", "gpu8.cluster"),
        ]
    )
    first, second = log.hosts.values()
    assert list(log.hosts) == ["gpu7", "gpu8.cluster"]
    assert (log.version, log.ranks, log.lines, log.nccl_lines) == ("2.18.3+cuda12.2", 16, 8, 7)
    assert (first.networks, first.interface, first.address) == (["IB"], "eno1", "10.0.0.1")
    assert first.adapters == (("mlx5_0:1", "IB"), ("mlx5_1:1", "RoCE"))
    assert first.settings == {"NCCL_IB_DISABLE": "0"}
    assert (second.networks, second.interface, second.address) == (["AWS Libfabric"], "eth0", "fe80::1%eth0")


def test_connections_are_counted_by_kind():
    log = read_log(
        map(
            _info,
            [
                "Channel 00/02 :    0   1   2   3",
                "Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM/read",
                "Channel 00 : 0[1b000] -> 1[3d000] via SHM/direct/direct",
                "Ring 00 : 2[3d000] -> 3[3e000] via direct shared memory",
                "Channel 00/0 : 0[0] -> 8[0] [send] via NET/IB/0(1)/GDRDMA/Shared",
                "Channel 00/0 : 8[0] -> 0[0] [receive] via NET/IBext_v8/0",
                "Ring 00 : 7 -> 8 [send] via NET/AWS Libfabric/0/GDRDMA",
                "Channel 01/0 : 8[0] -> 0[0] [receive] via NET/Socket/0",
            ],
        )
    )
    host = log.hosts["gpu7"]
    assert (host.by_peer_access, host.through_memory) == (1, 2)
    assert (host.direct, host.indirect, host.by_socket) == (2, 1, 1)


def test_what_launchers_and_versions_put_before_a_line_does_not_matter():
    text = "NCCL INFO Using network Socket"
    for before in (
        " 3: node00:1:2 [3] ",
        "[1,7]<stdout>:node00:1:2 [7] ",
        "[2026-02-25 16:41:56] node00:1:2 [3] os/linux.cc:200 ",
        "worker-0: node00:1:2 [-1] ",
    ):
        assert read_log([before + text]).hosts["node00"].networks == ["Socket"], before
    assert not read_log(["node00 [3] " + text, text, "xNCCL INFO"]).hosts


def test_lines_that_a_container_runtime_has_wrapped():
    wrapped = '{"log":"gpu7:1:2 [0] NCCL INFO %s\\n","stream":"stdout","time":"2026-11-30T18:00:00Z"}\n'
    texts = (
        "Using network AWS Libfabric",
        "NCCL_IB_HCA set by environment to ^mlx5_1",
        "NCCL_ALGO set by environment to 1.",
    )
    host = read_log(wrapped % text for text in texts).hosts["gpu7"]
    assert (host.networks, host.settings) == (["AWS Libfabric"], {"NCCL_IB_HCA": "^mlx5_1", "NCCL_ALGO": "1"})


def test_the_version_may_stand_in_a_line_of_a_rank():
    assert read_log([_info("NCCL version 2.26.2+cuda12.2")]).version == "2.26.2+cuda12.2"


def test_messages_say_where_they_stand_how_often_and_on_which_hosts():
    lines = ["something else", _info("NET/IB : No device found.", "a"), _info("NET/IB : No device found.", "b")]
    seen = read_log(lines).messages["nccl-no-adapter"]
    assert (seen.where, seen.count, list(seen.hosts)) == ("line 2", 2, ["a", "b"])
    both = read_log(lines[1:], log=read_log([], source="a.log"), source="b.log")
    assert both.messages["nccl-no-adapter"].where == "b.log line 1"


@given(st.lists(st.text(max_size=80)), st.sampled_from(["", "h:1:2 [0] NCCL INFO ", "h:1:2 [0] a.cc:1 NCCL WARN "]))
def test_nothing_that_stands_in_a_file_is_an_error(lines, before):
    assert read_log(before + line for line in lines).lines == len(lines)


def test_endless_lines_are_looked_at_up_to_a_limit():
    hostile = "a" * 10**6 + _info("Using network IB"), "h:" * MAX_LINE, "a-" * MAX_LINE + " NCCL INFO x"
    assert not read_log(hostile).hosts


def test_a_log_that_names_endless_hosts_is_bounded():
    log = read_log(_info("Using network IB", f"h{number}") for number in range(20_010))
    assert len(log.hosts) == 20_000
