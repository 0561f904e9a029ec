"""An independent judge of plans: whether the links can carry demands between nodes, by multi-commodity flow."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import csr_array

from fabricd.model.collective import Channel


def demands_of(channels: tuple[Channel, ...], gpus: int, *, nodes: int) -> dict[tuple[str, str], float]:
    """Return what each pair of ranks and ports of the first node has to carry, GB/s, by the golden files' labels."""
    demands: dict[tuple[str, str], float] = {}
    for one in channels:
        ring = one.ring
        for here, there in zip(ring, (*ring[1:], ring[0]), strict=True):
            pair = None
            if here < gpus and there < gpus:
                pair = (f"GPU:{here}", f"GPU:{there}")
            elif here < gpus:
                pair = (f"GPU:{here}", f"NET:{one.nics[0][1]}")
            elif there < gpus:
                pair = (f"NET:{one.nics[0][0]}", f"GPU:{there}")
            if pair and pair[0] != pair[1]:
                demands[pair] = demands.get(pair, 0.0) + one.bandwidth_bytes_per_second / 1e9
    assert nodes == 1 or all(len(one.nics) == nodes for one in channels)
    return demands


def routable(answers: Mapping[str, Any], demands: Mapping[tuple[str, str], float]) -> bool:
    """Tell whether a golden file's links can carry demands, split at will."""
    if not demands:
        return True
    links = [(one["src"], one["dst"], one["bw"]) for one in answers["links"] if one["src"] != one["dst"]]
    nodes = {name: at for at, name in enumerate(sorted({end for link in links for end in link[:2]}))}
    sources = sorted({source for source, _ in demands})
    count = len(links)
    balance = np.zeros(len(sources) * len(nodes))
    rows, columns, values = [], [], []
    for flow, source in enumerate(sources):
        for at, (tail, head, _) in enumerate(links):
            rows += [flow * len(nodes) + nodes[tail], flow * len(nodes) + nodes[head]]
            columns += [flow * count + at] * 2
            values += [1.0, -1.0]
        for (start, end), width in demands.items():
            if start == source:
                balance[flow * len(nodes) + nodes[start]] += width
                balance[flow * len(nodes) + nodes[end]] -= width
    size = len(sources) * count
    kept = csr_array((values, (rows, columns)), shape=(len(balance), size))
    shared = csr_array((np.ones(size), (np.tile(np.arange(count), len(sources)), np.arange(size))), shape=(count, size))
    limits = np.array([width for *_, width in links]) * 1.0001
    found = linprog(np.zeros(size), A_ub=shared, b_ub=limits, A_eq=kept, b_eq=balance, method="highs")
    return bool(found.status == 0)
