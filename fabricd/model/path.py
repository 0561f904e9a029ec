"""A path between two ports or devices, ranked and explained."""

from dataclasses import dataclass
from enum import StrEnum

from fabricd.model.observation import Evidence, missing_word
from fabricd.model.transport import Transport as Transport  # what a path's figures are told by


class PathType(StrEnum):
    """NCCL's path types, nearest first."""

    LOC = "LOC"  #: the same device
    NVL = "NVL"  #: NVLink
    NVB = "NVB"  #: NVLink through another GPU
    C2C = "C2C"  #: chip to chip, to the CPU
    PIX = "PIX"  #: at most one PCIe bridge
    PXB = "PXB"  #: several PCIe bridges, no host bridge
    P2C = "P2C"  #: GPU to NIC through C2C and the CPU
    PXN = "PXN"  #: through a GPU beside the NIC
    PHB = "PHB"  #: through a host bridge
    SYS = "SYS"  #: across NUMA nodes
    NET = "NET"  #: across a network
    DIS = "DIS"  #: no path
    OTHER = "other"  #: a type that this version does not know

    @classmethod
    def _missing_(cls, value: object) -> "PathType | None":
        return missing_word(value, cls.OTHER)


#: What paths are compared for, unless a request says otherwise: large enough for bandwidth to decide.
DEFAULT_BYTES = 1 << 30


class Policy(StrEnum):
    """What puts one path before another."""

    FASTEST = "fastest"  #: the least estimated time; the class of transport where times are equal
    PRIORITY = "priority"  #: the class of transport, strictly; within a class the least time


@dataclass(frozen=True, slots=True, kw_only=True)
class Hop:
    """One edge of a path."""

    src: str  #: vertex name, "node/eth0", "node/numa0", "node/0000:17:00.0", "network:10.1.0.0/24"
    dst: str
    link: str  #: "nvlink", "c2c", "pcie", "memory", "interconnect", "port", "local", "network"
    bandwidth_bytes_per_second: float | None = None
    latency_seconds: float | None = None
    evidence: Evidence = Evidence.ASSUMED
    detail: str = ""  #: e.g. "16 GT/s x16", "12 links", "tap, virtual"
    count: int = 1  #: parallel links whose sum the bandwidth is


@dataclass(frozen=True, slots=True, kw_only=True)
class PathEnd:
    """How one end of a path between nodes uses its port."""

    port: str  #: vertex name, "node/mlx5_0:1"; of an NVLink domain the GPU itself
    address: str = ""  #: IP address on the network
    gid_index: int | None = None  #: entry of the port's GID table for that address; InfiniBand's is 0
    gid_type: str = ""  #: "ib", "roce-v1", "roce-v2"
    mtu_bytes: int | None = None  #: active MTU of an RDMA port, else the interface's
    leaf: str = ""  #: switch and port that it is plugged into, where LLDP or a walk over the fabric tells
    type: PathType = PathType.DIS  #: how far the port is from the end by the straight way
    nearest: bool = False  #: no other port of this node on the network is nearer to the end
    relay: str = ""  #: GPU beside the port that passes on what is for it (NCCL's PXN); "" without
    #: GPUDirect: the port reads and writes the GPU's memory. None: there is no GPU at this end, or it is not known.
    gdr: bool | None = None
    why: str = ""  #: the facts behind ``gdr``


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """How long a transfer takes: the latency, and the bytes over this flow's share of the bottleneck."""

    bytes: int
    flows: int  #: that share the path evenly
    time_seconds: float | None  #: None where the bandwidth is not known
    latency_seconds: float | None
    transfer_seconds: float | None
    share_bytes_per_second: float | None  #: what one flow gets of the bottleneck
    latency_evidence: Evidence = Evidence.ASSUMED
    bandwidth_evidence: Evidence = Evidence.ASSUMED


@dataclass(frozen=True, slots=True, kw_only=True)
class Path:
    """One candidate."""

    src: str
    dst: str
    view: str = "physical"
    type: PathType = PathType.DIS
    transport: Transport = Transport.UNKNOWN
    #: The bottleneck; None when no hop's figure is known.
    bandwidth_bytes_per_second: float | None = None
    latency_seconds: float | None = None
    hops: tuple[Hop, ...] = ()
    evidence: Evidence = Evidence.ASSUMED  #: the weakest of its hops
    measured_age_seconds: float | None = None
    gdr: bool | None = None  #: GPUDirect: without a copy through host memory
    virtual: bool = False  #: crosses an interface that no hardware backs
    rank: int = 0  #: 1 is the best
    network: str = ""  #: between nodes: the name of the network that is crossed
    role: str = ""  #: what that network is for, one of ``fabricd.model.network.ROLES``
    ends: tuple[PathEnd, ...] = ()  #: between nodes: the sending end, then the receiving one
    estimate: Estimate | None = None
    #: Conditions of this path that nothing shows to hold, one sentence each. Such a path comes after all others.
    unverified: tuple[str, ...] = ()
    cautions: tuple[str, ...] = ()  #: what makes it worse than its figures say
    #: Facts that its place rests on, one sentence each.
    because: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejected:
    """What was not taken as a candidate, and the fact that rules it out."""

    name: str  #: a port, interface, or class of transport
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """What a pair can exchange over all its paths at once, one direction."""

    bandwidth_bytes_per_second: float | None  #: ``None`` where no link of known bandwidth bounds it
    bottleneck: tuple[Hop, ...] = ()  #: every path crosses one of these links, and they are full


@dataclass(frozen=True, slots=True, kw_only=True)
class PathAnswer:
    """All candidates between two ends, best first."""

    src: str
    dst: str
    view: str = "physical"
    policy: Policy = Policy.FASTEST
    bytes: int = DEFAULT_BYTES  #: that the paths were compared for
    flows: int = 1  #: that share each path
    paths: tuple[Path, ...] = ()
    rejected: tuple[Rejected, ...] = ()
    capacity: Capacity | None = None  #: only when asked for
    notes: tuple[str, ...] = ()  #: what to know of the machines or files that the paths are of
