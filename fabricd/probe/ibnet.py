"""Reads what ``ibnetdiscover`` prints: the nodes of InfiniBand fabrics, and which port is linked to which.

The form is also that of ``ibsim``'s net files, which name nodes by any word and leave out what a comment would tell.
Source: rdma-core infiniband-diags/ibnetdiscover.c and its manual page.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum

from fabricd.errors import ParseError
from fabricd.smallfile import printable

MAX_BYTES = 64 * 2**20  #: a fabric of 10,000 hosts with 8 adapters each fills about 40 MiB
_MAX_NODES = 200_000
_MAX_LINE = 1024
_MAX_NOTES = 50
_AGGREGATION_NODE = "Aggregation Node"  # how NVIDIA's switches describe the node in them that reduces (SHARP)

_HEADER = re.compile(r'(Switch|Ca|Hca|Rt)\s+(\d{1,3})\s+"([^"]{1,80})"\s*(?:#\s*"(.*)"([^"]*))?')
_PORT = re.compile(
    r"\[(\d{1,3})\](?:\[ext \d+\])?\s*(?:\(([0-9a-fA-F]{1,16})\))?"
    r'\s*"([^"]{1,80})"\s*\[(\d{1,3})\](?:\[ext \d+\])?\s*(?:\(([0-9a-fA-F]{1,16})\))?\s*(.*)'
)
_FACT = re.compile(r"(vendid|devid|sysimgguid|switchguid|caguid|rtguid)=0x([0-9a-fA-F]{1,16})\b.*")
_NO_NODE = re.compile(r"(Non-Chassis Nodes|Chassis \d|Hostname:)")
_NODE_ID = re.compile(r"[SHR]-([0-9a-f]{16})")
_LID = re.compile(r"\blid (\d{1,8})\b")
_OWN_LID = re.compile(r"#\s*lid (\d{1,8}) lmc \d")
_WIDTH_AND_SPEED = re.compile(r"\blid \d{1,8} (\d{1,2})x([A-Z0-9]{3,5})\b[^\"]*$")


class IbKind(StrEnum):
    """What a node is."""

    SWITCH = "switch"
    HCA = "hca"
    ROUTER = "router"
    AGGREGATION = "aggregation"  #: reduces what others send (SHARP); its text calls it an adapter


_KINDS = {"Switch": IbKind.SWITCH, "Ca": IbKind.HCA, "Hca": IbKind.HCA, "Rt": IbKind.ROUTER}


@dataclass(frozen=True, slots=True)
class IbPort:
    """A port that is linked, and the other end."""

    peer: str  #: id of the node there
    peer_port: int
    guid: str = ""  #: of an adapter's port
    lid: int | None = None  #: of an adapter's port; a switch has one for all
    width: int | None = None
    speed: str = ""


@dataclass(slots=True)
class IbNode:
    """A switch, adapter or router."""

    id: str  #: as the text quotes it, "S-248a070300e19fd0"
    kind: IbKind
    port_count: int
    name: str = ""
    guid: str = ""  #: "248a:0703:00e1:9fd0"
    system_guid: str = ""
    vendor_id: int | None = None
    device_id: int | None = None
    lid: int | None = None  #: of a switch
    ports: dict[int, IbPort] = field(default_factory=dict)  #: those that are linked


@dataclass(slots=True)
class IbNet:
    """All that a text tells. It may hold several fabrics that nothing joins.

    Attributes:
        nodes: by id.
        notes: what could not be read or contradicts itself, "line: why"; bounded.
    """

    nodes: dict[str, IbNode] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def links(self) -> Iterator[tuple[tuple[str, int], tuple[str, int]]]:
        """Return each link once, as its two ends (node id, port), the lesser one first."""
        seen = set()
        for node in self.nodes.values():
            for number, port in node.ports.items():
                here, there = (node.id, number), (port.peer, port.peer_port)
                link = (here, there) if here <= there else (there, here)
                if link not in seen:
                    seen.add(link)
                    yield link


def parse_ibnet(text: str, *, what: str = "ibnetdiscover's output") -> IbNet:
    """Return the nodes and links of a text. A line that is none of those known costs only itself, and a note.

    Args:
        text: one or more outputs, one after another; of what stands twice, the last is taken.
        what: names the text in errors.

    Raises:
        ParseError: too large, or no node in it.
    """
    if len(text) > MAX_BYTES:
        raise ParseError(f"{what} is larger than {MAX_BYTES} bytes")
    reader = _Reader()
    for number, line in enumerate(_lines(text), 1):
        reader.read(number, line.strip())
    if not reader.net.nodes:
        reason = f" ({reader.net.notes[0]})" if reader.net.notes else ""
        raise ParseError(
            f"{what} names no InfiniBand node{reason}", hint='expected lines such as Switch 36 "S-..." # "name" ...'
        )
    _check_ends(reader)
    return reader.net


def _lines(text: str) -> Iterator[str]:
    """Return the lines one by one: a copy of them all, of a large fabric, would be larger than all that is kept."""
    start = 0
    while start < len(text):
        end = text.find("\n", start)
        end = len(text) if end < 0 else end
        yield text[start:end]
        start = end + 1


def group_digits(digits: str) -> str:
    """Return a GUID as sysfs writes it, of at most 16 hex digits; "" for zero, which is none."""
    padded = digits.lower().rjust(16, "0")
    return ":".join(padded[at : at + 4] for at in range(0, 16, 4)) if padded.strip("0") else ""


class _Reader:
    """Takes line after line. Facts stand above the node that they tell of, its ports below it."""

    def __init__(self) -> None:
        self.net = IbNet()
        self._facts: dict[str, str] = {}
        self._node: IbNode | None = None

    def note(self, where: str, why: str) -> None:
        if len(self.net.notes) < _MAX_NOTES:
            self.net.notes.append(printable(f"{where}: {why}"))

    def read(self, number: int, line: str) -> None:
        if not line:
            self._node, self._facts = None, {}
            return
        if line.startswith("#") or _NO_NODE.match(line):
            return
        where = f"line {number}"
        rules: tuple[tuple[re.Pattern[str], Callable[[str, re.Match[str]], None]], ...] = (
            (_PORT, self._port),
            (_FACT, self._fact),
            (_HEADER, self._header),
        )
        for pattern, take in rules:
            match = pattern.fullmatch(line) if len(line) <= _MAX_LINE else None
            if match is not None:
                take(where, match)
                return
        self.note(where, "not understood")

    def _fact(self, _where: str, match: re.Match[str]) -> None:
        self._facts[match[1]] = match[2]

    def _header(self, where: str, match: re.Match[str]) -> None:
        kind, ports, node_id, name, more = match.groups()
        facts, self._facts = self._facts, {}
        known = _NODE_ID.fullmatch(node_id)
        guid = known[1] if known else facts.get("switchguid") or facts.get("caguid") or facts.get("rtguid") or "0"
        lid = _LID.search(more or "")
        # Walks from two ports of one adapter each show it with that port alone.
        earlier = self.net.nodes.get(node_id)
        node = self._node = IbNode(
            id=node_id,
            kind=IbKind.AGGREGATION if (name or "").endswith(_AGGREGATION_NODE) else _KINDS[kind],
            port_count=max(int(ports), earlier.port_count if earlier else 0),
            name=printable(name or node_id),
            guid=group_digits(guid),
            system_guid=group_digits(facts.get("sysimgguid", "0")),
            vendor_id=int(facts["vendid"], 16) if "vendid" in facts else None,
            device_id=int(facts["devid"], 16) if "devid" in facts else None,
            lid=_lid(lid),
            ports=earlier.ports if earlier else {},
        )
        if len(self.net.nodes) >= _MAX_NODES:
            raise ParseError(f"{where}: more than {_MAX_NODES} InfiniBand nodes")
        self.net.nodes[node_id] = node

    def _port(self, where: str, match: re.Match[str]) -> None:
        number, guid, peer, peer_port, _peer_guid, comment = match.groups()
        node = self._node
        if node is None:
            self.note(where, "a port that belongs to no node")
            return
        if not 1 <= int(number) <= node.port_count:
            self.note(where, f"port {int(number)} of a node with {node.port_count} ports")
            return
        speed = _WIDTH_AND_SPEED.search(comment)
        node.ports[int(number)] = IbPort(
            peer=peer,
            peer_port=int(peer_port),
            guid=group_digits(guid or "0"),
            lid=_lid(_OWN_LID.match(comment)),
            width=int(speed[1]) if speed else None,
            speed=speed[2] if speed else "",
        )


def _lid(match: re.Match[str] | None) -> int | None:
    """Return a LID; None for 0, which a port has before the subnet manager gives it one."""
    return int(match[1]) or None if match else None


def _check_ends(reader: _Reader) -> None:
    """Note links of which the other end tells otherwise: a cable was moved during the walk, or the text is cut."""
    # Nodes are named by GUID here, not by what they call themselves: that often is a host's name.
    nodes = reader.net.nodes
    for node in nodes.values():
        for number, port in node.ports.items():
            peer = nodes.get(port.peer)
            where = f"{node.guid or node.id} port {number}"
            if peer is None:
                reader.note(where, "is linked to a node that is not described")
                continue
            back = peer.ports.get(port.peer_port)
            if back is None or (back.peer, back.peer_port) != (node.id, number):
                reader.note(where, f"is linked to {peer.guid or peer.id} port {port.peer_port}, which says otherwise")
