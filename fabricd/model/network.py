"""A network: a set of ports that can reach each other; what it is for; and what a site says of its networks."""

from dataclasses import dataclass

from fabricd.model.observation import Evidence
from fabricd.model.transport import Transport

#: Rules of one node that count.
MAX_RULES = 256
#: What networks are for, the best for jobs' data first. "data": no fact speaks against it.
ROLES = ("compute", "data", "storage", "management", "container", "vpn")


def role_rank(role: str) -> int:
    """Return a role's place among those that jobs' data should go over: 0 is best. An unknown one comes last."""
    return ROLES.index(role) if role in ROLES else len(ROLES)


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkRule:
    """What a site says of its ports: those that match in everything that is given have this name and role.

    Ports of one name and transport are one network, whatever facts would make of them.
    """

    name: str = ""  #: "" leaves the name
    role: str = ""  #: one of ``ROLES``; "" leaves the role
    interface: str = ""  #: pattern with ``*``, ``?`` and ``[...]`` of interfaces and HCA ports: "ens*", "mlx5_[0-3]:1"
    subnet: str = ""  #: the address lies in it: "10.1.0.0/16"
    vlan: int | None = None
    pkey: int | None = None  #: the InfiniBand port is in this partition; the membership bit does not count
    prefix: str = ""  #: subnet prefix of the InfiniBand port: "fec0:0000:0000:0001"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rail:
    """A network that joins ports of one place in their nodes: the third adapter of each, say."""

    index: int  #: counts a node's ports for jobs' data, in order of PCI address
    verified: Evidence = Evidence.ASSUMED
    reason: str = ""


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
    role: str = "data"  #: one of ``ROLES``
    configured: bool = False  #: the role is the site's word, no conclusion from facts
    reason: str = ""  #: which facts put the ports together, or gave the role
    rail: Rail | None = None  #: None: it joins ports of several places, or no fact tells rails apart
    #: Conditions that nothing shows to hold, one sentence each; a transfer that worked makes them void.
    unverified: tuple[str, ...] = ()
