"""Engines by name: those of this package, written out, and third parties' by entry point.

A package adds an engine by an entry point of the group ``fabric_client.engines``, whose name is what
``create_communicator(engine=...)`` takes, and whose object has what :class:`EngineKind` says; a module will do::

    [project.entry-points."fabric_client.engines"]
    acme = "acme_engine"
"""

import importlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Protocol, cast

from fabric_client.engine.base import Engine
from fabric_client.joining import Joined
from fabricd.errors import EngineError, FabricError, InputError, UnavailableError
from fabricd.localview import LocalView
from fabricd.model.plan import GroupPlan, RankSlice
from fabricd.units import format_ranges

ENTRY_POINTS = "fabric_client.engines"
#: Engines of this package that start by :class:`EngineKind`, as module:attribute. MPI and NCCL have a start of their
#: own: there may be an MPI already, and a GPU is chosen.
_OWN = {"gloo": "fabric_client.engine.gloo_start"}
OWN_NAMES = ("mpi", "nccl", *_OWN)
_NAMES_FENCE = 0  #: of the group's daemon; what the engine exchanges comes in those after it


@dataclass(slots=True)
class Meeting:
    """A complete group, as an engine that starts in it sees it.

    Attributes:
        group: its name.
        rank: of this process.
        size: number of ranks.
        plan: what the daemon planned, for an engine of the kind that ``EngineKind.plan`` says.
        part: this rank's part of it: its host, devices, address and settings.
        view: what this process sees; the settings are checked against it by ``engine.settings.choose_settings``.
        deadline: of ``time.monotonic``; an engine that has not started by then raises EngineError.
    """

    group: str
    rank: int
    size: int
    plan: GroupPlan
    part: RankSlice
    view: LocalView
    deadline: float
    _fence: Callable[[int, Mapping[str, str], float], Mapping[str, str]]
    _failure: Callable[[str], FabricError | None]
    _fences: int = _NAMES_FENCE

    def exchange(self, keys: Mapping[str, str]) -> Mapping[str, str]:
        """Give some words to all ranks and return everybody's; over the daemon, authenticated. Collective, blocking.

        Args:
            keys: this rank's words; each key is one rank's alone. An id, an address: no data.

        Raises:
            FabricError: what became of the group.
        """
        number, self._fences = self._fences, self._fences + 1
        return self._fence(number, keys, max(1.0, self.deadline - time.monotonic()))

    def failure(self, what: str) -> FabricError | None:
        """Return why ``what`` cannot end well any more, or None. Cheap: to be asked while waiting."""
        return self._failure(what)


class EngineKind(Protocol):
    """What an entry point names.

    Attributes:
        plan: whose plan suits it: ``"mpi"`` (MPICH over UCX), ``"gloo"`` (TCP over one interface), ``"nccl"``, or
            ``"nccl+gloo"``. The settings of other libraries mean nothing to it; the networks and their order do.
    """

    plan: str

    def check(self) -> None:
        """Refuse before anybody is made to wait.

        Raises:
            UnavailableError: something is not installed; the hint is the line to run.
        """
        ...

    def start(self, meeting: Meeting) -> Engine:
        """Return the engine, when it has started on every rank, or raise: the group is then ended for all.

        Raises:
            FabricError: it did not start.
        """
        ...


def find_engine(name: str) -> EngineKind:
    """Return the engine of a name, neither mpi nor nccl.

    Raises:
        InputError: there is none; lists those there are.
        UnavailableError: its package cannot be loaded, or two packages bring one of that name.
    """
    if name in _OWN:
        return cast("EngineKind", importlib.import_module(_OWN[name]))
    found = list(entry_points(group=ENTRY_POINTS, name=name))
    if not found:
        raise InputError(f"no engine called {name[:40]!r}", hint=f"valid: {', '.join(engine_names())}")
    if len(found) > 1:
        packages = " and ".join(sorted(_package_of(one) for one in found))
        raise UnavailableError(f"several packages bring an engine {name!r}: {packages}", hint="uninstall all but one")
    return _loaded(found[0])


def engine_names() -> list[str]:
    """Return the names that ``create_communicator`` takes here; None chooses among the first two."""
    return [*OWN_NAMES, *sorted({one.name for one in entry_points(group=ENTRY_POINTS)} - set(OWN_NAMES))]


def start_engine(name: str, kind: EngineKind, joined: Joined, *, timeout: float) -> Engine:
    """Start an engine in a complete group.

    Raises:
        EngineError: the ranks ask for different engines, or it did not start.
        FabricError: what became of the group meanwhile.
    """
    meeting = Meeting(
        group=joined.identity.group,
        rank=joined.answer.rank,
        size=joined.answer.size,
        plan=joined.answer.plan,
        part=joined.part,
        view=joined.view,
        deadline=time.monotonic() + timeout,
        _fence=lambda number, keys, seconds: joined.rendezvous.fence(number, keys, timeout=seconds),
        _failure=joined.membership.failure,
    )
    _check_same(meeting, name)
    return kind.start(meeting)


def _check_same(meeting: Meeting, name: str) -> None:
    """Refuse ranks of different engines, which may all follow one plan."""
    told = meeting.exchange({f"engine/{meeting.rank}": name})
    names: dict[str, list[int]] = {}
    for rank in range(meeting.size):
        names.setdefault(told.get(f"engine/{rank}", "?"), []).append(rank)
    if len(names) > 1:
        raise EngineError(
            "the ranks ask for different engines: "
            + "; ".join(f"{engine[:40]} at rank {format_ranges(ranks)}" for engine, ranks in sorted(names.items())),
            hint="pass the same on every rank",
        )


def _loaded(entry: EntryPoint) -> EngineKind:
    package = _package_of(entry)
    try:
        kind: Any = entry.load()
    except Exception as error:
        raise UnavailableError(
            f"the engine {entry.name!r} of {package} cannot be loaded: {type(error).__name__}: {error}",
            hint=f"reinstall {package}",
        ) from error
    missing = [name for name in ("plan", "check", "start") if not hasattr(kind, name)]
    if missing:
        raise UnavailableError(
            f"the engine {entry.name!r} of {package} has no {' and no '.join(missing)}",
            hint=f"{package} is made for another version of fabricd",
        )
    return cast("EngineKind", kind)


def _package_of(entry: EntryPoint) -> str:
    return "an unknown package" if entry.dist is None else f"{entry.dist.name} {entry.dist.version}"
