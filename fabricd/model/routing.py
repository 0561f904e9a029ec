"""Routes, and routing that depends on where packets come from."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """A route of a table."""

    destination: str  #: "10.1.0.0/24"; "default" for 0.0.0.0/0 and ::/0
    family: int
    interface: str
    gateway: str = ""
    metric: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutingRule:
    """Packets from some addresses are sent by a table of their own, before the main one is asked."""

    source: str  #: "10.1.0.5/32"
    family: int
    priority: int  #: the least is asked first; a table without a route to somewhere leaves it to the next
    table: int
    routes: tuple[Route, ...] = ()
