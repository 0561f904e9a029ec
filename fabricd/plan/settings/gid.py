"""Which entry of a RoCE port's GID table NCCL and UCX take, and what to set where that is not the right one.

The right one is RoCE version 2 by the port's address on the job's network. Sources: NCCL 2.30, transport/net_ib.cc;
UCX 1.20, uct/ib/base/ib_device.c.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

from fabricd.model.device import Gid
from fabricd.model.path import Transport
from fabricd.model.plan import Setting
from fabricd.plan.settings.job import Job
from fabricd.plan.settings.scope import by_node

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

_NO_GID = Gid(index=-1, gid=":".join(["0000"] * 8), type="")
#: UCX's preference of (version, family), best first.
_UCX_ORDER = (("roce-v2", 4), ("roce-v2", 6), ("roce-v1", 4), ("roce-v1", 6))


@dataclass(frozen=True, slots=True, kw_only=True)
class Scan:
    """What NCCL is told of GIDs; its defaults."""

    family: int = 4
    within: Network | None = None
    version: str = "roce-v2"


@dataclass(frozen=True, slots=True)
class _Port:
    """A RoCE port of a node, with the index of its right entry."""

    node: str
    name: str
    gids: Sequence[Gid]
    address: Address
    right: int | None


def gid_address(gid: str) -> Address:
    """Return the IP address that a GID is, an IPv4 one where it is mapped."""
    address = IPv6Address(gid)
    return address.ipv4_mapped or address


def nccl_index(gids: Iterable[Gid], scan: Scan) -> int:
    """Return the index that NCCL takes: from 0 on, a later entry replaces an earlier one by these rules."""
    table = {gid.index: gid for gid in gids}
    best = table.get(0, _NO_GID)
    for index in range(1, max(table, default=0) + 1):
        other = table.get(index, _NO_GID)
        best = other if _replaces(other, best, scan) else best
    return max(best.index, 0)


def _replaces(other: Gid, best: Gid, scan: Scan) -> bool:
    address = gid_address(other.gid)
    if address.version != scan.family or (scan.within is not None and address not in scan.within):
        return False
    if gid_address(best.gid).version != scan.family:
        return True
    return _valid(other) and other.type == scan.version and (best.type != other.type or not _valid(best))


def _valid(gid: Gid) -> bool:
    address = IPv6Address(gid.gid)
    return int(address) != 0 and not address.is_link_local


def ucx_index(gids: Iterable[Gid]) -> int | None:
    """Return the index that UCX takes by itself: the first of the best version and family. None without any."""
    known = sorted(gids, key=lambda gid: gid.index)
    for version, family in _UCX_ORDER:
        for gid in known:
            if gid.type == version and gid_address(gid.gid).version == family:
                return gid.index
    return known[0].index if known else None


def nccl_gid_settings(job: Job) -> Iterator[Setting]:
    """Yield what NCCL needs to take the right entries: nothing, a family, a range, or as the last resort an index."""
    ports = _ports(job)
    wrong = [port for port in ports if port.right is not None and nccl_index(port.gids, Scan()) != port.right]
    if not wrong:
        return
    first = wrong[0]
    fact = (
        f"{first.name} of {first.node} is on {job.data[0].name} by GID {first.right} ({first.address}), and NCCL "
        f"would take {nccl_index(first.gids, Scan())}"
    )
    family = first.address.version
    scans: list[tuple[dict[str, str], Scan]] = []
    if family == 6:
        scans.append(({"NCCL_IB_ADDR_FAMILY": "AF_INET6"}, Scan(family=6)))
    within = _smallest([port.address for port in ports])
    if within is not None:
        names = {"NCCL_IB_ADDR_FAMILY": "AF_INET6"} if family == 6 else {}
        scans.append(({**names, "NCCL_IB_ADDR_RANGE": str(within)}, Scan(family=family, within=within)))
    for settings, scan in scans:
        if all(nccl_index(port.gids, scan) == port.right for port in ports):
            yield from (Setting(name=name, value=value, because=fact) for name, value in settings.items())
            return
    yield from _fixed("NCCL_IB_GID_INDEX", ports, fact)


def ucx_gid_settings(job: Job) -> Iterator[Setting]:
    """Yield ``UCX_IB_GID_INDEX`` where UCX would take wrong entries and one index is right on all ports of a node."""
    ports = _ports(job)
    wrong = [port for port in ports if port.right is not None and ucx_index(port.gids) != port.right]
    if wrong:
        first = wrong[0]
        fact = (
            f"{first.name} of {first.node} is on {job.data[0].name} by GID {first.right} ({first.address}), and UCX "
            f"would take {ucx_index(first.gids)}"
        )
        yield from _fixed("UCX_IB_GID_INDEX", ports, fact)


def _fixed(name: str, ports: Sequence[_Port], fact: str) -> Iterator[Setting]:
    """Yield a fixed index; nothing where no one index is right on all ports of a node."""
    by_name: dict[str, set[int | None]] = {}
    for port in ports:
        by_name.setdefault(port.node, set()).add(port.right)
    indices: Mapping[str, int | None] = {node: next(iter(found)) for node, found in by_name.items() if len(found) == 1}
    values = {node: str(index) for node, index in indices.items() if index is not None}
    if len(values) == len(by_name):
        yield from by_node(name, values, f"{fact}; no address family or range tells the right entries")


def _ports(job: Job) -> list[_Port]:
    found = []
    if job.transport is not Transport.ROCE:
        return []
    for node in job.nodes:
        for _, own, port in job.rdma_ports(node):
            if port.address:
                address = ip_address(port.address)
                right = next(
                    (one.index for one in own.gids if one.type == "roce-v2" and gid_address(one.gid) == address), None
                )
                found.append(_Port(node, port.interface, own.gids, address, right))
    return found


def _smallest(addresses: Sequence[Address]) -> Network | None:
    """Return the smallest subnet that holds some addresses of one family; None if they are of two."""
    if len({address.version for address in addresses}) != 1:
        return None
    low, high = min(map(int, addresses)), max(map(int, addresses))
    length = addresses[0].max_prefixlen - (low ^ high).bit_length()
    return ip_network(f"{addresses[0]}/{length}", strict=False)
