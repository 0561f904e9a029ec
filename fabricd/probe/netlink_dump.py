"""What the kernel answers about its network by netlink, as plain data that can be recorded and replayed.

A live dump takes five netlink requests whatever the number of interfaces, so that hundreds of SR-IOV functions
cost their size and not a request each; only the firmware of what may be hardware is asked one by one.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from socket import AF_INET, AF_INET6
from typing import Any

from fabricd.probe.ethtool import read_drivers, read_speeds
from fabricd.probe.files import FieldReader
from fabricd.smallfile import printable

MAX_LINKS = 20_000
_MAX_ADDRESSES = 50_000
#: Kubernetes networks make thousands of routes; a full BGP table has a million, and none of them matters here.
_MAX_ROUTES = 10_000
_DUMP_TRIES = 5

# Source: kernel include/uapi/linux/{netlink,rtnetlink,if_addr,if_arp}.h
_NLM_F_DUMP_INTR = 0x10
_RT_TABLE_MAIN, _RTN_UNICAST = 254, 1
_IFA_F_DADFAILED = 0x08
_ARPHRD_LOOPBACK = 772
_SCOPES = {0: "global", 200: "site", 253: "link", 254: "host", 255: "nowhere"}
_BOND_MODES = (
    "balance-rr", "active-backup", "balance-xor", "broadcast", "802.3ad", "balance-tlb", "balance-alb",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkFacts:
    """One link. Source: RTM_NEWLINK."""

    index: int
    name: str
    kind: str = ""  #: IFLA_INFO_KIND
    hardware_type: int = 1  #: ARPHRD_*
    flags: int = 0  #: IFF_*
    mac: str = ""
    mtu: int | None = None
    oper_state: str = ""
    carrier: bool | None = None
    lower: int | None = None  #: index of the link below, in this namespace
    controller: int | None = None
    bond_mode: str = ""
    vlan_id: int | None = None
    port_name: str = ""
    rx_bytes: int | None = None
    tx_bytes: int | None = None
    carrier_down_count: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AddressFacts:
    """One address. Source: RTM_NEWADDR."""

    index: int  #: of the link
    address: str
    prefix_length: int
    scope: str = "global"


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteFacts:
    """One next hop of a unicast route of the main table. Source: RTM_NEWROUTE."""

    destination: str
    family: int  #: 4 or 6
    index: int  #: of the link
    gateway: str = ""
    metric: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedFacts:
    """What ethtool says of one link. Source: ETHTOOL_MSG_LINKMODES_GET; sysfs ``speed`` and ``duplex``."""

    index: int
    megabits_per_second: int | None = None
    duplex: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverFacts:
    """What a driver says of itself. Source: ETHTOOL_GDRVINFO."""

    interface: str
    driver: str = ""
    firmware: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NetlinkDump:
    """All answers together."""

    links: tuple[LinkFacts, ...] = ()
    addresses: tuple[AddressFacts, ...] = ()
    routes: tuple[RouteFacts, ...] = ()
    speeds: tuple[SpeedFacts, ...] = ()
    drivers: tuple[DriverFacts, ...] = ()
    notes: tuple[str, ...] = ()  #: what the kernel did not tell


def dump_kernel(read: FieldReader) -> NetlinkDump:
    """Ask this network namespace.

    Raises:
        OSError: netlink is not to be had (a sandbox without it), or the kernel refused.
        ImportError: pyroute2 is not installed.
    """
    # Slow to import, and a replay does without.
    from pyroute2 import IPRoute
    from pyroute2.netlink.exceptions import NetlinkError

    try:
        with IPRoute() as kernel:
            links = _all(lambda: kernel.link("dump"), MAX_LINKS, "links", read)
            addresses = _all(lambda: kernel.addr("dump"), _MAX_ADDRESSES, "addresses", read)
            routes = _all(lambda: kernel.route("dump"), _MAX_ROUTES, "routes", read)
    except NetlinkError as error:
        raise OSError(error.code, f"netlink: {error}") from error
    facts = tuple(link_facts(message) for message in links)
    hardware = [link.name for link in facts if not link.kind and link.hardware_type != _ARPHRD_LOOPBACK]
    return NetlinkDump(
        links=facts,
        addresses=tuple(fact for message in addresses if (fact := _address(message))),
        routes=tuple(fact for message in routes for fact in _routes(message)),
        speeds=tuple(
            SpeedFacts(index=index, megabits_per_second=speed.megabits_per_second, duplex=speed.duplex)
            for index, speed in read_speeds(MAX_LINKS, read).items()
        ),
        drivers=tuple(
            DriverFacts(interface=name, driver=driver.name, firmware=driver.firmware)
            for name, driver in read_drivers(hardware, read).items()
        ),
    )


def _all(request: Callable[[], Iterator[Any]], limit: int, what: str, read: FieldReader) -> list[Any]:
    """Return a dump's messages; asks again when the kernel says that it changed meanwhile."""
    for _ in range(_DUMP_TRIES):
        messages = list(islice(iter(request()), limit + 1))
        if not any(message["header"]["flags"] & _NLM_F_DUMP_INTR for message in messages):
            break
    else:
        read.note(what, "they changed at each try to list them; the list may lack some")
    if len(messages) > limit:
        read.note(what, f"more than {limit}; the rest is left out")
    return messages[:limit]


