"""A network that could join the hosts of a group, and which of them an engine can use."""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from fabricd.model.network import NetworkPort
from fabricd.model.path import Rejected, Transport

#: A name that cannot be misread in UCX_NET_DEVICES.
DEVICE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.@:-]*")
#: Used past the IP stack.
BY_RDMA = frozenset({Transport.INFINIBAND, Transport.ROCE})


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A network with a port at every place."""

    name: str
    transport: Transport
    ports: tuple[tuple[NetworkPort, ...], ...]  #: by place: all that it has there, best first
    virtual: bool
    role: str
    reason: str  #: which facts put the ports together
    configured: bool = False  #: the role is the site's word
    speed_bytes_per_second: int | None = None  #: nominal, of the slowest place; None unknown
    #: A host's ports on it reach each other: that is known, or the facts that join them say so.
    one_fabric: bool = False
    routed: bool = False  #: an RDMA network over routers, where routes say so
    by_source: bool = False  #: its routes are for what comes from its ports' own addresses, by rules
    hidden: str = ""  #: why UCX would not take it, although routes lead there; ""
    doubt: str = ""  #: why it may not join the hosts after all; ""
    software: str = ""  #: "rxe0:1 is RDMA done by software on eth0"; "" for what cards do
    has_tcp_below: bool = False  #: it is such RDMA, and TCP on the interfaces below is another candidate

    @property
    def rdma(self) -> bool:
        """Whether it is used past the IP stack."""
        return self.transport in BY_RDMA

    @property
    def ipv6(self) -> bool:
        """Whether it is used by IPv6 addresses."""
        return not self.rdma and ":" in self.ports[0][0].address


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidates:
    """What could join the places, in no order, and what could not."""

    networks: tuple[Candidate, ...]
    rejected: tuple[Rejected, ...]

    def without(self, fault: Callable[[Candidate], str]) -> "Candidates":
        """Return those of which ``fault`` says nothing; the others are rejected for what it says."""
        told = [(one, fault(one)) for one in self.networks]
        faulty = [Rejected(name=one.name, reason=why) for one, why in told if why]
        return Candidates(networks=tuple(one for one, why in told if not why), rejected=(*faulty, *self.rejected))


def unbound(candidate: Candidate, engine: str) -> str:
    """Return why an engine cannot use a network whose connections come from any address, ``""`` if it can."""
    if candidate.rdma or not candidate.by_source:
        return ""
    return f"its routes are for what comes from its ports' own addresses; {engine} connects from any, by the main table"


def slowest(ports: Iterable[NetworkPort]) -> int | None:
    """Return the nominal speed of the slowest port, bytes/s; None where one's is not known."""
    speeds = [port.speed_bytes_per_second or 0 for port in ports]
    return min(speeds) or None
