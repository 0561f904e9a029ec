"""How the ranks of one collective should talk: rings or trees, their ports, and how good that is. Data, replayable.

Ranks are numbered over all nodes: those of the first node, then those of the second. Bandwidths are bus bandwidth in
the sense of nccl-tests, so that figures of different collectives and numbers of ranks compare with the links' own.
"""

from dataclasses import dataclass

from fabricd.model.path import Hop, PathType
from fabricd.model.plan import Island, Setting


@dataclass(frozen=True, slots=True, kw_only=True)
class Channel:
    """A ring over all ranks."""

    ring: tuple[int, ...]  #: ranks in order; the last sends to the first
    #: Of each node, in the nodes' order: the ports by which the ring enters and leaves, as NCCL's net devices. None
    #: within one node.
    nics: tuple[tuple[int, int], ...] | None = None
    bandwidth_bytes_per_second: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Tree:
    """A tree over all ranks, with data running away from its root, or towards it."""

    root: int
    arcs: tuple[tuple[int, int], ...]  #: (sender, receiver), nearest to the root first
    toward_root: bool = False  #: the half of an all-reduce that reduces; else the half that spreads the result
    bandwidth_bytes_per_second: float = 0.0  #: of the message's own bytes, not bus bandwidth


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """What a collective is expected to take."""

    time_seconds: float
    busbw_bytes_per_second: float
    #: Where the bus bandwidth is expected to lie; None where nothing is known of the error.
    busbw_low_bytes_per_second: float | None = None
    busbw_high_bytes_per_second: float | None = None
    algorithm: str = ""  #: NCCL's name: Ring, Tree, NVLS, ...
    protocol: str = ""  #: NCCL's name: LL, LL128, Simple
    basis: str = ""  #: the model and what it was fitted to


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchedChannel:
    """One channel that NCCL's search found on a machine."""

    ranks: tuple[int, ...]  #: in order; of NVLS the head alone
    nets: tuple[int, int] | None = None  #: ports by which data enter and leave, as net devices


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """What a search of NCCL's finds on the first machine of a kind."""

    algorithm: str  #: "ring", "tree" or "nvls"
    machine: str
    channels: tuple[SearchedChannel, ...] = ()
    bandwidth_intra_bytes_per_second: float = 0.0  #: of each channel between GPUs
    bandwidth_inter_bytes_per_second: float = 0.0  #: of each channel to the network
    type_intra: PathType = PathType.LOC  #: worst path between GPUs
    type_inter: PathType = PathType.LOC  #: worst path to the network
    crossing: bool = False  #: channels come in pairs that leave by each other's port


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    """Another way to do the same, beside the plan."""

    name: str  #: "nccl", "equal speed", "trees", "nvls", "sharp"
    bandwidth_bytes_per_second: float | None = None
    channels: tuple[Channel, ...] = ()
    count: int = 0  #: of channels or trees; those of "trees" and "nvls" are not listed
    predicted: Prediction | None = None
    because: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectivePlan:
    """The plan of one collective."""

    collective: str  #: all_reduce, all_gather, reduce_scatter, broadcast, reduce
    bytes: int  #: of the larger of the whole send and receive buffer
    ranks: tuple[str, ...]  #: the GPU of each rank, "gpu0"; of several nodes "NODE/gpu0"
    nodes: int = 1  #: those of one NVLink domain count as one
    view: str = "physical"  #: "nccl" for what NCCL does by itself
    kind: str = "rings"  #: or "trees"
    routes: str = "engine"  #: "engine": one route a pair, as NCCL has them; "free": any route, split at will
    channels: tuple[Channel, ...] = ()
    trees: tuple[Tree, ...] = ()
    bandwidth_bytes_per_second: float = 0.0
    #: What no schedule without reduction in the network can exceed on these links, whatever the routes.
    bound_bytes_per_second: float = 0.0
    #: The most that any plan of this kind on these routes can have; None where it is not known to be the most.
    limit_bytes_per_second: float | None = None
    bottleneck: tuple[Hop, ...] = ()  #: links that hold the plan back
    predicted: Prediction | None = None
    alternatives: tuple[Alternative, ...] = ()
    searches: tuple[Search, ...] = ()  #: in NCCL's view
    settings: tuple[Setting, ...] = ()
    #: Where something faster joins some nodes than the TCP that joins all; none where that is not so.
    islands: tuple[Island, ...] = ()
    because: tuple[str, ...] = ()
