"""What the kernel answers about its network by netlink, as plain data that can be recorded and replayed.

A live dump takes six netlink requests whatever the number of interfaces, so that hundreds of SR-IOV functions
cost their size and not a request each; only the firmware of what may be hardware, and the mode of a team, are asked
one by one.
"""

import struct
from dataclasses import dataclass, replace

from fabricd.netlink import Item, attribute, attributes, dump, generic, nested, unsigned
from fabricd.probe.ethtool import read_drivers, read_speeds
from fabricd.probe.files import FieldReader
from fabricd.probe.netlink_routes import RouteFacts, RuleFacts, all_of, ip_text, read_routes
from fabricd.smallfile import printable

MAX_LINKS = 20_000
_MAX_ADDRESSES = 50_000
_MAX_TEAMS = 64

# Source: kernel include/uapi/linux/{rtnetlink,if_link,if_addr,if_arp,if_team}.h
_RTM_GETLINK, _RTM_GETADDR = 18, 22
_IFINFOMSG, _IFADDRMSG = struct.Struct("=BxHiII"), struct.Struct("=BBBBi")
_ADDRESS, _IFNAME, _MTU, _LINK, _MASTER, _OPERSTATE, _LINKINFO, _STATS64 = 1, 3, 4, 5, 10, 16, 18, 23
_CARRIER, _LINK_NETNSID, _PHYS_PORT_NAME, _CARRIER_DOWN_COUNT = 33, 37, 38, 48
_OF_LINK = frozenset(
    {_ADDRESS, _IFNAME, _MTU, _LINK, _MASTER, _OPERSTATE, _LINKINFO, _STATS64, _CARRIER, _LINK_NETNSID,
     _PHYS_PORT_NAME, _CARRIER_DOWN_COUNT}
)  # fmt: skip
_INFO_KIND, _INFO_DATA = 1, 2
_BOND_MODE, _VLAN_ID, _VXLAN_LINK = 1, 1, 3
_OPER_STATES = ("unknown", "notpresent", "down", "lowerlayerdown", "testing", "dormant", "up")
_STATS = struct.Struct("=16xQQ")  # rx_bytes and tx_bytes of struct rtnl_link_stats64
_IFA_ADDRESS, _IFA_LOCAL, _IFA_F_DADFAILED = 1, 2, 0x08
_ARPHRD_LOOPBACK = 772
_SCOPES = {0: "global", 200: "site", 253: "link", 254: "host", 255: "nowhere"}
_BOND_MODES = (
    "balance-rr", "active-backup", "balance-xor", "broadcast", "802.3ad", "balance-tlb", "balance-alb",
)  # fmt: skip
_TEAM_OPTIONS_GET, _TEAM_IFINDEX, _TEAM_OPTIONS, _TEAM_OPTION_NAME, _TEAM_OPTION_DATA = 2, 1, 2, 1, 4


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
    bond_mode: str = ""  #: of a team: its runner's mode in the kernel, e.g. "activebackup"
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
    routes: tuple[RouteFacts, ...] = ()  #: of the main table, and of those that rules name
    rules: tuple[RuleFacts, ...] = ()
    speeds: tuple[SpeedFacts, ...] = ()
    drivers: tuple[DriverFacts, ...] = ()
    notes: tuple[str, ...] = ()  #: what the kernel did not tell


def dump_kernel(read: FieldReader) -> NetlinkDump:
    """Ask this network namespace.

    Raises:
        OSError: netlink is not to be had (a sandbox without it), or the kernel refused.
        ValueError: what answered is no netlink.
    """
    links = all_of(dump(_RTM_GETLINK, _IFINFOMSG, _OF_LINK, limit=MAX_LINKS), MAX_LINKS, "links", read)
    addresses = all_of(
        dump(_RTM_GETADDR, _IFADDRMSG, (_IFA_ADDRESS, _IFA_LOCAL), limit=_MAX_ADDRESSES),
        _MAX_ADDRESSES, "addresses", read,
    )  # fmt: skip
    routes, rules = read_routes(read)
    facts = _with_team_modes([link_facts(link) for link in links], read)
    hardware = [link.name for link in facts if not link.kind and link.hardware_type != _ARPHRD_LOOPBACK]
    return NetlinkDump(
        links=tuple(facts),
        addresses=tuple(fact for address in addresses if (fact := address_facts(address))),
        routes=routes,
        rules=rules,
        speeds=tuple(
            SpeedFacts(index=index, megabits_per_second=speed.megabits_per_second, duplex=speed.duplex)
            for index, speed in read_speeds(MAX_LINKS, read).items()
        ),
        drivers=tuple(
            DriverFacts(interface=name, driver=driver.name, firmware=driver.firmware)
            for name, driver in read_drivers(hardware, read).items()
        ),
    )


