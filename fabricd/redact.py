"""Takes a machine's identity out of what is known of it, and leaves its shape: for captures that are shown to others.

Every string is searched, so that fields of later versions are covered too. One thing is replaced alike wherever it
stands, under a key: drawn for each capture and thrown away, or kept in a file, so that captures of several nodes fit
together. Addresses keep what makes them fit (``fabricd.redact_pseudonyms``); ids, serial numbers, host names, home
directories and what switches call themselves become random ones.
"""

import ipaddress
import re
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import msgspec

from fabricd.model.codec import content_hash, to_builtins
from fabricd.model.identity import unique_id
from fabricd.model.snapshot import Snapshot
from fabricd.redact_pseudonyms import Pseudonyms

_HEX4 = "[0-9a-fA-F]{4}"
_UUID = re.compile(
    r"(?<![\w-])[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}(?![\w-])|(?<=GPU-|MIG-)[0-9a-fA-F-]{36}"
)
_GUID = re.compile(rf"(?<![\w:])(?:{_HEX4}:){{3}}{_HEX4}(?![\w:])")
_MAC = re.compile(r"(?<![\w:])(?:[0-9a-fA-F]{2}:){5}(?:(?:[0-9a-fA-F]{2}:){14})?[0-9a-fA-F]{2}(?![\w:])")
#: In topology files, which write GUIDs and hashes of host names as numbers.
_XML_ID = re.compile(r'(?<=guid="0x|hash="0x)[0-9a-fA-F]{1,16}(?=")')
#: Where the name of a field says that it is one.
_BARE_GUID = re.compile(r"(?<![0-9a-fA-F:])(?:(?<=0x)|(?<!x))[0-9a-fA-F]{16}(?![0-9a-fA-F:])")
#: Of an end of a tunnel: its IP address as bytes.
_TUNNEL_END = re.compile(r"[0-9a-fA-F]{2}(?::[0-9a-fA-F]{2}){3}(?:(?::[0-9a-fA-F]{2}){12})?")
#: systemd's and rdma-core's names that are made of an address: "enxb8cef6aabbcc", "ibxb8cef60300aabbcc".
_IN_NAME = re.compile(r"(?<![0-9a-zA-Z])([a-z]{2,5}x)([0-9a-f]{16}|[0-9a-f]{12})(?![0-9a-zA-Z])")
_ID = re.compile(r"(?<!\w)[0-9a-f]{32}(?!\w)")
_IPV4 = re.compile(r"(?<![\w.])(?<!ffff:)(?:\d{1,3}\.){3}\d{1,3}(?:/\d{1,2})?(?!\w|\.\d)", re.IGNORECASE)
#: What may be a MAC, a GUID or an IPv6 address, and perhaps the end of a word before it and a colon behind it.
_COLONS = re.compile(r"[0-9a-fA-F]*:(?:[0-9a-fA-F:]|\.(?=\d))*(?:/\d{1,3})?")
_HOME = re.compile(r"(?<![\w.-])(/home/|/Users/|/users/)([^/\s:;,'\"]+)")
#: Versions may look like addresses.
_NO_ADDRESSES = frozenset({"firmware", "kernel", "os", "driver_version", "nvml_version", "cuda_version", "board_id"})
#: What names stand for, by the field that holds them.
_NAMES = {
    "hostname": "host", "node.name": "host", "node_id": "node", "system_name": "switch", "chassis_id": "switch",
    "switches.name": "switch", "switches": "switch", "block": "block", "rack": "rack", "nvlink_domain": "domain",
    "instance_id": "instance", "vpc": "vpc", "site_networks.name": "network", "networks.name": "network",
}  # fmt: skip
#: Only here may a name stand; elsewhere it would be a word that happens to be alike, such as "up".
_NAMED = frozenset({*_NAMES, "reason", "notes", "path", "origin"})
_SHORTEST_IN_TEXT = 4  #: a rack called "1" stands for itself, but for no other 1
_FREE_TEXT = frozenset({"port_description"})
#: Whose fields called "name" are names.
_OWNERS = frozenset({"node", "switches", "site_networks", "networks"})


def redact(snapshot: Snapshot, *, key: bytes | None = None) -> Snapshot:
    """Return the snapshot without what identifies the machine and its neighbours.

    Args:
        snapshot: what is known.
        key: secret; snapshots that share it have the same things replaced alike. By default one is drawn.
    """
    tree = to_builtins(replace(snapshot, instance="", generation=0))
    told = redactor_for([tree], key=key).walk(tree)
    redacted = msgspec.convert(told, Snapshot)
    return replace(redacted, content_hash=content_hash(redacted))


def redactor_for(
    trees: Iterable[Any], *, texts: Iterable[str] = (), names: Mapping[str, str] | None = None, key: bytes | None = None
) -> "Redactor":
    """Return what replaces names and ids of things that hang together.

    Args:
        trees: of dicts, lists and strings, with the fields' names of the model.
        texts: more, without fields.
        names: more names, and what kind each is of: "host", "user", ...
        key: secret; by default one is drawn.
    """
    fields = [field for tree in trees for field in _strings(tree)]
    found = {name.lower(): kind for name, kind in (names or {}).items() if name}
    for field, text in fields:
        kind = _NAMES.get(field, "")
        for name in {text, text.partition(".")[0]} if kind == "host" else {text}:
            if kind and name and not _is_id(name):
                found.setdefault(name.lower(), kind)
    guids = {
        match.group().replace(":", "").lower()
        for text in (*(text for _, text in fields), *texts)
        for match in _GUID.finditer(text)
    }
    return Redactor(secrets.token_bytes(32) if key is None else key, found, guids)


