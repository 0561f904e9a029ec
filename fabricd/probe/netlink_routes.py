"""Routes and routing rules, as the kernel answers by netlink."""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from socket import AF_INET, AF_INET6, inet_ntop

from fabricd.netlink import Attributes, Dump, Item, attributes, dump, unsigned
from fabricd.probe.files import FieldReader

#: Kubernetes networks make thousands of routes; a full BGP table has a million, and none of them matters here.
_MAX_ROUTES = 10_000

# Source: kernel include/uapi/linux/{rtnetlink,fib_rules}.h; the fixed part of a rule is laid out as that of a route.
_RTM_GETROUTE, _RTM_GETRULE = 26, 34
_RTMSG = struct.Struct("=8BI")
_RTA_DST, _RTA_OIF, _RTA_GATEWAY, _RTA_PRIORITY, _RTA_MULTIPATH, _RTA_TABLE, _RTA_VIA = 1, 4, 5, 6, 9, 15, 18
_OF_ROUTE = frozenset({_RTA_DST, _RTA_OIF, _RTA_GATEWAY, _RTA_PRIORITY, _RTA_MULTIPATH, _RTA_TABLE, _RTA_VIA})
_NEXT_HOP = struct.Struct("=HBBi")
RT_TABLE_MAIN, _RTN_UNICAST = 254, 1
_FRA_SRC, _FRA_PRIORITY, _FRA_TABLE, _FR_ACT_TO_TBL, _FIB_RULE_INVERT = 2, 6, 15, 1, 0x2
#: What else a rule may select by: destination, interfaces, marks, tunnels, VRFs, users, protocols, ports, DSCP, flows.
_FRA_SELECTORS = frozenset({1, 3, 10, 12, 17, 19, 20, 22, 23, 24, 25, 26})
_OF_RULE = frozenset({_FRA_SRC, _FRA_PRIORITY, _FRA_TABLE}) | _FRA_SELECTORS
#: A rail of each of a node's ports, in both families, and as many again.
_MAX_RULES = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteFacts:
    """One next hop of a unicast route. Source: RTM_NEWROUTE."""

    destination: str
    family: int  #: 4 or 6
    index: int  #: of the link
    gateway: str = ""
    metric: int | None = None
    table: int = RT_TABLE_MAIN


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleFacts:
    """A rule that sends packets by their source address alone to a table that is not the main one.

    Source: RTM_NEWRULE.
    """

    source: str
    family: int  #: 4 or 6
    table: int
    priority: int = 0


def read_routes(read: FieldReader) -> tuple[tuple[RouteFacts, ...], tuple[RuleFacts, ...]]:
    """Ask this network namespace for its routes and rules.

    Raises:
        OSError: netlink is not to be had, or the kernel refused.
        ValueError: what answered is no netlink.
    """
    routes = all_of(dump(_RTM_GETROUTE, _RTMSG, _OF_ROUTE, limit=_MAX_ROUTES), _MAX_ROUTES, "routes", read)
    rules = _read_rules(read)
    tables = {RT_TABLE_MAIN, *(rule.table for rule in rules)}
    return tuple(fact for route in routes for fact in route_facts(route) if fact.table in tables), rules


def all_of(found: Dump, limit: int, what: str, read: FieldReader) -> list[Item]:
    """Return what was listed, with a note where some may lack."""
    if not found.consistent:
        read.note(what, "they changed at each try to list them; the list may lack some")
    if len(found.items) > limit:
        read.note(what, f"more than {limit}; the rest is left out")
    return found.items[:limit]


def route_facts(route: Item) -> Iterator[RouteFacts]:
    """Yield what an RTM_NEWROUTE message says: one for each next hop of a unicast route."""
    family, destination_bits, _, _, table, _, _, kind, _ = route.fields
    told = route.attributes
    if family not in (AF_INET, AF_INET6) or kind != _RTN_UNICAST:
        return
    destination = ip_text(family, told.get(_RTA_DST))
    for index, hop in _hops(told):
        via = hop.get(_RTA_VIA, b"")
        yield RouteFacts(
            destination=f"{destination}/{destination_bits}" if destination and destination_bits else "default",
            family=4 if family == AF_INET else 6,
            index=index,
            gateway=ip_text(family, hop.get(_RTA_GATEWAY)) or ip_text(unsigned(via[:2]) or 0, via[2:]),
            metric=unsigned(told.get(_RTA_PRIORITY)),
            table=unsigned(told.get(_RTA_TABLE)) or table,
        )


def _read_rules(read: FieldReader) -> tuple[RuleFacts, ...]:
    try:
        found = dump(_RTM_GETRULE, _RTMSG, _OF_RULE, limit=_MAX_RULES)
    except (OSError, ValueError) as error:  # a kernel without policy routing
        read.note("routing rules", str(error))
        return ()
    rules = all_of(found, _MAX_RULES, "routing rules", read)
    return tuple(fact for rule in rules if (fact := rule_facts(rule)))


def rule_facts(rule: Item) -> RuleFacts | None:
    """Return what an RTM_NEWRULE message says; None for the main table's, and where more than the source counts."""
    family, _, source_bits, tos, table, _, _, action, flags = rule.fields
    told = rule.attributes
    table = unsigned(told.get(_FRA_TABLE)) or table
    source = ip_text(family, told.get(_FRA_SRC))
    if not source or not source_bits or table == RT_TABLE_MAIN or action != _FR_ACT_TO_TBL:
        return None
    if tos or flags & _FIB_RULE_INVERT or not _FRA_SELECTORS.isdisjoint(told):
        return None
    priority = unsigned(told.get(_FRA_PRIORITY)) or 0
    return RuleFacts(
        source=f"{source}/{source_bits}", family=4 if family == AF_INET else 6, table=table, priority=priority
    )


def _hops(told: Attributes) -> Iterator[tuple[int, Attributes]]:
    """Yield each next hop's interface and attributes."""
    several = told.get(_RTA_MULTIPATH, b"")
    only = unsigned(told.get(_RTA_OIF))
    if not several and only is not None:
        yield only, told
    offset = 0
    while offset + _NEXT_HOP.size <= len(several):
        length, _, _, index = _NEXT_HOP.unpack_from(several, offset)
        if length < _NEXT_HOP.size:
            return
        yield index, attributes(several[offset + _NEXT_HOP.size : offset + length], _OF_ROUTE)
        offset += length + 3 & ~3


def ip_text(family: int, raw: bytes | None) -> str:
    """Return an address in words; "" for what is none."""
    return inet_ntop(family, raw) if raw and (family, len(raw)) in ((AF_INET, 4), (AF_INET6, 16)) else ""
