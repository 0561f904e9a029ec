"""The cheapest closed ring over a few nodes, by dynamic programming over subsets (Held and Karp, 1962)."""

from collections.abc import Callable, Sequence

#: 2^(n-1) subsets times n^2 steps: 12 take some tenths of a second.
MAX_SITES = 12


def cheapest_ring(
    count: int, edge: Callable[[int, int], int], allowed: Sequence[Sequence[int]]
) -> tuple[int, list[int]] | None:
    """Return the cost and order of the cheapest ring; the same one on every machine.

    Args:
        count: of sites, 2 to ``MAX_SITES``.
        edge: cost of an edge.
        allowed: by place in the ring, the sites that may stand there.

    Returns:
        None if there is no such order.
    """
    cost = [[edge(a, b) if a != b else 0 for b in range(count)] for a in range(count)]
    rings = [ring for start in allowed[0] if (ring := _from(start, count, cost, allowed)) is not None]
    return min(rings, default=None)


def _from(
    start: int, count: int, cost: Sequence[Sequence[int]], allowed: Sequence[Sequence[int]]
) -> tuple[int, list[int]] | None:
    """Return the cheapest ring that begins at one site."""
    #: By set of sites and the last of them: cost, and the site before it.
    layer: dict[tuple[int, int], tuple[int, int]] = {(1 << start, start): (0, -1)}
    layers = [layer]
    for place in range(1, count):
        following: dict[tuple[int, int], tuple[int, int]] = {}
        for (mask, last), (so_far, _) in layer.items():
            row = cost[last]
            for site in allowed[place]:
                if mask >> site & 1:
                    continue
                key, found = (mask | 1 << site, site), (so_far + row[site], last)
                known = following.get(key)
                if known is None or found < known:
                    following[key] = found
        layers.append(following)
        layer = following
    closed = [(so_far + cost[last][start], last) for (_, last), (so_far, _) in layer.items()]
    if not closed:
        return None
    total, last = min(closed)
    ring, mask = [last], (1 << count) - 1
    for place in range(count - 1, 0, -1):
        before = layers[place][mask, ring[-1]][1]
        mask ^= 1 << ring[-1]
        ring.append(before)
    return total, ring[::-1]
