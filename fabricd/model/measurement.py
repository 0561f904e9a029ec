"""What active probes between nodes found, and how they are asked for.

::

    POST /v1/measure         MeasureRequest -> Measurement     this daemon measures towards one of its peers
    POST /v1/measure/listen  ListenRequest  -> ListenAnswer    asked by the one that measures
    POST /v1/measure/pairs   PairsRequest   -> PairsAnswer     this daemon has pairs of nodes measured
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """One measured way between two nodes: a TCP transfer between two addresses, bound to their interfaces."""

    src_node: str  #: node_id
    dst_node: str
    src_interface: str
    dst_interface: str
    src_address: str
    dst_address: str
    network: str  #: name of the network both addresses are on, e.g. "10.1.0.0/24"
    reachable: bool
    latency_seconds: float | None = None  #: half of the smallest round trip
    bandwidth_bytes_per_second: float | None = None  #: one stream, the slower direction
    bytes_moved: int = 0
    #: Seconds since it was taken, on the clock of the node that took it; clocks are never compared.
    age_seconds: float = 0.0
    reason: str = ""  #: why unreachable


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasureRequest:
    """Measure from an address of this node towards one of a peer."""

    dst_node: str  #: node_id of a configured peer
    src_address: str  #: of this node
    dst_address: str  #: of the peer, as its snapshot has it
    network: str = ""  #: name for the answer
    max_age_seconds: float = 300.0  #: a measurement that is not older will do


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenRequest:
    """Be the other end of one measurement."""

    address: str  #: of the node that is asked
    client_address: str  #: from which the measuring node will connect


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenAnswer:
    """Where to connect within some seconds, and what to say first."""

    port: int
    token: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Two ports of one network, to be measured."""

    network: str
    src_node: str  #: node_id
    dst_node: str
    src_interface: str
    dst_interface: str
    src_address: str
    dst_address: str


#: Pairs of one question.
MAX_PAIRS = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class PairsRequest:
    """Have pairs of nodes measured, many at once; a node takes part in one at a time."""

    pairs: tuple[Pair, ...]  #: at most 512
    max_age_seconds: float = 0.0  #: a measurement that is not older will do


@dataclass(frozen=True, slots=True, kw_only=True)
class Unmeasured:
    """A pair that was not measured, which says nothing of its network."""

    pair: Pair
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PairsAnswer:
    """What was measured, and what was not."""

    measured: tuple[Measurement, ...] = ()
    unmeasured: tuple[Unmeasured, ...] = ()
