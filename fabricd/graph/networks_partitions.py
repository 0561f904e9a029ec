"""InfiniBand partitions: ports of one fabric that share no P_Key cannot talk.

Source: InfiniBand architecture, volume 1, 10.9: two ports need a key in common, and one of them as a full member.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from fabricd.graph.disjoint import DisjointSets
from fabricd.model.network import Network
from fabricd.model.snapshot import Snapshot

_FULL = 0x8000


def by_partition(network: Network, nodes: Mapping[str, Snapshot]) -> Iterator[Network]:
    """Yield a fabric's partitions, where its ports prove that it has several; else the fabric as it is.

    Ports that are full members of one key are together. Where a port's keys are not known, or it is a limited member
    only, nothing proves that it is apart, so the fabric is left as it is.
    """
    ports = network.ports
    known = {node_id: _full_keys(nodes[node_id]) for node_id in dict.fromkeys(port.node for port in ports)}
    keys = [known[port.node].get(port.interface, set()) for port in ports]
    groups = _groups(keys) if all(keys) else []
    if len(groups) < 2:
        yield network
        return
    for members in groups:
        common = set.intersection(*(keys[at] for at in members)) or set.union(*(keys[at] for at in members))
        key = min(common)
        yield replace(
            network,
            name=f"{network.name}@pkey{key | _FULL:#06x}",
            ports=tuple(ports[at] for at in members),
            reason=f"{network.reason}; full members of partition {key | _FULL:#06x}, as others on the fabric are not",
        )


def _full_keys(snapshot: Snapshot) -> dict[str, set[int]]:
    """Return the keys that each of a node's RDMA ports is a full member of."""
    return {
        f"{hca.name}:{port.port}": {key & ~_FULL for key in port.pkeys if key & _FULL}
        for hca in snapshot.hcas
        for port in hca.ports
    }


def _groups(keys: Sequence[set[int]]) -> list[list[int]]:
    """Return the ports' places, those together that share a key, directly or through others."""
    together = DisjointSets[int]()
    for own in keys:
        for key in own:
            together.join(next(iter(own)), key)
    groups: dict[int, list[int]] = {}
    for at, own in enumerate(keys):
        groups.setdefault(together.leader(next(iter(own))), []).append(at)
    return list(groups.values())
