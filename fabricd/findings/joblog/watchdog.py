"""Which rank did not come: what PyTorch's watchdogs say of the collective that all wait in.

When a collective is not over in time, each rank that waits says which it is, and tells the others, each of which then
says how far it has come. So the rank that is missing has begun fewer than the number of the one that others wait in::

    [rank1]:[E810 ...] [Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=78, OpType=BROADCAST, ...
    [rank1]:[E810 ...] [PG ID 0 PG GUID 0(default_pg) Rank 1]  failure detected by watchdog at work sequence id: 78
        PG status: last enqueued work: 79, last completed work: 77
    [rank0]:[E810 ...] [PG ID 0 PG GUID 0(default_pg) Rank 0] Received a dump signal due to a collective timeout from
        rank 1 ... Last enqueued NCCL work: 77, last completed NCCL work: 77.

Source: PyTorch 2.1 to 2.13, torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from fabricd.model.finding import Finding, Severity
from fabricd.units import format_names, format_ranges

_GLOBAL = re.compile(r"\[rank(\d{1,7})\]:")
_WAITS = re.compile(
    r"\[Rank (\d{1,7})\] Watchdog caught collective operation timeout: WorkNCCL\(SeqNum=(\d{1,18}), OpType=(\w{1,40})"
    r"(?:, NumelIn=(\d{1,18}), NumelOut=(\d{1,18}))?"
)
_STATUS = re.compile(
    r"\[(PG [^\]]{1,120}?) ?Rank (\d{1,7})\][^\[]{0,400}?[Ll]ast enqueued (?:NCCL )?work: (-?\d{1,18}), "
    r"last completed (?:NCCL )?work: (-?\d{1,18})"
)
_AT = re.compile(r"detected by watchdog at work(?: sequence id)?: (\d{1,18})")
#: Ranks of one job and groups of it that are looked at.
_MAX_RANKS, _MAX_GROUPS = 100_000, 1000
_SHOWN, _MAX_TEXT = 16, 300


@dataclass(slots=True)
class _Group:
    """A process group of PyTorch's."""

    begun: dict[int, int] = field(default_factory=dict)  #: the last collective that each rank began
    waits: dict[int, int] = field(default_factory=dict)  #: the collective that each rank waits in


@dataclass(slots=True)
class Watchdogs:
    """What the watchdogs of a job's ranks said."""

    groups: dict[str, _Group] = field(default_factory=dict)
    #: What a rank waits in, by rank and number: "BROADCAST of 80 elements".
    calls: dict[tuple[int, int], str] = field(default_factory=dict)

    def take(self, line: str) -> None:
        """Take a line of the log, which may be any."""
        if "nqueued" not in line and "atchdog" not in line:
            return
        everywhere = _GLOBAL.search(line)
        if (found := _WAITS.search(line)) and len(self.calls) < _MAX_RANKS:
            elements = f" of {found[4]} elements" if found[4] else ""
            self.calls[int((everywhere or found)[1]), int(found[2])] = found[3] + elements
        elif (found := _STATUS.search(line)) and (found[1] in self.groups or len(self.groups) < _MAX_GROUPS):
            group = self.groups.setdefault(found[1], _Group())
            rank = int(everywhere[1] if everywhere else found[2])
            if len(group.begun) < _MAX_RANKS:
                group.begun.setdefault(rank, int(found[3]))
                if at := _AT.search(line):
                    group.waits.setdefault(rank, int(at[1]))


def watchdog_findings(said: Watchdogs, ranks: int, hosts: Mapping[int, str]) -> Iterator[Finding]:
    """Yield which ranks have not begun a collective, are in another one, or that none is missing.

    Args:
        said: by the watchdogs.
        ranks: of the job; 0 unknown.
        hosts: of ranks, as far as they are known.
    """
    for name, group in said.groups.items():
        if not group.waits:
            continue
        at = min(group.waits.values())
        calls: dict[str, list[int]] = {}
        for rank in sorted(rank for rank, number in group.waits.items() if number == at):
            calls.setdefault(said.calls.get((rank, at), ""), []).append(rank)
        calls.pop("", None)
        where = f"{name.strip()}: {next(iter(calls)) if len(calls) == 1 else 'collective'} number {at}"
        behind = sorted(rank for rank, begun in group.begun.items() if begun < at)
        # Where few speak this is no log of all ranks.
        whole = bool(ranks) and _of_all(name) and len(group.begun) * 2 >= ranks
        silent = sorted(set(range(ranks)) - group.begun.keys()) if whole else []
        if behind or silent:
            yield _behind(where, behind, silent, group, hosts)
        elif len(calls) > 1:
            yield _apart(where, calls)
        else:
            yield _all_there(where, f"all {ranks} ranks" if whole else f"the {len(group.begun)} that say anything")


def _of_all(group: str) -> bool:
    """Tell whether a group is that of all ranks."""
    return "default_pg" in group or group.strip() == "PG 0"


def _behind(where: str, behind: list[int], silent: list[int], group: _Group, hosts: Mapping[int, str]) -> Finding:
    evidence = [f"{where}: {_some(group.waits)} waits in it"]
    if behind:
        last = (f"rank {one}: {group.begun[one]}" for one in behind)
        evidence.append(f"begun last by {format_names(last, _SHOWN)}")
    if silent:
        evidence.append(f"nothing is said by {_some(silent)}")
    missing = behind or silent
    on = list(dict.fromkeys(hosts[rank] for rank in missing if rank in hosts))
    if on:
        evidence.append(f"on {format_names(on, _SHOWN)}")
    return Finding(
        code="log-rank-behind",
        severity=Severity.ERROR,
        node=on[0] if len(on) == 1 else "",
        what=f"{_some(missing)} has not begun a collective that others wait in",
        evidence=tuple(evidence),
        fix="see what it did last: its own log, py-spy dump --pid; a rank that says nothing was killed, or its host is "
        "gone (dmesg, fabricctl nodes)",
    )


def _apart(where: str, calls: Mapping[str, list[int]]) -> Finding:
    return Finding(
        code="log-calls-differ",
        severity=Severity.ERROR,
        what="ranks are in different collectives, each of which waits for all",
        evidence=(where, *(f"{_some(members)}: {call}" for call, members in list(calls.items())[:_SHOWN])),
        fix="the program takes another way on some ranks: a condition on the rank, or on data that differ",
    )


def _all_there(where: str, who: str) -> Finding:
    return Finding(
        code="log-all-wait",
        severity=Severity.ERROR,
        what="no rank is missing in a collective that does not end",
        evidence=(f"{where}: {who} have begun it",),
        fix="a link, a GPU or a host stands still: fabricctl watch --past (what went down at that time), fabricctl "
        "doctor, fabricctl measure",
    )


def _some(ranks: Iterable[int]) -> str:
    return f"rank {format_ranges(ranks)}"[:_MAX_TEXT]
