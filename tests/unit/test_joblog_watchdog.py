"""Which rank is missing, by what PyTorch's watchdogs print; the forms are those of its versions 2.1 to 2.13."""

from collections.abc import Iterable

from fabricd.findings.joblog.judge import log_findings
from fabricd.findings.joblog.read import read_log
from fabricd.model.finding import Finding

DEFAULT = "PG ID 0 PG GUID 0(default_pg)"


def waits(rank: int, number: int, begun: int, call: str = "BROADCAST", elements: int = 80) -> list[str]:
    """What a rank prints that waits for others (PyTorch 2.6)."""
    at = f"[rank{rank}]:[E810 03:04:11.06 ProcessGroupNCCL.cpp:683]"
    return [
        f"{at} [Rank {rank}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum={number}, OpType={call}, "
        f"NumelIn={elements}, NumelOut={elements}, Timeout(ms)=600000) ran for 600096 milliseconds before timing out.",
        f"{at} [{DEFAULT} Rank {rank}]  failure detected by watchdog at work sequence id: {number} PG status: last "
        f"enqueued work: {begun}, last completed work: {number - 1}",
    ]


def is_told(rank: int, begun: int, group: str = DEFAULT) -> str:
    """What a rank prints that did not wait, but hears of those that do."""
    return (
        f"[rank{rank}]:[E810 03:04:12.1 ProcessGroupNCCL.cpp:1858] [{group} Rank {rank}] Received a dump signal due to "
        f"a collective timeout from rank 1 and we will try our best to dump the debug info. Last enqueued NCCL work: "
        f"{begun}, last completed NCCL work: {begun}.This is most likely caused by incorrect usages of collectives"
    )


def started(ranks: int, per_host: int) -> list[str]:
    return [
        f"h{rank // per_host}:{rank}:1 [0] NCCL INFO comm 0x1 rank {rank} nranks {ranks} cudaDev 0 - Init COMPLETE"
        for rank in range(ranks)
    ]


def found(lines: Iterable[str]) -> list[Finding]:
    return [one for one in log_findings(read_log(lines)) if one.code.startswith("log-")]


def test_the_rank_that_has_begun_less_than_the_others_wait_in():
    lines = [line for rank in (1, 2, 3, 5, 6, 7) for line in waits(rank, 78, 79)]
    (one,) = found([*started(8, 4), *lines, is_told(0, 77), is_told(4, 77)])
    assert one.code == "log-rank-behind"
    assert one.what == "rank 0,4 has not begun a collective that others wait in"
    assert one.evidence == (
        f"{DEFAULT}: BROADCAST of 80 elements number 78: rank 1-3,5-7 waits in it",
        "begun last by rank 0: 77, rank 4: 77",
        "on h0, h1",
    )


def test_a_rank_that_says_nothing_is_told_with_its_host():
    lines = [line for rank in (0, 1, 3) for line in waits(rank, 5, 5)]
    (one,) = found([*started(4, 2), *lines])
    assert (one.code, one.node) == ("log-rank-behind", "h1")
    assert "nothing is said by rank 2" in one.evidence


def test_a_log_of_some_ranks_does_not_accuse_the_others():
    (one,) = found([*started(8, 8), *waits(0, 5, 5)])
    assert one.code == "log-all-wait"
    assert "the 1 that say anything" in one.evidence[0]


def test_ranks_in_different_collectives():
    lines = [*waits(0, 9, 9), *waits(1, 9, 9), *waits(2, 9, 9, "ALLGATHER", 4)]
    (one,) = found(lines)
    assert one.code == "log-calls-differ"
    assert one.evidence[1:] == ("rank 0-1: BROADCAST of 80 elements", "rank 2: ALLGATHER of 4 elements")


def test_no_rank_is_missing():
    (one,) = found([*started(2, 1), *waits(0, 3, 7), *waits(1, 3, 4)])
    assert (one.code, one.evidence) == (
        "log-all-wait",
        (f"{DEFAULT}: BROADCAST of 80 elements number 3: all 2 ranks have begun it",),
    )


def test_groups_are_apart_and_earlier_versions_are_read():
    old = (
        "[rank{0}]:[E321 02:07:08.4 ProcessGroupNCCL.cpp:1664] [PG 1 Rank {0}] Exception (either an error or timeout) "
        "detected by watchdog at work: 1580, last enqueued NCCL work: {1}, last completed NCCL work: 1579."
    )
    lines = [old.format(rank, begun) for rank, begun in ((0, 1582), (3, 1582))]
    told = found([*started(4, 4), *lines, is_told(2, 1579, "PG 1"), is_told(1, 12, "PG 2")])
    assert [(one.code, one.evidence[:2]) for one in told] == [
        ("log-rank-behind", ("PG 1: collective number 1580: rank 0,3 waits in it", "begun last by rank 2: 1579"))
    ]


def test_what_only_looks_so_says_nothing():
    assert (
        found(["Watchdog", "last enqueued work: 1, last completed work: 0", "[PG 0 Rank 1] last enqueued work: x"])
        == []
    )
    assert found([is_told(0, 5)]) == []
