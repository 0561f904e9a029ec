"""One communicator and one fault: what happens, and what the ranks make of it."""

import json
import random
import re
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from subprocess import Popen
from typing import Any

from tests.faults.rank import CREATE_SECONDS, OPERATION_SECONDS
from tests.faults.world import CONTROL, DATA, World

#: What starting, noticing and ending may take beside the ranks' own deadlines, on a machine that is busy.
MARGIN_SECONDS = 15.0
#: A host that says nothing is given up by the daemon, and by MPI's thread on the other side, after as long.
_SILENCE_SECONDS = 15.0
_RANK = [sys.executable, "-m", "tests.faults.rank"]


class Fault(StrEnum):
    """What happens."""

    KILL = "kill"  #: a rank is killed
    STOP = "stop"  #: a rank is stopped, and goes on when the others have ended
    LINK = "link"  #: the cable of a host's planned network is pulled
    CUT = "cut"  #: all cables of the host without the group's daemon are
    DAEMON_KILLED = "daemon killed"
    DAEMON_RESTARTED = "daemon restarted"  #: killed, and started again


class Moment(StrEnum):
    """When."""

    JOINING = "joining"  #: at some time while the ranks start, join and start MPI
    RUNNING = "running"  #: in the middle of operations
    CLOSING = "closing"  #: when the ranks have been told to end


