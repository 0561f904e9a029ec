"""What pairs of nodes exchange: measured, by both directions; and what is assumed of pairs that were not measured."""

import math
from collections.abc import Iterable, Mapping
from statistics import median

from fabricd.errors import InputError

MAX_PAIRS = 5_000_000


class PairBandwidth:
    """Bandwidth between nodes, bytes/s, symmetric: of two directions the slower one counts.

    A pair that was left out although both its nodes were measured is taken for as slow as the slowest, so that no order
    rests on it while there is another. A node that no measurement names is taken for as fast as the median.

    Attributes:
        usual: median of what was measured.
    """

    def __init__(self, measured: Mapping[tuple[str, str], float]) -> None:
        """Take measurements.

        Args:
            measured: bytes/s by pair of node names. One direction alone stands for both.

        Raises:
            InputError: none, too many, a node with itself, or a figure that cannot be.
        """
        if not measured or len(measured) > MAX_PAIRS:
            raise InputError(f"{len(measured)} pairs of nodes, expected 1 to {MAX_PAIRS}")
        self._by_pair: dict[tuple[str, str], float] = {}
        for (a, b), value in measured.items():
            if a == b or not 0 < value < math.inf:
                raise InputError(f"bandwidth between {a!r} and {b!r}: {value} bytes/s cannot be")
            key = (a, b) if a < b else (b, a)
            self._by_pair[key] = min(value, self._by_pair.get(key, math.inf))
        self.usual = median(self._by_pair.values())
        self._least = min(self._by_pair.values())
        self._named = {node for pair in self._by_pair for node in pair}

    def values(self) -> list[float]:
        """Return all that is offered, ascending, each once."""
        return sorted({*self._by_pair.values(), self.usual})

    def measured(self, a: str, b: str) -> float | None:
        """Return what a pair exchanged; None if it was not measured."""
        return self._by_pair.get((a, b) if a < b else (b, a))

    def between(self, a: str, b: str) -> float:
        """Return what a pair exchanges, as measured or assumed."""
        known = self._by_pair.get((a, b) if a < b else (b, a))
        if known is not None:
            return known
        return self._least if a in self._named and b in self._named else self.usual

    def unknown(self, nodes: Iterable[str]) -> list[str]:
        """Return those of some nodes that no measurement names."""
        return [node for node in nodes if node not in self._named]

    @property
    def names(self) -> list[str]:
        """Names of all nodes that were measured, sorted."""
        return sorted(self._named)


def ring_bound(names: list[str], bandwidth: PairBandwidth) -> tuple[float, str]:
    """Return what the slowest edge of no ring over some nodes can exceed, and the node that holds it back.

    Every node has two neighbours in a ring, so its second best partner bounds it; a ring of two has but one.
    """
    best = (math.inf, "")
    for own in names:
        speeds = sorted((bandwidth.between(own, other) for other in names if other != own), reverse=True)
        if speeds:
            best = min(best, (speeds[min(1, len(speeds) - 1)], own))
    return best
