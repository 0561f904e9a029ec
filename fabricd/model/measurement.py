"""What active probes between nodes found."""

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
