"""Messages of the kernel's netlink, byte by byte: also those that not every kernel sends."""

import struct
from dataclasses import replace
from pathlib import Path

import pytest

from fabricd.model.device import InterfaceKind
from fabricd.netlink import Item, attributes
from fabricd.probe.net_sysfs import is_same_interface
from fabricd.probe.netlink_dump import (
    AddressFacts,
    LinkFacts,
    address_facts,
    link_facts,
    team_mode,
)
from fabricd.probe.netlink_routes import RouteFacts, RuleFacts, route_facts, rule_facts
from tests.support.netlink_probe import UP, interfaces, links, mlx5
from tests.support.tree import Tree

# Source: kernel include/uapi/linux/{if_link,rtnetlink,if_team}.h
_IFLA_ADDRESS, _IFLA_IFNAME, _IFLA_LINK, _IFLA_MASTER, _IFLA_LINKINFO, _IFLA_LINK_NETNSID = 1, 3, 5, 10, 18, 37
_IFLA_STATS64, _IFLA_AF_SPEC = 23, 26
_INFO_KIND, _INFO_DATA, _BOND_MODE, _VLAN_ID, _VXLAN_LINK = 1, 2, 1, 1, 3
_EVERY = range(1, 100)


def attribute(kind: int, value: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(value), kind) + value + bytes(-len(value) % 4)


def decoded(told: bytes, *, hardware_type: int = 1) -> LinkFacts:
    """Return what a message of the kernel's says."""
    return link_facts(Item((0, hardware_type, 7, UP, 0), attributes(attribute(_IFLA_IFNAME, b"dev0\0") + told, _EVERY)))


def number(kind: int, value: int, form: str = "=I") -> bytes:
    return attribute(kind, struct.pack(form, value))


def info(kind: str, data: bytes = b"") -> bytes:
    return attribute(_IFLA_LINKINFO, attribute(_INFO_KIND, kind.encode() + b"\0") + attribute(_INFO_DATA, data))


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        (info("bond", number(_BOND_MODE, 4, "=B")), {"kind": "bond", "bond_mode": "802.3ad"}),
        (info("bond", number(_BOND_MODE, 9, "=B")), {"kind": "bond", "bond_mode": ""}),
        (
            info("vlan", number(_VLAN_ID, 7, "=H")) + number(_IFLA_LINK, 2) + number(_IFLA_MASTER, 8),
            {"kind": "vlan", "vlan_id": 7, "lower": 2, "controller": 8},
        ),
        (info("vxlan", number(_VXLAN_LINK, 3)) + number(_IFLA_LINK, 0), {"kind": "vxlan", "lower": 3}),
        # The link below is in another namespace, where the index means another link.
        (number(_IFLA_LINK, 2) + number(_IFLA_LINK_NETNSID, 1) + info("macvlan"), {"kind": "macvlan", "lower": None}),
        (number(_IFLA_LINK, 7), {"kind": "", "lower": None}),
        (info("a-kind-of-the-future", number(1, 5)), {"kind": "a-kind-of-the-future", "vlan_id": None}),
        (
            attribute(_IFLA_STATS64, struct.pack("=24Q", *range(100, 124))) + number(48, 3) + attribute(38, b"p0\0"),
            {"rx_bytes": 102, "tx_bytes": 103, "carrier_down_count": 3, "port_name": "p0"},
        ),
        (attribute(_IFLA_STATS64, bytes(8)), {"rx_bytes": None, "tx_bytes": None}),
        (number(16, 6, "=B") + number(33, 1, "=B"), {"oper_state": "up", "carrier": True}),
        (number(16, 99, "=B"), {"oper_state": "", "carrier": None}),
        # An attribute that says that it is longer than the message, or shorter than its own header.
        (number(_IFLA_MASTER, 8) + struct.pack("=HH", 400, _IFLA_LINK) + b"\x02\0\0\0", {"controller": 8, "lower": 2}),
        (number(_IFLA_MASTER, 8) + struct.pack("=HH", 3, _IFLA_LINK) + bytes(4), {"controller": 8, "lower": None}),
        (info("team") + number(_IFLA_LINK, 0), {"kind": "team", "bond_mode": "", "lower": None}),
    ],
)
def test_kinds_as_the_kernel_tells_them(told: bytes, expected: dict[str, object]) -> None:
    """What not every kernel can make: the message is written byte by byte."""
    link = decoded(told)
    assert {name: getattr(link, name) for name in expected} == expected


