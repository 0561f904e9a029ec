"""Sets that grow together: who belongs with whom, directly or through others."""

from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)


class DisjointSets(Generic[T]):
    """Items in sets, each under the item that leads it; an item is by itself when it is first asked for."""

    def __init__(self) -> None:
        self._leader: dict[T, T] = {}

    def leader(self, item: T) -> T:
        """Return the item that leads an item's set."""
        while self._leader.setdefault(item, item) != item:
            self._leader[item] = self._leader[self._leader[item]]
            item = self._leader[item]
        return item

    def join(self, one: T, other: T) -> None:
        """Put two items' sets together; the leader of the first leads."""
        self._leader[self.leader(other)] = self.leader(one)

    def __contains__(self, item: object) -> bool:
        return item in self._leader

    def __iter__(self) -> Iterator[T]:
        """Yield all items that were asked for or joined, in that order."""
        return iter(self._leader)