def link_facts(message: Any) -> LinkFacts:
    """Return what a decoded RTM_NEWLINK message (pyroute2's ``ifinfmsg``) says."""
    info, counters = message.get_attr("IFLA_LINKINFO"), message.get_attr("IFLA_STATS64") or {}
    data = info.get_attr("IFLA_INFO_DATA") if info else None
    here = message.get_attr("IFLA_LINK_NETNSID") is None
    lower = message.get_attr("IFLA_LINK") or _attribute(data, "IFLA_VXLAN_LINK")
    carrier = message.get_attr("IFLA_CARRIER")
    mode = _attribute(data, "IFLA_BOND_MODE")
    return LinkFacts(
        index=message["index"],
        name=printable(message.get_attr("IFLA_IFNAME")),
        kind=printable(info.get_attr("IFLA_INFO_KIND")) if info else "",
        hardware_type=message["ifi_type"],
        flags=message["flags"],
        mac=_bytes(message, "IFLA_ADDRESS").hex(":"),
        mtu=message.get_attr("IFLA_MTU"),
        oper_state=printable(message.get_attr("IFLA_OPERSTATE")).lower(),
        carrier=None if carrier is None else bool(carrier),
        lower=lower if here and lower != message["index"] else None,
        controller=message.get_attr("IFLA_MASTER"),
        bond_mode=_BOND_MODES[mode] if mode is not None and 0 <= mode < len(_BOND_MODES) else "",
        vlan_id=_attribute(data, "IFLA_VLAN_ID"),
        port_name=printable(message.get_attr("IFLA_PHYS_PORT_NAME")),
        rx_bytes=counters.get("rx_bytes"),
        tx_bytes=counters.get("tx_bytes"),
        carrier_down_count=message.get_attr("IFLA_CARRIER_DOWN_COUNT"),
    )


def _bytes(message: Any, name: str) -> bytes:
    """Return an attribute's own bytes: pyroute2 takes every link's address for six bytes, IPoIB's has twenty."""
    for slot in message["attrs"]:
        if slot.name == name:
            attribute = slot.cell[1]
            return bytes(attribute.data[attribute.offset + 4 : attribute.offset + attribute.length])
    return b""


def _attribute(data: Any, name: str) -> int | None:
    """Return a number of IFLA_INFO_DATA, whose form depends on the kind: pyroute2 leaves unknown kinds as text."""
    value = data.get_attr(name) if hasattr(data, "get_attr") else None
    return value if isinstance(value, int) else None


def _address(message: Any) -> AddressFacts | None:
    if message["family"] not in (AF_INET, AF_INET6) or message["flags"] & _IFA_F_DADFAILED:
        return None
    # On a point-to-point link IFA_ADDRESS is the other end.
    address = message.get_attr("IFA_LOCAL") or message.get_attr("IFA_ADDRESS")
    if not address:
        return None
    return AddressFacts(
        index=message["index"],
        address=address,
        prefix_length=message["prefixlen"],
        scope=_SCOPES.get(message["scope"], str(message["scope"])),
    )


def _routes(message: Any) -> Iterator[RouteFacts]:
    if message["family"] not in (AF_INET, AF_INET6) or message["type"] != _RTN_UNICAST:
        return
    if (message.get_attr("RTA_TABLE") or message["table"]) != _RT_TABLE_MAIN:
        return
    destination = message.get_attr("RTA_DST")
    hops = message.get_attr("RTA_MULTIPATH")
    for hop in hops or (message,):
        index = hop["oif"] if hops else message.get_attr("RTA_OIF")
        if index is None:
            continue
        via = hop.get_attr("RTA_VIA") or {}
        yield RouteFacts(
            destination=f"{destination}/{message['dst_len']}" if destination and message["dst_len"] else "default",
            family=4 if message["family"] == AF_INET else 6,
            index=index,
            gateway=hop.get_attr("RTA_GATEWAY") or via.get("addr") or "",
            metric=message.get_attr("RTA_PRIORITY"),
        )