#: What a fault may come to, where the ranks do not end well.
ERRORS = {
    Fault.KILL: {"RankLostError", "GroupTimeoutError"},
    Fault.STOP: {"OperationTimeoutError", "GroupAbortedError", "GroupTimeoutError", "EngineError"},
    Fault.LINK: {"OperationTimeoutError", "GroupAbortedError", "RankLostError", "GroupTimeoutError", "EngineError"}
    | {"NoNetworkError"},  # it was down when the group was planned
    Fault.CUT: {"OperationTimeoutError", "GroupAbortedError", "RankLostError", "GroupTimeoutError", "EngineError"}
    | {"UnreachableError"},
    Fault.DAEMON_KILLED: {"UnreachableError", "GroupTimeoutError", "EngineError"},
    Fault.DAEMON_RESTARTED: set(),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """A communicator's fate."""

    number: int
    fault: Fault
    moment: Moment
    hosts: tuple[int, ...]  #: of each rank
    victim: int  #: a rank
    delay: float  #: seconds after the moment

    def __str__(self) -> str:
        where = f"{len(self.hosts)} ranks on {len(set(self.hosts))} hosts"
        return f"{self.number:3d} {self.fault}, {self.moment} +{self.delay * 1000:.0f} ms, {where}, rank {self.victim}"


@dataclass(slots=True, kw_only=True)
class Report:
    """What became of it."""

    seconds: float = 0.0  #: from the fault to the end of the last rank that must end
    outcomes: list[str] = field(default_factory=list)  #: of each rank
    wrong: list[str] = field(default_factory=list)


def choose(number: int, draw: random.Random) -> Round:
    """Return a round."""
    fault = draw.choice(list(Fault))
    moment = draw.choices(list(Moment), weights=(4, 5, 1))[0]
    two_hosts = fault in (Fault.LINK, Fault.CUT) or draw.random() < 0.5
    size = draw.randint(2, 4)
    hosts = tuple(sorted(rank % 2 if two_hosts else 0 for rank in range(size)))
    # Whose host is cut off: the one without the group's daemon.
    victim = size - 1 if fault is Fault.CUT else draw.randrange(size)
    spread = {Moment.JOINING: 1.2, Moment.RUNNING: 0.3, Moment.CLOSING: 0.03}[moment]
    return Round(number=number, fault=fault, moment=moment, hosts=hosts, victim=victim, delay=draw.uniform(0, spread))


def play(world: World, plan: Round) -> Report:
    """Let a round happen, and judge it. Whatever became of the ranks, none lives on, and the world is whole again."""
    report = Report()
    world.remember()
    stop = world.folder / f"stop-{plan.number}"
    with _ranks(world, plan, str(stop)) as ranks:
        if plan.moment is not Moment.JOINING and not _wait_started(world, plan, ranks):
            report.wrong.append("not all ranks started")
        if plan.moment is Moment.CLOSING:
            stop.touch()
        time.sleep(plan.delay)
        began = time.monotonic()
        with _happening(world, plan, ranks[plan.victim]) as awaited:
            # These need not end a communicator, that was made or is being made.
            if plan.moment is Moment.JOINING or plan.fault in (Fault.DAEMON_KILLED, Fault.DAEMON_RESTARTED):
                _wait_started(world, plan, ranks)
                stop.touch()
            late = _wait(ranks, awaited, _limit(plan))
            report.wrong += [f"rank {rank} hangs after {_limit(plan):g} s" for rank in late]
            report.seconds = time.monotonic() - began
        stop.touch()
        # One that was stopped before it came begins the group anew, alone.
        late = _wait(ranks, range(len(ranks)), CREATE_SECONDS + OPERATION_SECONDS + MARGIN_SECONDS)
        report.wrong += [f"rank {rank} hangs when all is well again" for rank in late if not report.wrong]
    for rank, process in enumerate(ranks):
        outcome, wrong = _judged(world, plan, rank, process.returncode)
        report.outcomes.append(outcome)
        report.wrong += wrong
    report.wrong += [f"left behind: {what}" for what in world.left()]
    return report


def _name(plan: Round, rank: int) -> str:
    return f"{plan.number}-{rank}"


@contextmanager
def _ranks(world: World, plan: Round, stop: str) -> Iterator[list["Popen[str]"]]:
    ranks = []
    try:
        for rank, host in enumerate(plan.hosts):
            variables = {
                "RANK": str(rank),
                "WORLD_SIZE": str(len(plan.hosts)),
                "FABRICD_GROUP": f"faults-{plan.number}",
            }
            ranks.append(world.start_rank(host, _name(plan, rank), variables, [*_RANK, stop]))
        yield ranks
    finally:
        for process in ranks:
            process.kill()
            process.wait()


@contextmanager
def _happening(world: World, plan: Round, victim: "Popen[str]") -> Iterator[list[int]]:
    """Let the fault happen; yield the ranks that must end meanwhile; afterwards all is well again."""
    everybody = list(range(len(plan.hosts)))
    others = [rank for rank in everybody if rank != plan.victim]
    host = world.hosts[plan.hosts[plan.victim]]
    match plan.fault:
        case Fault.KILL:
            victim.kill()
            yield everybody
        case Fault.STOP:
            victim.send_signal(signal.SIGSTOP)
            yield others
            victim.send_signal(signal.SIGCONT)
        case Fault.LINK | Fault.CUT:
            links = [host.link(name) for name in ((DATA,) if plan.fault is Fault.LINK else (DATA, CONTROL))]
            for link in links:
                link.pull()
            try:
                yield everybody
            finally:
                for link in links:
                    link.plug()
                world.settle()
        case Fault.DAEMON_KILLED | Fault.DAEMON_RESTARTED:
            world.kill_daemon()
            if plan.fault is Fault.DAEMON_RESTARTED:
                world.restart_daemon()
            try:
                yield everybody
            finally:
                if plan.fault is Fault.DAEMON_KILLED:
                    world.restart_daemon()
                world.settle()


def _limit(plan: Round) -> float:
    """Return the seconds after which every rank must have ended."""
    seconds = MARGIN_SECONDS + OPERATION_SECONDS
    if plan.moment is Moment.JOINING:  # to come, and to start MPI
        seconds += 2 * CREATE_SECONDS
    return seconds + (_SILENCE_SECONDS if plan.fault in (Fault.LINK, Fault.CUT) else 0.0)


def _wait_started(world: World, plan: Round, ranks: list["Popen[str]"]) -> bool:
    """Wait until every rank has its communicator, or one has ended; tell whether they all have."""
    deadline = time.monotonic() + 2 * CREATE_SECONDS + MARGIN_SECONDS
    while time.monotonic() < deadline:
        if all('"started"' in world.said(_name(plan, rank))[0] for rank in range(len(ranks))):
            return True
        if any(process.poll() is not None for process in ranks):
            return False
        time.sleep(0.02)
    return False


def _wait(ranks: list["Popen[str]"], awaited: Any, seconds: float) -> list[int]:
    """Wait for the end of some ranks; return those that have not ended then."""
    deadline = time.monotonic() + seconds
    while (late := [rank for rank in awaited if ranks[rank].poll() is None]) and time.monotonic() < deadline:
        time.sleep(0.02)
    return late


def _judged(world: World, plan: Round, rank: int, status: int | None) -> tuple[str, list[str]]:
    """Return how a rank ended, in a word, and what is wrong with that."""
    out, err = world.said(_name(plan, rank))
    told = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
    last = told[-1] if told else {}
    if plan.fault is Fault.KILL and rank == plan.victim:
        return "killed", []
    if status == 0 and last.get("ended") == "well":
        must_fail = plan.moment is Moment.RUNNING and not plan.fault.startswith("daemon")
        return "well", [f"rank {rank} ended well, whatever happened"] if must_fail else []
    if status != 1 or "error" not in last:
        return f"status {status}", [f"rank {rank} ended with status {status} and no typed error: {err[-1500:]}"]
    kind, text = last["error"], last["text"]
    wrong = []
    if kind not in ERRORS[plan.fault] or (plan.moment is Moment.RUNNING and plan.fault.startswith("daemon")):
        wrong.append(f"rank {rank} ended with {kind}: {text}")
    # Of a communicator that is closed, all ranks have said farewell, and what has not ended is only MPI itself.
    closing = plan.moment is Moment.CLOSING and kind == "EngineError" and "did not end" in text
    if rank != plan.victim and not closing and not _names(plan, text):
        wrong.append(f"rank {rank}'s error names neither rank nor link: {kind}: {text}")
    return kind, wrong


def _names(plan: Round, text: str) -> bool:
    """Tell whether an error says who or what it was: the rank, its host's link, or the daemon."""
    ranks = (
        number for found in re.findall(r"ranks? ([0-9]+(?:, ?[0-9]+|-[0-9]+)*)", text) for number in _numbers(found)
    )
    if plan.victim in ranks:
        return True
    if plan.fault in (Fault.LINK, Fault.CUT):
        return f"h{plan.hosts[plan.victim]}" in text or "no answer from the daemon at http" in text
    return plan.fault.startswith("daemon") and "daemon at http" in text


def _numbers(text: str) -> Iterator[int]:
    for part in text.split(","):
        first, _, last = part.partition("-")
        yield from range(int(first), int(last or first) + 1)
