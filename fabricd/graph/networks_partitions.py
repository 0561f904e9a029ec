"""InfiniBand partitions: ports of one fabric that share no P_Key cannot talk.

Source: InfiniBand architecture, volume 1, 10.9: two ports need a key in common, and one of them as a full member.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache

from fabricd.graph.disjoint import DisjointSets
from fabricd.model.device import HcaPort
from fabricd.model.network import Network

_FULL = 0x8000


def full_keys(port: HcaPort) -> frozenset[int]:
    """Return the keys that a port is a full member of, without the bit that says so; one object for all alike."""
    return _full(port.pkeys)


@lru_cache(maxsize=1024)
def _full(keys: tuple[int, ...]) -> frozenset[int]:
    return frozenset(key & ~_FULL for key in keys if key & _FULL)


def by_partition(network: Network, keys: Sequence[frozenset[int]]) -> Iterator[Network]:
    """Yield a fabric's partitions, where its ports prove that it has several; else the fabric as it is.

    Ports that are full members of one key are together. Where a port's keys are not known, or it is a limited member
    only, nothing proves that it is apart, so the fabric is left as it is.

    Args:
        network: the fabric.
        keys: that each of its ports is a full member of.
    """
    groups = _groups(keys)
    if len(groups) < 2:
        yield network
        return
    for members in groups:
        own = {keys[at] for at in members}
        key = min(frozenset.intersection(*own) or frozenset.union(*own))
        yield replace(
            network,
            name=f"{network.name}@pkey{key | _FULL:#06x}",
            ports=tuple(network.ports[at] for at in members),
            reason=f"{network.reason}; full members of partition {key | _FULL:#06x}, as others on the fabric are not",
        )


def _groups(keys: Sequence[frozenset[int]]) -> list[list[int]]:
    """Return the ports' places, those together that share a key, directly or through others; none if some has none."""
    different = dict.fromkeys(keys)
    if len(different) < 2 or not all(different):
        return []
    together = DisjointSets[int]()
    for own in different:
        for key in own:
            together.join(min(own), key)
    leaders = {own: together.leader(min(own)) for own in different}
    groups: dict[int, list[int]] = {}
    for at, own in enumerate(keys):
        groups.setdefault(leaders[own], []).append(at)
    return list(groups.values())