@pytest.mark.parametrize(
    ("hardware_type", "address"),
    [
        (32, "80:00:02:08:fe:80:00:00:00:00:00:00:b8:ce:f6:03:00:00:00:01"),
        (1, "b8:ce:f6:00:00:01"),
        (776, "0a:01:00:01"),
        (65534, ""),
    ],
)
def test_link_addresses_of_any_length(hardware_type: int, address: str, tmp_path: Path) -> None:
    """As the kernel sends them: IPoIB's has 20 bytes, a tunnel's 4, a tun device's none."""
    raw = bytes.fromhex(address.replace(":", ""))
    link = decoded(attribute(_IFLA_ADDRESS, raw) if raw else b"", hardware_type=hardware_type)
    assert (link.name, link.mac, link.hardware_type) == ("dev0", address, hardware_type)
    tree = Tree()
    tree.net("dev0", index=7, device=mlx5(tree), mac=address)
    assert is_same_interface(tree.write(tmp_path) / "sys/class/net/dev0", link)


def test_a_team_and_its_members(tmp_path: Path) -> None:
    """As a kernel with the team driver answers: a link of kind "team", ports that name it, and options by name."""
    option = attribute(1, b"notify_peers_count\0") + number(3, 3, "=B") + number(4, 0)
    mode = attribute(1, b"mode\0") + number(3, 5, "=B") + attribute(4, b"activebackup\0")
    options = attribute(2, attribute(1, option) + attribute(1, mode))
    messages = [
        Item((2, 1), attributes(number(1, 5), _EVERY)),
        Item((2, 1), attributes(number(1, 5) + options, _EVERY)),
    ]
    assert team_mode(messages) == "activebackup"
    assert team_mode(messages[:1]) == ""
    port = link_facts(
        Item((0, 1, 2, UP, 0), attributes(attribute(_IFLA_IFNAME, b"eth0\0") + number(_IFLA_MASTER, 7), _EVERY))
    )
    team = replace(decoded(info("team")), bond_mode=team_mode(messages))
    found = interfaces(tmp_path, Tree(), links(port, team))
    assert (found["dev0"].kind, found["dev0"].members) == (InterfaceKind.TEAM, ("eth0",))
    assert (found["dev0"].bond_mode, found["eth0"].controller) == ("activebackup", "dev0")


V4, V6 = 2, 10


@pytest.mark.parametrize(
    ("fields", "told", "expected"),
    [
        ((V4, 24, 128, 0), attribute(1, b"\x0a\1\0\1"), AddressFacts(index=7, address="10.1.0.1", prefix_length=24)),
        # On a point-to-point link, 1 is the other end and 2 this one.
        (
            (V4, 32, 128, 0),
            attribute(1, b"\x0a\1\0\2") + attribute(2, b"\x0a\1\0\1"),
            AddressFacts(index=7, address="10.1.0.1", prefix_length=32),
        ),
        (
            (V6, 64, 128, 253),
            attribute(1, b"\xfe\x80" + bytes(13) + b"\1"),
            AddressFacts(index=7, address="fe80::1", prefix_length=64, scope="link"),
        ),
        ((V6, 64, 8, 0), attribute(1, bytes(15) + b"\1"), None),  # another host has it
        ((V4, 24, 128, 0), attribute(1, b"\x0a\1"), None),
        ((28, 24, 128, 0), attribute(1, b"\x0a\1\0\1"), None),  # no family of IP
        ((V4, 24, 128, 0), b"", None),
    ],
)
def test_addresses_as_the_kernel_tells_them(
    fields: tuple[int, ...], told: bytes, expected: AddressFacts | None
) -> None:
    assert address_facts(Item((*fields, 7), attributes(told, _EVERY))) == expected


