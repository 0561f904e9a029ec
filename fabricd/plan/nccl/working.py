"""The state of NCCL's search: channels made so far, the settings of an attempt, and its budget of steps."""

from dataclasses import dataclass, field

from fabricd.paths.nccl.kinds import PathKind
from fabricd.plan.nccl.graphs import Pattern


@dataclass(slots=True)
class Working:
    """Channels and settings, of the attempt going on or of the best solution so far.

    Attributes:
        orders: GPUs of each channel, by index.
        ways: ports of each channel by index, in and out; -1 within one machine.
    """

    pattern: Pattern
    min_channels: int = 1
    max_channels: int = 32
    channels: int = 0
    orders: list[list[int]] = field(default_factory=list)
    ways: list[list[int]] = field(default_factory=list)
    bandwidth_intra: float = 0.0
    bandwidth_inter: float = 0.0
    type_intra: int = PathKind.LOC
    type_inter: int = PathKind.LOC
    cross_nic: int = 0
    same_channels: bool = False
    latency_inter: float = 0.0
    hops: int = 0

    def copy_from(self, other: "Working") -> None:
        """Take over everything."""
        for name in self.__slots__:
            value = getattr(other, name)
            setattr(self, name, [list(item) for item in value] if isinstance(value, list) else value)

    def beats(self, best: "Working", *, gpus: int) -> bool:
        """Return whether these channels are to be taken in place of the best so far, on so many GPUs."""
        if self.channels < self.min_channels:
            return False
        if self.pattern is Pattern.NVLS:
            more = best.channels < self.channels <= gpus
            return more or self.channels * self.bandwidth_inter > best.channels * best.bandwidth_inter
        total, so_far = self.channels * self.bandwidth_intra, best.channels * best.bandwidth_intra
        if total != so_far:
            return total > so_far
        return self.pattern is best.pattern and self.cross_nic == best.cross_nic and self.hops < best.hops


class Budget:
    """Steps left; ``perfect`` ends a search that cannot be bettered."""

    __slots__ = ("left", "perfect")

    def __init__(self, steps: int) -> None:
        self.left = steps
        self.perfect = False

    def end_perfect(self) -> None:
        """Let everything return."""
        self.left, self.perfect = 0, True
