"""What stands for one thing, by a key: the same wherever it stands, and as near to its kind as it may be.

- IP addresses keep which of them share which prefix (so subnets and routes still fit), and stay private, global or
  link-local as they were; the method is prefix-preserving (Xu, Fan, Ammar, Moon: "Prefix-preserving IP address
  anonymization", 2002);
- MAC addresses and GUIDs keep their manufacturer's part;
- UUIDs and all else become random ones.
"""

import hashlib
import ipaddress
from collections.abc import Set as AbstractSet

_Address = ipaddress.IPv4Address | ipaddress.IPv6Address
#: Bits at the beginning that say what kind of address it is, and are kept; the first network that fits counts.
_KEPT_BITS = (
    ("127.0.0.0/8", 32), ("0.0.0.0/32", 32), ("255.255.255.255/32", 32), ("224.0.0.0/4", 32), ("10.0.0.0/8", 8),
    ("172.16.0.0/12", 12), ("192.168.0.0/16", 16), ("169.254.169.254/32", 32), ("169.254.0.0/16", 16),
    ("100.64.0.0/10", 10), ("100.0.0.0/8", 16), ("169.0.0.0/8", 16), ("172.0.0.0/8", 16), ("192.0.0.0/8", 16),
    ("0.0.0.0/0", 8), ("::/127", 128), ("ff00::/8", 128), ("fe80::/10", 64), ("fc00::/7", 8), ("2000::/3", 3),
    ("::/0", 16),
)  # fmt: skip
_KINDS = tuple((ipaddress.ip_network(text), bits) for text, bits in _KEPT_BITS)


class Pseudonyms:
    """Makes them by one key.

    Args:
        key: of the pseudorandom function.
        guids: GUIDs that are known, 16 hex digits: the second half of an address may be one.
    """

    def __init__(self, key: bytes, guids: AbstractSet[str]) -> None:
        self._key = hashlib.blake2b(key, digest_size=32).digest()
        self._guids = guids

    def hash(self, kind: str, text: str) -> str:
        """Return 64 hex digits for a text of a kind, whose case does not count."""
        return hashlib.blake2b(text.lower().encode(), key=self._key, person=kind.encode(), digest_size=32).hexdigest()

    def uuid(self, found: str) -> str:
        """Return another UUID; for the one that is none, itself."""
        if not found.strip("0-"):
            return found  # all zeros say that there is none
        digits = self.hash("uuid", found)
        return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:32]))

    def guid(self, digits: str) -> str:
        """Return another GUID of the same manufacturer: 16 hex digits."""
        return digits if not digits.strip("0") else digits[:6] + self.hash("guid", digits)[:10]

    def mac(self, digits: str) -> str:
        """Return another MAC of the same manufacturer, or IPoIB address with another GUID: 12 or 40 hex digits."""
        if len(digits) == 40:  # IPoIB: flags, queue pair, GID (RFC 4391)
            prefix = self.address(ipaddress.IPv6Address(int(digits[8:24], 16) << 64)).exploded[:19].replace(":", "")
            return digits[:8] + prefix + self.guid(digits[24:])
        if digits.strip("0") == "" or digits.strip("f") == "":
            return digits
        # One that is locally administered has no manufacturer: some are made of an IP address.
        kept = 2 if int(digits[:2], 16) & 0x02 else 6
        return digits[:kept] + self.hash("mac", digits)[: 12 - kept]

    def ip(self, found: str) -> str:
        """Return an address or a network with its address replaced; what is none as it is."""
        text, slash, length = found.partition("/")
        try:
            address = ipaddress.ip_address(text)
            network = ipaddress.ip_network(found, strict=False) if slash else None
        except ValueError:
            return found
        changed = self.address(address)
        if network is not None and network.network_address == address:
            changed = ipaddress.ip_network(f"{changed}/{length}", strict=False).network_address
        exploded = isinstance(changed, ipaddress.IPv6Address) and text == address.exploded
        return (changed.exploded if exploded else str(changed)) + slash + length

    def address(self, address: _Address) -> _Address:
        """Return an address of the same kind, which shares its prefix with all that shared one with this."""
        if isinstance(address, ipaddress.IPv4Address):
            return ipaddress.IPv4Address(self._prefix_preserving(address))
        if address.ipv4_mapped is not None:
            return ipaddress.IPv6Address(0xFFFF << 32 | self._prefix_preserving(address.ipv4_mapped))
        number = self._prefix_preserving(address)
        host = f"{int(address) & (1 << 64) - 1:016x}"
        if host in self._guids:  # the port's GID is its subnet prefix and its GUID
            number = number >> 64 << 64 | int(self.guid(host), 16)
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
