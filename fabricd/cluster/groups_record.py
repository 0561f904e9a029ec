"""What a restarted daemon must know of running groups, in one file each.

The files are of mode 0600 in a directory of mode 0700, and are replaced atomically. They are not forced to the disk:
they outlive the daemon, and need not outlive the host, whose end ends the ranks too.
"""

import logging
import os
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from fabricd.cluster.groups_access import Access
from fabricd.cluster.groups_failure import Failure, Member
from fabricd.cluster.groups_fence import Fences
from fabricd.cluster.groups_state import FAILED_SECONDS, FIRST_WATCH_SECONDS, GroupState
from fabricd.errors import ParseError
from fabricd.model.codec import from_json, to_json
from fabricd.model.plan import GroupPlan
from fabricd.model.wire import GROUP_NAME, GroupPhase
from fabricd.smallfile import read_bytes

_log = logging.getLogger("fabricd.groups")

#: Raise it when older records cannot be read any more; they are then left out.
_VERSION = 1
_SUFFIX = ".group.json"
#: Of a record: the plan and the keys of the largest group take a part of it.
_MAX_BYTES = 1 << 29


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberRecord:
    """A member, without what ends with the daemon."""

    rank: int
    claim: str  #: hashed
    host: str
    pid: int
    left: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRecord:
    """A group that runs or has failed."""

    version: int = _VERSION
    name: str
    incarnation: int
    size: int
    engine: str
    kvsname: str
    owner: str
    access: Access
    members: tuple[MemberRecord, ...]
    rounds_done: int
    last_keys: dict[str, str]
    plan: GroupPlan | None = None
    failure: Failure | None = None


def record_of(state: GroupState, access: Access, owner: str) -> GroupRecord:
    """Return what is to be kept of a group."""
    return GroupRecord(
        name=state.name,
        incarnation=state.incarnation,
        size=state.size,
        engine=state.engine,
        kvsname=state.kvsname,
        owner=owner,
        access=access,
        members=tuple(
            MemberRecord(rank=one.rank, claim=one.claim, host=one.host, pid=one.pid, left=one.left)
            for one in state.members.values()
        ),
        rounds_done=state.fences.done,
        last_keys=state.fences.last_keys,
        plan=state.plan,
        failure=state.failure,
    )


def state_of(record: GroupRecord, now: float, *, max_bytes: int) -> GroupState:
    """Return the group as it goes on: every member has time to open its watch again."""
    due = None if record.failure else now + FIRST_WATCH_SECONDS
    members = {
        one.rank: Member(
            rank=one.rank,
            claim=one.claim,
            host=one.host,
            pid=one.pid,
            left=one.left,
            due=None if one.left else due,
        )
        for one in record.members
    }
    return GroupState(
        name=record.name,
        size=record.size,
        kvsname=record.kvsname,
        incarnation=record.incarnation,
        engine=record.engine,
        deadline=now,
        max_bytes=max_bytes,
        phase=GroupPhase.FAILED if record.failure else GroupPhase.RUNNING,
        members=members,
        plan=record.plan,
        failure=record.failure,
        fences=Fences(done=record.rounds_done, last_keys=record.last_keys),
        left=[one.rank for one in record.members if one.left],
        forget_at=now + FAILED_SECONDS if record.failure else None,
    )


def _can_be(record: GroupRecord) -> bool:
    """Whether a group can have come to that. A disk that was full, or a hand, may have left anything."""
    ranks = {one.rank for one in record.members}
    planned = record.failure is not None or (record.plan is not None and len(record.plan.ranks) == record.size)
    return (
        re.fullmatch(GROUP_NAME, record.name) is not None
        and re.fullmatch("[0-9a-f]{32}", record.access.salt) is not None
        and len(record.members) == record.size > 0
        and ranks == set(range(len(record.members)))
        and min(record.incarnation, record.rounds_done) >= 0
        and planned
    )


class GroupStore:
    """The directory of the records. What cannot be read is logged; its job goes on without this daemon.

    Args:
        directory: made if it is not there.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def save(self, record: GroupRecord) -> None:
        """Write a record in place of its older version, which stays where that fails.

        Raises:
            OSError: it cannot be written.
        """
        path = self._path(record.kvsname)
        draft = path.with_suffix(".tmp")
        try:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
            with open(descriptor, "wb") as file:
                file.write(to_json(record))
            draft.replace(path)
        except OSError:
            with suppress(OSError):
                draft.unlink()
            raise

    def remove(self, kvsname: str) -> None:
        """Forget a record."""
        try:
            self._path(kvsname).unlink(missing_ok=True)
        except OSError as error:
            _log.warning("a group's record stays behind: %s", error)

    def load(self) -> list[GroupRecord]:
        """Return all records that can be read; those that make no sense are removed."""
        found = []
        for path in sorted(self._directory.glob(f"*{_SUFFIX}")):
            try:
                record = from_json(read_bytes(path, _MAX_BYTES), GroupRecord, what=str(path))
                if record.version != _VERSION or self._path(record.kvsname) != path:
                    raise ParseError(f"{path} is of version {record.version}, or of another group")
                if not _can_be(record):
                    raise ParseError(f"{path} holds what no group can be")
                found.append(record)
            except OSError as error:
                _log.warning("left out, and left where it is: %s", error)
            except ParseError as error:
                _log.warning("left out: %s", error)
                with suppress(OSError):
                    path.unlink()
        for path in self._directory.glob("*.tmp"):
            with suppress(OSError):
                path.unlink()
        return found

    def _path(self, kvsname: str) -> Path:
        return self._directory / f"{kvsname}{_SUFFIX}"
