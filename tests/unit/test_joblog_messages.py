"""Known messages: each is found as itself, is documented, and is told from those that resemble it."""

import re
from pathlib import Path

import pytest

from fabric_client.cli.main import COMMANDS
from fabricd.findings.codes import CODES as FINDINGS
from fabricd.findings.joblog.judge import CODES
from fabricd.findings.joblog.message import KnownMessages, Message
from fabricd.findings.joblog.nccl import NCCL_MESSAGES
from fabricd.findings.joblog.others import MPI_MESSAGES, TORCH_MESSAGES, UCX_MESSAGES

PAGE = (Path(__file__).parents[2] / "docs/messages.md").read_text().splitlines()
ALL = (*NCCL_MESSAGES, *UCX_MESSAGES, *MPI_MESSAGES, *TORCH_MESSAGES)
KNOWN = KnownMessages(ALL)

#: Lines as libraries printed them, names and addresses replaced.
PRINTED = {
    "transport/net_ib.cc:839 NCCL WARN NET/IB : Got completion with error 12, opcode 0, len 0, vendor err 129":
        "nccl-ib-timeout",
    "ib_plugin.c:1615 NCCL WARN NET/IB : Got completion from peer 10.0.0.2<54862> with status=12 opcode=0 len=0 vendor "
    "err 129 (Recv)": "nccl-ib-timeout",
    "transport/net_ib.cc:1295 NCCL WARN NET/IB : Got completion from peer fe80::1%ib0<33397> with error 4, opcode 3":
        "nccl-ib-protection",
    "NCCL WARN NET/IB: Got completion from peer 10.0.0.2<38081> with status=IBV_WC_WR_FLUSH_ERR(5)":
        "nccl-ib-flushed",
    "NCCL WARN NET/IB : Got completion from peer 10.0.0.2<33057> with status=9 opcode=0 len=0 vendor err 138 (Send)":
        "nccl-ib-failed",
    "ibvwrap.c:262 NCCL WARN Call to ibv_modify_qp failed with 110 Connection timed out, on dev mlx5_1:1":
        "nccl-qp-unreachable",
    "NCCL WARN Call to ibv_modify_qp failed with error Invalid argument": "nccl-qp-invalid",
    "misc/ibvwrap.cc:278 NCCL WARN Call to ibv_reg_mr_iova2 failed with error Cannot allocate memory": "nccl-memlock",
    "misc/ibvwrap.cc:190 NCCL WARN Call to ibv_create_cq failed with error Cannot allocate memory": "nccl-memlock",
    "misc/socket.cc:483 NCCL WARN socketStartConnect: Connect to 10.0.0.82<38455> failed : Software caused connection "
    "abort": "nccl-connect-failed",
    "socketStartConnect: Connect to 127.0.0.1<45069> failed : Connection refused": "nccl-connect-loopback",
    "NCCL WARN socketPollConnect: connect returned Connection refused, exceeded error retry count (35)":
        "nccl-connect-failed",
    "include/socket.h:390 NCCL WARN Connect to 10.0.0.2<21724> failed : Connection refused": "nccl-connect-failed",
    "misc/socket.cc:49 NCCL WARN socketProgress: Connection closed by remote peer node1<57557>": "nccl-peer-gone",
    "NCCL WARN Error: failed to extend /dev/shm/nccl-WU88OE to 9637892 bytes, error: No space left on device (28)":
        "nccl-shm-small",
    "NCCL WARN Error while attaching to shared memory segment /dev/shm/nccl- (size 192814336), error: No such file or "
    "directory (2)": "nccl-shm-apart",
    "transport/nvls.cc:254 NCCL WARN Cuda failure 1 'invalid argument'": "nccl-nvls-failed",
    "Test CUDA failure common.cu:941 'system not yet initialized'": "cuda-not-ready",
    "init.cc:497 NCCL WARN Duplicate GPU detected : rank 2 and rank 0 both on CUDA device 1000": "nccl-gpu-twice",
    "transport/net_ib.cc:93 NCCL WARN NET/IB : Got async event : port error": "nccl-port-down",
    "NCCL WARN NET/IB : mlx5_0:1 Got async event : local access violation work queue error": "nccl-ib-protection",
    "get_ofi_provider:312 NCCL WARN NET/OFI Could not find any optimal provider": "ofi-no-provider",
    "NCCL INFO NET/Plugin: Could not find: libnccl-net.so. Using internal net plugin.": "nccl-no-plugin",
    "[mgmt:24113:0:24113] ib_mlx5_log.c:143  Transport retry count exceeded on mlx5_0:1/RoCE (synd 0x15 vend 0x81)":
        "ucx-timeout",
    "ib_log.c:246  UCX  ERROR mlx5_0: ibv_create_cq() failed: Cannot allocate memory. Please set max locked memory "
    "(ulimit -l) to 'unlimited' (current: 64 kbytes)": "ucx-memlock",
    "select.c:438  UCX  ERROR no active messages transport to <no debug data>: posix/memory - Destination is":
        "ucx-unreachable",
    "[rank0]:[E321 02:07:08.4 ProcessGroupNCCL.cpp:607] [Rank 0] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=1580, OpType=ALLREDUCE, Timeout(ms)=600000) ran for 600060 milliseconds": "torch-watchdog",
    "ncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error.": "torch-nccl",
}  # fmt: skip


@pytest.mark.parametrize("line", PRINTED)
def test_lines_that_were_printed_are_known(line):
    assert KNOWN.find(line).code == PRINTED[line]


def test_each_wording_is_found_as_its_own_message():
    for message in ALL:
        for text in message.texts:
            assert KNOWN.find(f"before {text.replace('*', ' 10.0.0.7 ')} after") is message, text


def test_what_is_only_alike_is_not_known():
    for line in (
        "node0:1:2 [2] NCCL INFO [Service thread] Connection closed by localRank 2",  # every job's end
        "node0:1:2 [2] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [RO]; OOB eno1:10.0.0.1<0>",
        "epoch 12, error 12, 4 failed with status=12 ",
        "Error: network demo not found",  # Docker's
        "",
    ):
        assert KNOWN.find(line) is None, line
    assert KnownMessages([Message(code="x", texts=("a*b",), meaning="", fix="")]).find("b a") is None


def _row(message: Message) -> str:
    texts = "<br>".join(f"`{text.strip()}`" for text in message.texts)
    return f"| `{message.code}` | {texts} | {message.meaning} | {message.fix} |"


def test_the_page_has_each_message_as_it_is_told():
    rows = [line for line in PAGE if re.match(r"\| `[a-z0-9-]+` \| .+ \| .+ \| .+ \|$", line)]
    assert rows == [_row(message) for message in ALL]
    rules = [re.fullmatch(r"\| `(log-[a-z-]+)` \| (.+) \|", line) for line in PAGE]
    assert {rule[1]: rule[2] for rule in rules if rule} == CODES


def test_codes_are_one_messages_alone():
    codes = [message.code for message in ALL]
    assert len(set(codes)) == len(codes)
    assert not {*codes, *CODES} & FINDINGS.keys()


def test_next_steps_name_commands_and_findings_that_there_are():
    for message in ALL:
        assert set(re.findall(r"fabricctl ([a-z-]+)", message.fix)) <= COMMANDS.keys(), message.code
        for told in re.findall(r"\(([a-z-]+(?:, [a-z-]+)*)\)", message.fix):
            assert {code for code in told.split(", ") if "-" in code} <= FINDINGS.keys(), message.code
