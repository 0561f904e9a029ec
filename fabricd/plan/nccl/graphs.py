"""What a search of NCCL's ends in: channels, and the speed they all share."""

from dataclasses import dataclass
from enum import IntEnum

from fabricd.paths.nccl.kinds import PathKind


class Pattern(IntEnum):
    """Shape of a channel within one machine, by NCCL's numbers."""

    BALANCED_TREE = 1  #: traffic to the network spread over the first two GPUs
    SPLIT_TREE = 2  #: in by the first GPU, out by the second
    TREE = 3  #: in and out by the first GPU
    RING = 4
    NVLS = 5  #: all GPUs through the NVSwitch, which reduces


@dataclass(frozen=True, slots=True, kw_only=True)
class Channel:
    """One channel on one machine.

    Attributes:
        ranks: the GPUs in order; of NVLS the head alone.
        nets: ids of the ports (host index << 56 | plugin index) by which data enter and leave; None within one machine.
    """

    ranks: tuple[int, ...]
    nets: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchGraph:
    """A search's result.

    Attributes:
        pattern: shape of all channels.
        channels: those found; none if the pattern is not possible here.
        bandwidth_intra: of each channel between GPUs, GB/s.
        bandwidth_inter: of each channel to the network, GB/s.
        type_intra: worst path type allowed between GPUs.
        type_inter: worst path type allowed to the network.
        cross_nic: 2 if channels come in pairs that leave by each other's port.
        same_channels: all channels have the same order.
        latency_inter: of the slowest port, microseconds.
        hops: links used in all.
    """

    pattern: Pattern
    channels: tuple[Channel, ...] = ()
    bandwidth_intra: float = 0.0
    bandwidth_inter: float = 0.0
    type_intra: PathKind = PathKind.LOC
    type_inter: PathKind = PathKind.LOC
    cross_nic: int = 0
    same_channels: bool = False
    latency_inter: float = 0.0
    hops: int = 0