def link_facts(link: Item) -> LinkFacts:
    """Return what an RTM_NEWLINK message says."""
    _, hardware_type, index, flags, _ = link.fields
    told = link.attributes
    info = attributes(told.get(_LINKINFO, b""), (_INFO_KIND, _INFO_DATA))
    kind = _text(info.get(_INFO_KIND))
    data = attributes(info.get(_INFO_DATA, b""), (_BOND_MODE, _VXLAN_LINK))
    lower = unsigned(told.get(_LINK)) or (unsigned(data.get(_VXLAN_LINK)) if kind == "vxlan" else None)
    state, carrier = unsigned(told.get(_OPERSTATE)), unsigned(told.get(_CARRIER))
    received, sent = _STATS.unpack_from(told[_STATS64]) if len(told.get(_STATS64, b"")) >= _STATS.size else (None, None)
    return LinkFacts(
        index=index,
        name=_text(told.get(_IFNAME)),
        kind=kind,
        hardware_type=hardware_type,
        flags=flags,
        mac=told.get(_ADDRESS, b"").hex(":"),
        mtu=unsigned(told.get(_MTU)),
        oper_state=_named(state, _OPER_STATES),
        carrier=None if carrier is None else bool(carrier),
        lower=lower if _LINK_NETNSID not in told and lower != index else None,
        controller=unsigned(told.get(_MASTER)),
        bond_mode=_named(unsigned(data.get(_BOND_MODE)), _BOND_MODES) if kind == "bond" else "",
        vlan_id=unsigned(data.get(_VLAN_ID)) if kind == "vlan" else None,
        port_name=_text(told.get(_PHYS_PORT_NAME)),
        rx_bytes=received,
        tx_bytes=sent,
        carrier_down_count=unsigned(told.get(_CARRIER_DOWN_COUNT)),
    )


def _named(number: int | None, names: tuple[str, ...]) -> str:
    return names[number] if number is not None and number < len(names) else ""


def _text(value: bytes | None) -> str:
    return printable((value or b"").partition(b"\0")[0])


def _with_team_modes(links: list[LinkFacts], read: FieldReader) -> list[LinkFacts]:
    """Ask the team driver for its modes. Its members are told by their own links, as everyone's are."""
    teams = [link for link in links if link.kind == "team"][:_MAX_TEAMS]
    modes = {}
    for team in teams:
        request = attribute(_TEAM_IFINDEX, struct.pack("=I", team.index))
        try:
            found = generic("team", _TEAM_OPTIONS_GET, request, (_TEAM_OPTIONS,), limit=_MAX_TEAMS, every=False)
        except (OSError, ValueError) as error:  # only for those who may administer the network
            read.note(team.name, f"mode of the team: {error}")
            continue
        modes[team.index] = team_mode(found.items)
    return [replace(link, bond_mode=modes.get(link.index, "")) if link.kind == "team" else link for link in links]


def team_mode(answer: list[Item]) -> str:
    """Return the mode that the messages of a TEAM_CMD_OPTIONS_GET tell; "" where they do not."""
    for message in answer:
        for _, option in nested(message.attributes.get(_TEAM_OPTIONS, b"")):
            told = attributes(option, (_TEAM_OPTION_NAME, _TEAM_OPTION_DATA))
            if _text(told.get(_TEAM_OPTION_NAME)) == "mode":
                return _text(told.get(_TEAM_OPTION_DATA))
    return ""


def address_facts(address: Item) -> AddressFacts | None:
    """Return what an RTM_NEWADDR message says; None for an address that another host has, or none of IP."""
    family, prefix_length, flags, scope, index = address.fields
    # On a point-to-point link IFA_ADDRESS is the other end.
    raw = address.attributes.get(_IFA_LOCAL) or address.attributes.get(_IFA_ADDRESS)
    text = ip_text(family, raw)
    if not text or flags & _IFA_F_DADFAILED:
        return None
    return AddressFacts(index=index, address=text, prefix_length=prefix_length, scope=_SCOPES.get(scope, str(scope)))
