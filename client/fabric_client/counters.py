"""What this process's network devices have carried: interfaces of its network namespace, and ports of its HCAs."""

import struct
from dataclasses import dataclass
from pathlib import Path

from fabricd.localview import LocalView
from fabricd.netlink import dump
from fabricd.smallfile import printable, read_bytes

# Source: kernel include/uapi/linux/{rtnetlink,if_link}.h
_RTM_GETLINK = 18
_IFLA_IFNAME, _IFLA_STATS64 = 3, 23
_IFF_LOOPBACK = 0x8
_IFINFOMSG = struct.Struct("=BxHiII")
_STATS64 = struct.Struct("=QQQQ")  # struct rtnl_link_stats64 begins: rx_packets, tx_packets, rx_bytes, tx_bytes
_MAX_LINKS = 20_000
#: InfiniBand counts 32-bit words. Source: kernel Documentation/ABI/stable/sysfs-class-infiniband.
_WORD_BYTES = 4
#: Soft-RoCE counts packets only; of the largest messages one carries so many bytes.
_PACKET_BYTES = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Carried:
    """Bytes that a device has carried, since it was made or between two looks."""

    sent: int
    received: int
    loopback: bool = False
    estimated: bool = False  #: the device counts packets only, and these are full ones


def read_counters(view: LocalView, *, sys_root: Path = Path("/sys")) -> dict[str, Carried]:
    """Return what each device has carried, by the names that plans use: ``eth0``, ``mlx5_0:1``.

    A device that does not tell is left out.

    Args:
        view: names the HCAs of this process.
        sys_root: where sysfs is mounted; containers may lack it.
    """
    found = _interfaces()
    for hca in view.hcas:
        for port in hca.ports:
            carried = _port(sys_root / "class/infiniband" / hca.name / "ports" / str(port))
            if carried is not None:
                found[f"{hca.name}:{port}"] = carried
    return found


def between(before: dict[str, Carried], after: dict[str, Carried]) -> dict[str, Carried]:
    """Return what devices have carried between two looks; those that were not there before count from nothing."""
    zero = Carried(sent=0, received=0)
    return {
        name: Carried(
            sent=max(0, now.sent - before.get(name, zero).sent),
            received=max(0, now.received - before.get(name, zero).received),
            loopback=now.loopback,
            estimated=now.estimated,
        )
        for name, now in after.items()
    }


def stacked_on(name: str, sys_root: Path = Path("/sys")) -> frozenset[str]:
    """Return the interfaces below and above one: a bond's, a bridge's or a VLAN's bytes are counted at each.

    Source: the links lower_* and upper_* in sysfs, kernel net/core/dev.c.
    """
    try:
        entries = [entry.name for entry in (sys_root / "class/net" / name).iterdir()]
    except OSError:
        return frozenset()
    return frozenset(entry.split("_", 1)[1] for entry in entries if entry.startswith(("lower_", "upper_")))


def _interfaces() -> dict[str, Carried]:
    try:
        links = dump(_RTM_GETLINK, _IFINFOMSG, (_IFLA_IFNAME, _IFLA_STATS64), limit=_MAX_LINKS)
    except (OSError, ValueError):
        return {}
    found = {}
    for (_, _, _, flags, _), told in links.items:
        counted = told.get(_IFLA_STATS64, b"")
        if len(counted) >= _STATS64.size:
            _, _, received, sent = _STATS64.unpack_from(counted)
            name = printable(told.get(_IFLA_IFNAME, b"").rstrip(b"\0"))
            found[name] = Carried(sent=sent, received=received, loopback=bool(flags & _IFF_LOOPBACK))
    return found


def _port(port: Path) -> Carried | None:
    for folder, sent, received, unit in (
        ("counters", "port_xmit_data", "port_rcv_data", _WORD_BYTES),
        ("hw_counters", "sent_pkts", "rcvd_pkts", _PACKET_BYTES),
    ):
        try:
            values = [int(read_bytes(port / folder / name)) * unit for name in (sent, received)]
        except (OSError, ValueError):  # the driver does not count this
            continue
        return Carried(sent=values[0], received=values[1], estimated=unit == _PACKET_BYTES)
    return None