def hop(index: int, told: bytes) -> bytes:
    return struct.pack("=HBBi", 8 + len(told), 0, 0, index) + told


@pytest.mark.parametrize(
    ("fields", "told", "expected"),
    [
        (
            (V4, 24, 254, 1),
            attribute(1, b"\x0a\1\0\0") + number(4, 7) + number(6, 100),
            [RouteFacts(destination="10.1.0.0/24", family=4, index=7, metric=100)],
        ),
        (
            (V4, 0, 254, 1),
            attribute(5, b"\x0a\1\0\xfe") + number(4, 7),
            [RouteFacts(destination="default", family=4, index=7, gateway="10.1.0.254")],
        ),
        (  # by a gateway of the other family
            (V4, 0, 254, 1),
            attribute(18, struct.pack("=H", V6) + b"\xfe\x80" + bytes(13) + b"\1") + number(4, 7),
            [RouteFacts(destination="default", family=4, index=7, gateway="fe80::1")],
        ),
        (
            (V6, 64, 254, 1),
            attribute(1, b"\xfd" + bytes(15))
            + attribute(9, hop(7, attribute(5, b"\xfe\x80" + bytes(13) + b"\2")) + hop(8, b"")),
            [
                RouteFacts(destination="fd00::/64", family=6, index=7, gateway="fe80::2"),
                RouteFacts(destination="fd00::/64", family=6, index=8),
            ],
        ),
        ((V4, 24, 254, 6), number(4, 7), []),  # not unicast
        ((V4, 0, 255, 1), number(4, 7), [RouteFacts(destination="default", family=4, index=7, table=255)]),
        ((V4, 24, 252, 1), number(15, 254) + attribute(1, b"\x0a\1\0\0"), []),  # the table in full; no interface
        (
            (V4, 0, 252, 1),
            number(15, 1000) + number(4, 7),
            [RouteFacts(destination="default", family=4, index=7, table=1000)],
        ),
        ((V4, 24, 254, 1), attribute(9, struct.pack("=HBBi", 2, 0, 0, 7)), []),  # a damaged hop
        ((128, 20, 254, 1), number(4, 7), []),  # MPLS
    ],
)
def test_routes_as_the_kernel_tells_them(fields: tuple[int, ...], told: bytes, expected: list[RouteFacts]) -> None:
    family, bits, table, kind = fields
    route = Item((family, bits, 0, 0, table, 3, 0, kind, 0), attributes(told, _EVERY))
    assert list(route_facts(route)) == expected


OWN = attribute(2, b"\x0a\1\0\5") + number(6, 100)
RULE = RuleFacts(source="10.1.0.5/32", family=4, table=101, priority=100)


@pytest.mark.parametrize(
    ("fields", "told", "expected"),
    [
        ((V4, 32, 101, 1, 0), OWN, RULE),
        ((V4, 32, 252, 1, 0), OWN + number(15, 1000), replace(RULE, table=1000)),
        ((V4, 0, 255, 1, 0), b"", None),  # from everywhere
        ((V4, 32, 254, 1, 0), OWN, None),  # to the main table
        ((V4, 32, 101, 6, 0), OWN, None),  # it drops them
        ((V4, 32, 101, 1, 2), OWN, None),  # from everywhere but there
        ((V4, 32, 101, 1, 0), OWN + number(10, 7), None),  # with a mark only
        ((V4, 32, 101, 1, 0), OWN + attribute(17, b"eth0\0"), None),  # of sockets bound to an interface
        ((128, 32, 101, 1, 0), OWN, None),  # not IP
    ],
)  # fmt: skip
def test_rules_as_the_kernel_tells_them(fields: tuple[int, ...], told: bytes, expected: RuleFacts | None) -> None:
    family, bits, table, action, flags = fields
    rule = Item((family, 0, bits, 0, table, 0, 0, action, flags), attributes(told, _EVERY))
    assert rule_facts(rule) == expected
