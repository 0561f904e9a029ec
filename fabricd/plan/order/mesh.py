"""Parallel training as a mesh: which ranks talk to each other, how much, and how much that matters.

An axis is one way to be parallel: tensor (tp), pipeline (pp), data (dp), expert (ep). The first axis is the one along
which rank numbers follow each other, as in ``[tp 8, dp 16, pp 4]``: ranks 0 to 7 are one tensor-parallel group.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import isfinite, prod

from fabricd.errors import InputError

COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all", "send_recv")
MAX_AXES = 8
_MAX_BYTES = 1 << 50


@dataclass(frozen=True, slots=True, kw_only=True)
class MeshAxis:
    """One way to be parallel."""

    name: str  #: "tp", "pp", "dp", "ep", ...
    size: int
    collective: str = "all_reduce"  #: "send_recv" passes on along the group, without closing the ring
    bytes: int = 1 << 20  #: of one operation, as nccl-tests count them
    weight: float = 1.0  #: operations in a step of training, or any other measure of how much it matters
    #: Distance between two ranks of a group. By default the product of the sizes of the axes before it, of those
    #: without a stride of their own. An axis with a stride lies within others, as experts within data-parallel groups.
    stride: int | None = None
    inside_nvlink: bool | None = None  #: must not leave NVLink; by default so for "tp"

    @property
    def keep_inside(self) -> bool:
        """Whether its groups must not leave NVLink."""
        return self.name == "tp" if self.inside_nvlink is None else self.inside_nvlink


@dataclass(frozen=True, slots=True, kw_only=True)
class Mesh:
    """All axes; one order of the world serves them all."""

    axes: tuple[MeshAxis, ...]

    def groups(self, ranks: int) -> Iterator[tuple[MeshAxis, tuple[int, ...]]]:
        """Yield each group of each axis that has more than one rank.

        Args:
            ranks: in all.

        Raises:
            InputError: the axes do not make that many ranks, or one has values that cannot be.
        """
        for axis, stride in zip(self.axes, self.strides(ranks), strict=True):
            for base in range(ranks if axis.size > 1 else 0):
                if base // stride % axis.size == 0:
                    yield axis, tuple(base + step * stride for step in range(axis.size))

    def strides(self, ranks: int) -> list[int]:
        """Return the distance between two ranks of a group, by axis.

        Raises:
            InputError: as ``groups``.
        """
        self._check(ranks)
        found, following = [], 1
        for axis in self.axes:
            found.append(following if axis.stride is None else axis.stride)
            following *= axis.size if axis.stride is None else 1
        return found

    def _check(self, ranks: int) -> None:
        if not 1 <= len(self.axes) <= MAX_AXES or len({axis.name for axis in self.axes}) < len(self.axes):
            raise InputError(f"a mesh of {len(self.axes)} axes", hint=f"1 to {MAX_AXES}, each with a name of its own")
        for axis in self.axes:
            _check_axis(axis, ranks)
        sizes = [axis.size for axis in self.axes if axis.stride is None]
        if prod(sizes) != ranks:
            shown = " x ".join(f"{axis.name} {axis.size}" for axis in self.axes if axis.stride is None)
            raise InputError(
                f"the mesh {shown} has {prod(sizes)} ranks, and there are {ranks}",
                hint="an axis that lies within others has a stride",
            )


def _check_axis(axis: MeshAxis, ranks: int) -> None:
    if axis.collective not in COLLECTIVES:
        raise InputError(
            f"axis {axis.name[:20]!r}: no collective {axis.collective[:40]!r}", hint=f"one of {', '.join(COLLECTIVES)}"
        )
    fine = axis.size >= 1 and (axis.stride is None or axis.stride >= 1)
    if not fine or ranks % (axis.size * (axis.stride or 1)):
        raise InputError(f"axis {axis.name[:20]!r}: size {axis.size} and stride {axis.stride} do not divide {ranks}")
    if not 0 <= axis.bytes <= _MAX_BYTES or not (isfinite(axis.weight) and axis.weight >= 0):
        raise InputError(f"axis {axis.name[:20]!r}: {axis.bytes} bytes and weight {axis.weight} cannot be")


def traffic(axis: MeshAxis, members: int) -> float:
    """Return the bytes that pass the busiest edge of a ring of so many members in one operation."""
    if axis.collective == "all_reduce":
        return 2 * (members - 1) / members * axis.bytes
    if axis.collective in ("all_gather", "reduce_scatter", "all_to_all"):
        return (members - 1) / members * axis.bytes
    return float(axis.bytes)


def units_of(group: Sequence[int], size: int) -> tuple[int, ...]:
    """Return the blocks of ``size`` consecutive ranks that a group's ranks are in, each once, in its order."""
    return tuple(dict.fromkeys(rank // size for rank in group))
