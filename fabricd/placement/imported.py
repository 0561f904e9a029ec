"""Positions of nodes that come out of a file, and by which of its names a node is looked up."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from fabricd.model.placement import Position
from fabricd.model.snapshot import Snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """What a file says of nodes, by the names that it gives them."""

    origin: str  #: the file
    positions: Mapping[str, Position] = field(default_factory=dict)
    notes: tuple[str, ...] = ()  #: what of the file is not used

    def of(self, names: Iterator[str] | tuple[str, ...]) -> Position | None:
        """Return the position of the node that bears these names; the first that is known decides.

        A name with a domain behind it is looked up without it too.
        """
        for name in names:
            found = self.positions.get(name) or self.positions.get(name.partition(".")[0])
            if found is not None:
                return replace(found, origin=self.origin)
        return None


def with_short_names(positions: Mapping[str, Position]) -> dict[str, Position]:
    """Return positions under their nodes' names without domain too, where only one node has that name."""
    shorts: dict[str, list[Position]] = {}
    for name, position in positions.items():
        short = name.partition(".")[0]
        if not short.isdigit():  # of an IP address
            shorts.setdefault(short, []).append(position)
    return {short: found[0] for short, found in shorts.items() if len(found) == 1} | dict(positions)


def names_of(snapshot: Snapshot) -> tuple[str, ...]:
    """Return the names under which a file may know a node."""
    node = snapshot.node
    instances = (position.instance_id for position in snapshot.positions)
    return tuple(dict.fromkeys(filter(None, (node.name, node.hostname, *instances, node.node_id))))
