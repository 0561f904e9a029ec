"""Takes a machine's identity out of a snapshot and leaves its shape: for captures that are shown to others.

Every string is searched, so that fields of later versions are covered too. One thing is replaced alike wherever it
stands, under a key that is drawn for each capture and thrown away:

- IP addresses keep which of them share which prefix (so subnets and routes still fit), and stay private, global or
  link-local as they were; the method is prefix-preserving (Xu, Fan, Ammar, Moon: "Prefix-preserving IP address
  anonymization", 2002);
- MAC addresses and GUIDs keep their manufacturer's part;
- UUIDs, ids, host names and what switches call themselves become random or numbered ones.
"""

import hashlib
import ipaddress
import re
import secrets
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import msgspec

from fabricd.model.codec import content_hash, to_builtins
from fabricd.model.infiniband import IbFabric
from fabricd.model.snapshot import Snapshot

_HEX4 = "[0-9a-fA-F]{4}"
_UUID = re.compile(
    r"(?<![\w-])[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}(?![\w-])|(?<=GPU-|MIG-)[0-9a-fA-F-]{36}"
)
_GUID = re.compile(rf"(?<![\w:])(?:{_HEX4}:){{3}}{_HEX4}(?![\w:])")
_MAC = re.compile(r"(?<![\w:])(?:[0-9a-fA-F]{2}:){5}(?:(?:[0-9a-fA-F]{2}:){14})?[0-9a-fA-F]{2}(?![\w:])")
#: In topology files, which write GUIDs and hashes of host names as numbers.
_XML_ID = re.compile(r'(?<=guid="0x|hash="0x)[0-9a-fA-F]{1,16}(?=")')
_MAC_IN_NAME = re.compile(r"(?<=^enx)[0-9a-f]{12}$")
_ID = re.compile(r"(?<!\w)[0-9a-f]{32}(?!\w)")
_IPV4 = re.compile(r"(?<![\w.])(?:\d{1,3}\.){3}\d{1,3}(?:/\d{1,2})?(?![\w.])")
_IPV6 = re.compile(r"(?<![\w:])[0-9a-fA-F:]*:[0-9a-fA-F:]*:[0-9a-fA-F:.]*(?:/\d{1,3})?(?![\w:])")
#: Versions may look like addresses.
_NO_ADDRESSES = frozenset({"firmware", "kernel", "os", "driver_version", "nvml_version", "cuda_version", "board_id"})
_NAMES_OF_SWITCHES = ("system_name", "chassis_id")
#: Only here may a name stand; elsewhere it would be a word that happens to be alike, such as "up".
_NAMED = frozenset({*_NAMES_OF_SWITCHES, "hostname", "node_id", "reason", "notes"})
_FREE_TEXT = frozenset({"port_description"})

_Address = ipaddress.IPv4Address | ipaddress.IPv6Address
#: Bits at the beginning that say what kind of address it is, and are kept; the first network that fits counts.
_KEPT_BITS = (
    ("127.0.0.0/8", 32), ("0.0.0.0/32", 32), ("255.255.255.255/32", 32), ("224.0.0.0/4", 32), ("10.0.0.0/8", 8),
    ("172.16.0.0/12", 12), ("192.168.0.0/16", 16), ("169.254.0.0/16", 16), ("100.64.0.0/10", 10),
    ("100.0.0.0/8", 16), ("169.0.0.0/8", 16), ("172.0.0.0/8", 16), ("192.0.0.0/8", 16), ("0.0.0.0/0", 8),
    ("::/127", 128), ("ff00::/8", 128), ("fe80::/10", 64), ("fc00::/7", 8), ("2000::/3", 3), ("::/0", 16),
)  # fmt: skip
_KINDS = tuple((ipaddress.ip_network(text), bits) for text, bits in _KEPT_BITS)


def redact(snapshot: Snapshot) -> Snapshot:
    """Return the snapshot without what identifies the machine and its neighbours."""
    names = _names(snapshot)
    node = replace(snapshot.node, name=names.get(snapshot.node.name, ""))
    fabrics = tuple(_renamed(fabric, names) for fabric in snapshot.ib_fabrics)
    tree = to_builtins(replace(snapshot, node=node, ib_fabrics=fabrics, instance="", generation=0))
    key = secrets.token_bytes(32)
    known = {match.group().replace(":", "").lower() for _, text in _strings(tree) for match in _GUID.finditer(text)}
    told = _Redactor(key, names, known).walk(tree)
    redacted = msgspec.convert(told, Snapshot)
    return replace(redacted, content_hash=content_hash(redacted))


