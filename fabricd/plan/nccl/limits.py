"""What NCCL's search tries on a machine: speeds of a channel, from the highest, and types of paths, from the best.

Source: NCCL 2.30, graph/search.cc.
"""

from dataclasses import dataclass

from fabricd.paths.nccl.kinds import PathKind
from fabricd.plan.nccl.graphs import Pattern
from fabricd.plan.nccl.machine import Machine

_SPEEDS_INTRA = (
    (0, (40, 30, 20, 18, 15, 12, 10, 9, 7, 6, 5, 4, 3)),
    (90, (60, 50, 40, 30, 24, 20, 15, 12, 11, 6, 3)),
    (100, (90, 80, 70, 60, 50, 45, 40, 30, 24, 20, 19, 18)),
)
_SPEEDS_INTER = (
    (0, (48, 30, 28, 24, 20, 18, 15, 12, 10, 9, 7, 6, 5, 4, 3, 2.4, 1.2, 0.24, 0.12)),
    (90, (48, 45, 42, 40, 30, 24, 22, 20, 17.5, 15, 12, 6, 3, 2.4, 1.2, 0.24, 0.12)),
    (100, (96, 86, 80, 48, 45.1, 42, 40, 30, 24, 22, 20, 17.5, 15, 12, 6, 3, 2.4, 1.2, 0.24, 0.12)),
)


@dataclass(frozen=True, slots=True)
class Limits:
    """Within what a search for one pattern stays.

    Attributes:
        speeds: to try for a channel, GB/s, the highest first.
        types_intra: best and worst type of paths between GPUs.
        types_inter: of paths between GPUs and ports.
        kinds_intra: all types that there are between GPUs, and between them and an NVSwitch.
        kinds_inter: all types that there are between GPUs and ports.
        cross_nic: whether channels may leave by another port than they entered by: 0 no, 1 yes, 2 in pairs.
    """

    speeds: tuple[float, ...]
    types_intra: tuple[int, int]
    types_inter: tuple[int, int]
    kinds_intra: frozenset[int]
    kinds_inter: frozenset[int]
    cross_nic: int

    @classmethod
    def of(cls, machine: Machine, pattern: Pattern) -> "Limits":
        """Return them for a pattern on a machine."""
        pairs = [track.kind for a, row in enumerate(machine.between) for b, track in enumerate(row) if a != b]
        types_intra = (min(pairs), max(pairs)) if pairs else (0, int(PathKind.SYS))
        types_inter = (int(PathKind.PIX), int(PathKind.SYS))
        if machine.nets:
            ways = [track.kind for row in machine.outward for track in row]
            types_inter = (min(ways), max(ways) if machine.sm >= 90 else int(PathKind.SYS))
        tracks = [*machine.up, *machine.down, *(track for row in machine.between for track in row)]
        ports = [track for row in (*machine.outward, *machine.inward) for track in row]
        crossable = len(machine.nets) > 1 and pattern in (Pattern.RING, Pattern.BALANCED_TREE, Pattern.SPLIT_TREE)
        return cls(
            speeds=_speeds(machine.sm, between_nodes=bool(machine.nets)),
            types_intra=(min(types_intra[0], PathKind.SYS), types_intra[1]),
            types_inter=(min(types_inter[0], PathKind.SYS), types_inter[1]),
            kinds_intra=frozenset(track.kind for track in tracks),
            kinds_inter=frozenset(track.kind for track in ports),
            cross_nic=machine.table.environment.cross_nic if crossable else 0,
        )


def fastest_channel(sm: int, *, between_nodes: bool) -> float:
    """Return the highest speed that a search tries for one channel, GB/s: about what one keeps up with."""
    return _speeds(sm, between_nodes=between_nodes)[0]


def _speeds(sm: int, *, between_nodes: bool) -> tuple[float, ...]:
    tables = _SPEEDS_INTER if between_nodes else _SPEEDS_INTRA
    return next(speeds for least, speeds in reversed(tables) if sm >= least)


def is_split(machine: Machine) -> bool:
    """Return whether NVLink joins the GPUs to exactly two islands of more than one."""
    count = len(machine.gpus)
    island = list(range(count))
    for gpu in range(count):
        for later in range(gpu + 1, count):
            if machine.between[gpu][later].kind == PathKind.NVL:
                island[later] = island[gpu]
    return sum(island.count(first) > 1 for first in set(island)) == 2
