"""A network: a set of ports that can reach each other."""

from dataclasses import dataclass

from fabricd.model.observation import Evidence
from fabricd.model.path import Transport


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkPort:
    """A port of a node on a network."""

    node: str  #: node_id
    interface: str  #: network interface, or "mlx5_0:1" for an HCA port
    address: str = ""  #: IP address on this network
    speed_bytes_per_second: int | None = None
    virtual: bool = False  #: no hardware backs it
    numa_node: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """Ports that can reach each other, by a rule (assumed) or because they did (measured)."""

    name: str  #: e.g. "10.1.0.0/24", "ib:fe80:0000:0000:0000"
    transport: Transport
    ports: tuple[NetworkPort, ...] = ()
    verified: Evidence = Evidence.ASSUMED
    role: str = "data"  #: "data", "management", "container", "vpn", ...
    reason: str = ""  #: which facts put the ports together, or gave the role
