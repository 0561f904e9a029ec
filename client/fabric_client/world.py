"""The MPI that runs in this process, once and with its settings for good, and the communicators that share it."""

import zlib
from dataclasses import dataclass

from fabric_client.engine.base import PendingEngine
from fabric_client.engine.mpi import MpiEngine
from fabric_client.joining import Joined
from fabric_client.runner import Runner
from fabricd.errors import CommunicatorError, EngineError
from fabricd.units import format_ranges

_TAGS = 1 << 20


@dataclass(frozen=True, slots=True)
class World:
    """A running MPI."""

    runner: Runner  #: of the first communicator, whose end is MPI's end
    engine: MpiEngine
    name: str  #: 128 random bits, the same on all its ranks; "" where a launcher or the user's code started it

    @property
    def own_place(self) -> str:
        """What this rank tells a group's daemon."""
        return f"{self.name}:{self.engine.rank}" if self.name else ""

    def place_of(self, told: str) -> int | None:
        """Return the rank here of a process that told this; None for one that is not in this MPI."""
        name, _, place = told.rpartition(":")
        fits = bool(name) and name == self.name and place.isdecimal() and int(place) < self.engine.size
        return int(place) if fits else None


_first: World | None = None


def set_world(world: World) -> None:
    """Remember the MPI that this process has."""
    global _first
    _first = world


def current_world() -> World | None:
    """Return the MPI of this process while its first communicator is open and unbroken."""
    return _first if _first is not None and _first.runner.usable else None


def check_together(world: World | None, joined: Joined) -> list[int]:
    """Return the ranks in the running MPI that a group's members are; nothing when no member runs one.

    Raises:
        CommunicatorError: they do not share one, and MPI starts once in a process.
    """
    parts = sorted(joined.answer.plan.ranks, key=lambda part: part.rank)
    if world is None and not any(part.world for part in parts):
        return []
    places = {part.rank: None if world is None else world.place_of(part.world) for part in parts}
    outside = [rank for rank, place in places.items() if place is None]
    found = [place for place in places.values() if place is not None]
    if outside or len(set(found)) != len(found):
        raise CommunicatorError(
            f"some ranks of group {joined.identity.group!r} have a communicator already, and MPI starts once in a "
            f"process: ranks {format_ranges(outside or sorted(places))} are not in the MPI that the others have",
            hint="make a group of ranks of one earlier group, or of new processes",
        )
    return found


def runner_within(
    world: World, places: list[int], joined: Joined, *, timeout: float, operation_timeout: float | None
) -> Runner:
    """Return the runner of a group's communicator inside a running MPI. Only the group's members call it.

    Args:
        world: the running MPI.
        places: the members' ranks there.
        joined: the group.
        timeout: seconds.
        operation_timeout: default of the new communicator.

    Raises:
        FabricError: what became of the group, or of that MPI, meanwhile.
    """
    group = joined.identity.group
    made: list[PendingEngine] = []

    def start() -> PendingEngine:
        made.append(world.engine.subgroup(places, zlib.crc32(group.encode()) % _TAGS))
        return made[0]

    world.runner.run("create", f"creating group {group!r}", timeout, 0, start)
    engine = made[0].engine()
    if engine is None:
        raise EngineError(f"MPI left this rank out of group {group!r}")
    beside = sum(part.host_index == joined.part.host_index for part in joined.answer.plan.ranks)
    return Runner(
        engine, joined.membership, group, timeout=operation_timeout, ranks_on_host=beside, parent=world.runner
    )
