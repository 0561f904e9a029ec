"""The InfiniBand switches around a node, as a walk over the fabric found them. ``None`` is "not known", never zero."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class IbLink:
    """What one port of a switch is linked to."""

    port: int  #: the switch's
    peer: str  #: node GUID at the other end
    peer_port: int
    local_port: str = ""  #: "mlx5_0:1" where the other end is this node's
    width: int | None = None  #: lanes now
    speed: str = ""  #: of a lane now: "SDR", "EDR", "NDR", ...; "" unknown
    rate_bytes_per_second: int | None = None  #: nominal for width and speed, each direction


@dataclass(frozen=True, slots=True, kw_only=True)
class IbSwitch:
    """A switch. Source: ibnetdiscover(8)."""

    guid: str
    name: str = ""  #: its node description
    system_guid: str = ""  #: of the chassis that it is a part of; its own where it is all
    vendor_id: int | None = None
    device_id: int | None = None
    lid: int | None = None
    port_count: int | None = None  #: without its own, port 0
    hops: int = 1  #: links between it and this node's nearest port
    hca_links: int = 0  #: ports that lead to adapters, of whatever node
    switch_links: int = 0  #: ports that lead to switches
    aggregation: bool = False  #: it has an aggregation node, which reduces in the network (SHARP)
    #: To this node and to other switches, by port; left out beyond the first hop.
    links: tuple[IbLink, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class IbFabric:
    """A subnet that ports of this node are on: all of it in numbers, and the switches around this node."""

    #: The least GUID of its switches: alike on all nodes that have walked over the same subnet in the same state.
    guid: str
    switch_count: int
    hca_count: int  #: adapters, without aggregation nodes
    link_count: int
    #: Those that carry a port of this node, and those that are linked to these; by hops, then GUID.
    switches: tuple[IbSwitch, ...] = ()