class _Redactor:
    """Replaces by one key.

    Args:
        key: of the pseudorandom function.
        names: replacement of each name.
        guids: GUIDs that stand in the snapshot, 16 hex digits: the second half of an address may be one.
    """

    def __init__(self, key: bytes, names: Mapping[str, str], guids: set[str]) -> None:
        self._key = key
        self._guids = guids
        self._names = dict(names)
        longest_first = sorted(names, key=len, reverse=True)
        self._name = re.compile(rf"(?<![\w-])(?:{'|'.join(map(re.escape, longest_first))})(?![\w-])") if names else None

    def walk(self, node: Any, key: str = "") -> Any:
        """Return the tree with every string replaced."""
        if isinstance(node, dict):
            return {name: self.walk(value, name) for name, value in node.items()}
        if isinstance(node, list | tuple):
            return [self.walk(value, key) for value in node]
        return self._text(node, key) if isinstance(node, str) else node

    def _text(self, text: str, key: str) -> str:
        if key in _FREE_TEXT and text:
            return f"text-{self._hash('text', text)[:8]}"
        if self._name and key in _NAMED:
            text = self._name.sub(lambda match: self._names[match.group()], text)
        rules: tuple[tuple[re.Pattern[str], Callable[[str], str]], ...] = (
            (_UUID, self._uuid),
            (_ID, lambda found: self._hash("id", found)[:32]),
            (_GUID, self._colons(self._guid, 4)),
            (_MAC, self._colons(self._mac, 2)),
            (_MAC_IN_NAME, self._mac),
            (_XML_ID, lambda found: self._hash("id", found)[:16]),
        )
        for pattern, change in rules:
            text = pattern.sub(lambda match, change=change: change(match.group()), text)  # type: ignore[misc] # the default binds
        if key not in _NO_ADDRESSES:
            text = _IPV4.sub(self._in_text, text)
            text = _IPV6.sub(self._in_text, text)
        return text

    def _hash(self, kind: str, text: str) -> str:
        return hashlib.blake2b(text.lower().encode(), key=self._key, person=kind.encode(), digest_size=32).hexdigest()

    def _uuid(self, found: str) -> str:
        if not found.strip("0-"):
            return found  # all zeros say that there is none
        digits = self._hash("uuid", found)
        return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:32]))

    def _colons(self, change: Callable[[str], str], width: int) -> Callable[[str], str]:
        """Return the change of digits made one of digits in groups."""

        def changed(found: str) -> str:
            digits = change(found.replace(":", "").lower())
            return ":".join(digits[at : at + width] for at in range(0, len(digits), width))

        return changed

    def _guid(self, digits: str) -> str:
        return digits if not digits.strip("0") else digits[:6] + self._hash("guid", digits)[:10]

    def _mac(self, digits: str) -> str:
        if len(digits) == 40:  # IPoIB: flags, queue pair, GID (RFC 4391)
            return digits[:24] + self._guid(digits[24:])
        return (
            digits if digits.strip("0") == "" or digits.strip("f") == "" else digits[:6] + self._hash("mac", digits)[:6]
        )

    def _in_text(self, match: re.Match[str]) -> str:
        text, slash, length = match.group().partition("/")
        try:
            address = ipaddress.ip_address(text)
            network = ipaddress.ip_network(match.group(), strict=False) if slash else None
        except ValueError:
            return match.group()
        changed = self._address(address)
        if network is not None and network.network_address == address:
            changed = ipaddress.ip_network(f"{changed}/{length}", strict=False).network_address
        exploded = isinstance(changed, ipaddress.IPv6Address) and text == address.exploded
        return (changed.exploded if exploded else str(changed)) + slash + length

    def _address(self, address: _Address) -> _Address:
        if isinstance(address, ipaddress.IPv4Address):
            return ipaddress.IPv4Address(self._prefix_preserving(address))
        if address.ipv4_mapped is not None:
            return ipaddress.IPv6Address(0xFFFF << 32 | self._prefix_preserving(address.ipv4_mapped))
        number = self._prefix_preserving(address)
        host = f"{int(address) & (1 << 64) - 1:016x}"
        if host in self._guids:  # the port's GID is its subnet prefix and its GUID
            number = number >> 64 << 64 | int(self._guid(host), 16)
        return ipaddress.IPv6Address(number)

    def _prefix_preserving(self, address: _Address) -> int:
        """Return the address with each bit flipped or not, as the bits before it say."""
        width = address.max_prefixlen
        number = int(address)
        kept = _kept_bits(address)
        for position in range(kept, width):
            before = int(address) >> (width - position)
            flip = (
                hashlib.blake2b(f"{width}.{position}.{before}".encode(), key=self._key, digest_size=1).digest()[0] & 1
            )
            number ^= flip << (width - position - 1)
        return number


def _kept_bits(address: _Address) -> int:
    return next(bits for network, bits in _KINDS if address in network)


def _strings(node: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """Yield every string of the tree with the name of its field."""
    if isinstance(node, dict):
        for name, value in node.items():
            yield from _strings(value, name)
    elif isinstance(node, list | tuple):
        for value in node:
            yield from _strings(value, key)
    elif isinstance(node, str):
        yield key, node


def _names(snapshot: Snapshot) -> dict[str, str]:
    """Return what stands for each name of this host and of the switches around it."""
    node = snapshot.node
    found: dict[str, str] = {}
    for name in (node.name, node.hostname):
        for form in (name, name.partition(".")[0]):
            found.setdefault(form, "host-1")
    if not _ID.fullmatch(node.node_id):
        found.setdefault(node.node_id, "node-1")
    told = [getattr(neighbor, field) for neighbor in snapshot.lldp for field in _NAMES_OF_SWITCHES]
    told += [switch.name for fabric in snapshot.ib_fabrics for switch in fabric.switches]
    switches: dict[str, str] = {}
    for name in told:
        if not _MAC.fullmatch(name):
            found.setdefault(name, switches.setdefault(name, f"switch-{len(switches) + 1}"))
    found.pop("", None)
    return found


def _renamed(fabric: IbFabric, names: Mapping[str, str]) -> IbFabric:
    switches = tuple(replace(switch, name=names.get(switch.name, "")) for switch in fabric.switches)
    return replace(fabric, switches=switches)
