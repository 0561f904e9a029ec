"""Probe ``lldp``: the switch, port and VLAN at the other end of each interface, as an LLDP agent has heard them.

Two agents leave what they hear in files. systemd-networkd keeps the frames themselves (``LLDP=yes`` in a .network
file). lldpd keeps it to itself, but its client prints it to root (``fabricd.probe.facts``).
"""

import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from fabricd.model.device import LldpNeighbor
from fabricd.probe.answers import ask
from fabricd.probe.base import ProbeAbsent, ProbeContext, ProbeResult, ProbeUnsupported
from fabricd.probe.files import FieldReader
from fabricd.probe.lldp_frame import parse_frame, valid_vlan
from fabricd.smallfile import printable, read_bytes

#: Below ``Roots.run``.
LEFT_FACTS = "fabricd-facts/lldp.json"
#: Where a replay keeps the neighbours, in the folder of recorded answers.
RECORDED = "lldp.json"
_NETWORKD = "systemd/netif/lldp"
_MAX_BYTES = 4 * 2**20
_MAX_NEIGHBORS = 2000
_MAX_FRAME = 9216


@dataclass(frozen=True, slots=True, kw_only=True)
class LldpAnswer:
    """What the agents have left."""

    neighbors: tuple[LldpNeighbor, ...] = ()
    notes: tuple[str, ...] = ()


class LldpProbe:
    """Neighbours by LLDP."""

    name = "lldp"
    deadline_seconds = 5.0

    def run(self, ctx: ProbeContext) -> ProbeResult:
        """Read what the agents have left, in order of interface.

        Raises:
            ProbeUnsupported: lldpd runs, and nobody leaves its answers.
            ProbeAbsent: no LLDP agent.
        """
        answer = ask(ctx, RECORDED, LldpAnswer, lambda: _heard(ctx), from_files=True)
        return ProbeResult(facts={"lldp": answer.neighbors}, notes=answer.notes)


def _heard(ctx: ProbeContext) -> LldpAnswer:
    read = FieldReader()
    run = ctx.roots.run
    found = {*_from_networkd(ctx, read), *_from_lldpd(ctx, read)}
    # systemd makes networkd's folder also where networkd does not run: only a file in it proves an agent.
    if not found and not read.entries(run / _NETWORKD) and not read.exists(run / LEFT_FACTS):
        if read.exists(run / "lldpd.socket"):
            raise ProbeUnsupported(
                "lldpd runs, but tells only root what it hears: have fabricd facts run as root, regularly"
            )
        raise ProbeAbsent("no LLDP agent: neither systemd-networkd nor lldpd has left a neighbour")
    neighbors = sorted(found, key=lambda one: (one.interface, one.chassis_id, one.port_id))
    return LldpAnswer(neighbors=tuple(neighbors[:_MAX_NEIGHBORS]), notes=tuple(read.notes))


def _from_networkd(ctx: ProbeContext, read: FieldReader) -> Iterator[LldpNeighbor]:
    """Read frames, each behind its length in 8 bytes, from a file for each interface's index.

    Source: systemd, src/network/networkd-lldp-rx.c.
    """
    folder, net = ctx.roots.run / _NETWORKD, ctx.roots.sys / "class/net"
    indices = read.entries(folder)
    names = {read.text(net / name / "ifindex"): printable(name) for name in (read.entries(net) if indices else ())}
    for index in indices:
        name = names.get(index)
        if name is None:
            continue  # networkd removes the file of an interface that is gone, a little later
        try:
            for frame in _frames(read_bytes(folder / index, _MAX_BYTES)):
                neighbor = parse_frame(name, frame)
                if neighbor is not None:
                    yield neighbor
        except (OSError, ValueError) as error:
            read.note(folder / index, str(error))


def _frames(data: bytes) -> Iterator[bytes]:
    offset = 0
    while offset + 8 <= len(data):
        length = struct.unpack_from("<Q", data, offset)[0]
        if length > _MAX_FRAME or offset + 8 + length > len(data):
            raise ValueError(f"not frames as systemd-networkd leaves them: {length} bytes announced")
        yield data[offset + 8 : offset + 8 + length]
        offset += 8 + length


def _from_lldpd(ctx: ProbeContext, read: FieldReader) -> Iterator[LldpNeighbor]:
    path = ctx.roots.run / LEFT_FACTS
    try:
        data = json.loads(read_bytes(path, _MAX_BYTES))
    except FileNotFoundError:
        return
    except (OSError, ValueError, RecursionError) as error:
        read.note(path, f"not what lldpcli prints: {error}")
        return
    for lldp in _list(_get(data, "lldp")):
        for entry in _list(_get(lldp, "interface")):
            for name, facts in _named(entry):
                yield _neighbor(name, facts)


def _neighbor(interface: str, facts: Any) -> LldpNeighbor:
    system, chassis = next(_named(_first(_get(facts, "chassis"))), ("", {}))
    port = _first(_get(facts, "port"))
    vlans = [vlan for vlan in _list(_get(facts, "vlan")) if _get(vlan, "pvid") in (True, "yes")]
    vlan = str(_get(_first(vlans), "vlan-id"))
    number = int(vlan) if vlan.isascii() and vlan.isdecimal() and len(vlan) <= 4 else 0
    return LldpNeighbor(
        interface=interface,
        chassis_id=_value(_get(chassis, "id")),
        system_name=system or _value(_get(chassis, "name")),
        port_id=_value(_get(port, "id")),
        port_description=_value(_get(port, "descr")),
        vlan_id=valid_vlan(number),
    )


# lldpcli prints the same in two forms. "json" makes a list of one element that element, and a name the key of what it
# names: {"eth0": {...}}; "json0" has lists everywhere, and names and texts in fields: [{"name": "eth0"}],
# [{"value": "text"}].


def _get(value: Any, key: str) -> Any:
    return value.get(key) if isinstance(value, dict) else None


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [] if value is None else [value]


def _first(value: Any) -> Any:
    return next(iter(_list(value)), None)


def _value(value: Any) -> str:
    value = _first(value)
    return printable(_get(value, "value") if isinstance(value, dict) else value)[:512]


def _named(entry: Any) -> Iterator[tuple[str, Any]]:
    """Return what an interface or a chassis is called, and its facts; "" for a chassis without a name."""
    if not isinstance(entry, dict):
        return
    if "id" in entry or "name" in entry or "via" in entry:
        yield _value(entry.get("name")), entry
        return
    for name, facts in entry.items():
        for one in _list(facts):
            yield printable(name)[:512], one