class Redactor:
    """Replaces by one key.

    Args:
        key: of the pseudorandom function.
        names: what kind each name is of; in lower case.
        guids: GUIDs that are known, 16 hex digits: the second half of an address may be one.
    """

    def __init__(self, key: bytes, names: Mapping[str, str], guids: set[str]) -> None:
        self._stands = Pseudonyms(key, guids)
        self._names = dict(names)
        in_text = [name for name, kind in names.items() if kind in ("host", "user") or len(name) >= _SHORTEST_IN_TEXT]
        longest_first = "|".join(map(re.escape, sorted(in_text, key=len, reverse=True)))
        self._name = re.compile(rf"(?<![\w-])(?:{longest_first})(?![\w-])", re.IGNORECASE) if in_text else None

    def walk(self, node: Any, key: str = "") -> Any:
        """Return the tree with every string replaced."""
        if isinstance(node, dict):
            return {name: self.walk(value, _field(key, name)) for name, value in node.items()}
        if isinstance(node, list | tuple):
            return [self.walk(value, key) for value in node]
        return self.text(node, key) if isinstance(node, str) else node

    def text(self, text: str, key: str = "") -> str:
        """Return a text with what identifies in it replaced.

        Args:
            text: any.
            key: name of the field that holds it.
        """
        if key in _FREE_TEXT and text:
            return f"text-{self._stands.hash('text', text)[:8]}"
        if "serial" in key and text.strip():
            return f"serial-{self._stands.hash('serial', text.strip())[:8]}"
        if key in _NAMES and text.lower() in self._names:
            return self._renamed(text)
        if self._name and key in _NAMED:
            text = self._name.sub(lambda match: self._renamed(match.group()), text)
        if key == "mac" and _TUNNEL_END.fullmatch(text.strip()):
            return self._tunnel_end(text)
        if key == "prefix" and _GUID.fullmatch(text):  # of an InfiniBand subnet: the first half of its addresses
            return self._stands.address(ipaddress.IPv6Address(f"{text}::")).exploded[:19]
        text = _COLONS.sub(lambda match: self._in_colons(match, key not in _NO_ADDRESSES), text)
        for pattern, change in self._rules(key):
            text = pattern.sub(lambda match, change=change: change(match.group()), text)  # type: ignore[misc] # the default binds
        text = _IN_NAME.sub(lambda match: match[1] + self._digits(match[2]), text)
        text = _HOME.sub(lambda match: match[1] + f"user-{self._stands.hash('user', match[2])[:8]}", text)
        return text if key in _NO_ADDRESSES else _IPV4.sub(lambda match: self._stands.ip(match.group()), text)

    def whole_id(self, text: str) -> str:
        """Return what stands for a text that is an id as a whole, in whatever form; one that was never set stays."""
        if not unique_id(text):
            return text
        found = self.text(text)
        return found if found != text else f"{self._stands.hash('id', unique_id(text))[:32]}\n"

    def _rules(self, key: str) -> Iterator[tuple[re.Pattern[str], Callable[[str], str]]]:
        yield _UUID, self._stands.uuid
        yield _ID, lambda found: self._stands.hash("id", found)[:32]
        yield _XML_ID, lambda found: self._stands.hash("id", found)[:16]
        if "guid" in key:
            yield _BARE_GUID, lambda found: self._stands.guid(found.lower())

    def _renamed(self, name: str) -> str:
        kind = self._names[name.lower()]
        told = name.partition(".")[0] if kind == "host" else name
        return ("/home/" if name.startswith("/") else "") + f"{kind}-{self._stands.hash(kind, told)[:8]}"

    def _digits(self, digits: str) -> str:
        return self._stands.guid(digits) if len(digits) == 16 else self._stands.mac(digits)

    def _tunnel_end(self, text: str) -> str:
        number = int(text.strip().replace(":", ""), 16)
        address = ipaddress.IPv6Address(number) if len(text.strip()) > 11 else ipaddress.IPv4Address(number)
        return text.replace(text.strip(), self._stands.address(address).packed.hex(":"))

    def _in_colons(self, match: re.Match[str], addresses: bool) -> str:
        """Return a run of digits and colons with the MAC, GUID or IPv6 address in it replaced."""
        before, found, after = "", match.group(), ""
        if match.start() and re.match(r"\w", match.string[match.start() - 1]):  # "iface:2001:db8::1"
            word, colon, found = found.partition(":")
            before = word + colon
        if found.endswith(":") and not found.endswith("::"):
            found, after = found[:-1], ":"
        bare, slash, length = found.partition("/")
        digits = bare.replace(":", "").lower()
        if _GUID.fullmatch(bare):
            found = _in_groups(self._stands.guid(digits), 4) + slash + length
        elif _MAC.fullmatch(bare):
            found = _in_groups(self._stands.mac(digits), 2) + slash + length
        elif addresses and found.count(":") > 1:
            found = self._stands.ip(found)
        return before + found + after


def _is_id(name: str) -> bool:
    """Tell whether a name is an address or an id, which are replaced by rules of their own."""
    if _MAC.fullmatch(name) or _ID.fullmatch(name) or _UUID.search(name):
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _in_groups(digits: str, width: int) -> str:
    return ":".join(digits[at : at + width] for at in range(0, len(digits), width))


def _field(owner: str, name: str) -> str:
    return f"{owner}.name" if name == "name" and owner in _OWNERS else name


def _strings(node: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """Yield every string of the tree with the name of its field."""
    if isinstance(node, dict):
        for name, value in node.items():
            yield from _strings(value, _field(key, name))
    elif isinstance(node, list | tuple):
        for value in node:
            yield from _strings(value, key)
    elif isinstance(node, str):
        yield key, node
