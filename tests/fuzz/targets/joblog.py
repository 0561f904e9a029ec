"""A job's log, whatever stands in it: what it tells, alone and held against a map."""

from fabricd.findings.joblog.judge import log_findings
from fabricd.findings.joblog.read import read_log
from tests.fuzz.target import Target
from tests.support.nodes import hgx

_MAP = {name: hgx(name) for name in ("h0", "h1")}


def check(data: bytes) -> None:
    lines = data.decode(errors="replace").split("\n")
    log = read_log(lines)
    assert log.lines == len(lines)
    assert all(host.direct + host.indirect + host.by_socket <= log.nccl_lines for host in log.hosts.values())
    for nodes in (None, _MAP):
        for one in log_findings(log, nodes):
            assert one.code
            assert one.what
            assert one.evidence
            assert one.fix


def _line(text: str, host: str = "h0", level: str = "INFO") -> str:
    return f"{host}:1:2 [0] NCCL {level} {text}\n"


TARGET = Target(
    check=check,
    seeds=lambda: [
        (
            _line("Bootstrap : Using docker0:172.17.0.1<0>") + _line("Using network Socket")
            + _line("NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/RoCE [RO]; OOB eth0:10.0.0.1<0>", "h1")
            + _line("Using network IB", "h1") + _line("NCCL_NET_GDR_LEVEL set by environment to PIX", "h1")
        ).encode(),
        (
            _line("comm 0x1 rank 0 nranks 2 cudaDev 0 busId 1000 - Init COMPLETE")
            + _line("Channel 00/0 : 0[0] -> 1[0] [send] via NET/IB/0(1)/GDRDMA/Shared")
            + _line("Channel 00 : 0[1b000] -> 1[3d000] via SHM/direct/direct")
            + _line("NET/IB : Got completion from peer 10.0.0.2<1> with status=12 opcode=0 len=0", level="WARN")
        ).encode(),
        b"[rank1]:[E810 x.cpp:683] [Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=78, "
        b"OpType=BROADCAST, NumelIn=80, NumelOut=80, Timeout(ms)=600000) ran for 600096 milliseconds\n"
        b"[rank1]:[E810 x.cpp:2241] [PG ID 0 PG GUID 0(default_pg) Rank 1]  failure detected by watchdog at work "
        b"sequence id: 78 PG status: last enqueued work: 79, last completed work: 77\n"
        b"[rank0]:[E810 x.cpp:1858] [PG ID 0 PG GUID 0(default_pg) Rank 0] Received a dump signal due to a collective "
        b"timeout from rank 1. Last enqueued NCCL work: 77, last completed NCCL work: 77.\n",
    ],
    words=(
        " NCCL INFO ", " NCCL WARN ", "h0:1:2 [0]", "h1:1:2 [7]", "Using network ", "Channel 00/0 : 0[0] -> 1[0] ",
        "[send] via NET/", "[receive] via NET/", "/GDRDMA", "via P2P/", "via SHM/", "NET/IB : Using ", "[0]mlx5_0:1/IB",
        " set by environment to ", "[PG ", "Rank 1]", "detected by watchdog at work: ", "last enqueued work: ",
        "last completed work: ", "-1", "999999999999999999", "\n", "<0>", "\\n", '"',
    ),
    max_bytes=1 << 14,
)  # fmt: skip
