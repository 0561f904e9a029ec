"""The switches that nodes' own ports have met: by a walk over the InfiniBand fabric, or by LLDP.

A node's walk tells its leaf switches and what these are linked to. Leaves with a switch above in common form a group;
that is the second level here, for in a fat tree each leaf is linked to many.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from fabricd.graph.disjoint import DisjointSets
from fabricd.graph.networks_node import NodePorts
from fabricd.graph.networks_rails import RailPort
from fabricd.model.infiniband import IbSwitch
from fabricd.model.placement import RailPlace
from fabricd.model.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class Seen:
    """Where a node's ports go in, and how that is known."""

    rails: tuple[RailPlace, ...]
    switches: tuple[str, ...]  #: of the node: those of its first rail
    because: tuple[str, ...]


def seen_places(nodes: Mapping[str, NodePorts]) -> dict[str, Seen]:
    """Return what each node's ports have met, by node_id; ports that have met nothing have no switches."""
    snapshots = [one.snapshot for one in nodes.values()]
    names, groups = _Names.of(snapshots), _Groups(snapshots)
    rails = {node_id: tuple(_rails(one, names, groups)) for node_id, one in nodes.items()}
    first = _FirstRails(rails.values())
    return {node_id: Seen(found, *first.of(found)) for node_id, found in rails.items()}


def _rails(node: NodePorts, names: "_Names", groups: "_Groups") -> Iterator[RailPlace]:
    for port in node.rails:
        leaf = node.leaves.get(port.name)
        if leaf is not None:
            switch = leaf.switch
            above = groups.of(switch.guid)
            switches = (names.of_guid(switch.guid), *([names.of_guid(above)] if above else []))
            yield RailPlace(
                rail=port.rail, port=port.name, switches=switches, source="a walk over the InfiniBand fabric"
            )
        else:
            told = names.heard(node.snapshot, port)
            yield RailPlace(
                rail=port.rail, port=port.name, switches=(told,) if told else (), source="LLDP" if told else ""
            )


class _FirstRails:
    """The switches of nodes' first rails; where a first port has met none, by where the next ones go."""

    def __init__(self, rails: Iterable[Sequence[RailPlace]]) -> None:
        self._of: dict[tuple[int, str], Counter[tuple[str, ...]]] = {}  # (rail, leaf) -> switches of rail 0
        for found in rails:
            if found and found[0].switches:
                for rail in found[1:]:
                    if rail.switches:
                        self._of.setdefault((rail.rail, rail.switches[0]), Counter())[found[0].switches] += 1

    def of(self, rails: Sequence[RailPlace]) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the switches of a node's first rail, and how they are known."""
        met = [rail for rail in rails if rail.switches]
        if not met:
            return (), ()
        one = met[0]
        because = [f"{one.port} goes into {one.switches[0]}: {one.source}"]
        if met[1:]:
            because.append(f"and {len(met) - 1} more ports")
        others = self._of.get((one.rail, one.switches[0])) if one.rail else None
        if not others:
            return one.switches, tuple(because)
        switches = min(others, key=lambda known: (-others[known], known))
        because.append(
            f"{rails[0].port} has met no switch; nodes on {one.switches[0]} go into {switches[0]} with theirs"
        )
        return switches, tuple(because)


@dataclass(slots=True)
class _Names:
    """What switches call themselves, with their ids where two call themselves alike."""

    _of_guid: dict[str, str] = field(default_factory=dict)
    _guids: dict[str, set[str]] = field(default_factory=dict)  #: name -> GUIDs
    _chassis: dict[str, set[str]] = field(default_factory=dict)  #: name by LLDP -> chassis ids

    @classmethod
    def of(cls, snapshots: Iterable[Snapshot]) -> "_Names":
        made = cls()
        for snapshot in snapshots:
            for switch in (switch for fabric in snapshot.ib_fabrics for switch in fabric.switches):
                made._of_guid[switch.guid] = switch.name
                made._guids.setdefault(switch.name, set()).add(switch.guid)
            for neighbor in snapshot.lldp:
                made._chassis.setdefault(neighbor.system_name, set()).add(neighbor.chassis_id)
        return made

    def of_guid(self, guid: str) -> str:
        name = self._of_guid.get(guid, "")
        return name if name and len(self._guids[name]) == 1 else guid

    def heard(self, snapshot: Snapshot, port: RailPort) -> str:
        """Return the switch that a port has heard by LLDP; of a bond into several, all of them."""
        interfaces = set(port.interfaces)
        interfaces |= {one.name for one in snapshot.interfaces if one.controller and one.controller in interfaces}
        found = {
            self._heard_name(one.system_name, one.chassis_id) for one in snapshot.lldp if one.interface in interfaces
        }
        return "+".join(sorted(found - {""}))

    def _heard_name(self, name: str, chassis_id: str) -> str:
        if not name:
            return chassis_id
        return name if len(self._chassis[name]) == 1 else f"{name} ({chassis_id})"


class _Groups:
    """Leaf switches with what they are linked to, each group under the name of one of the switches above."""

    def __init__(self, snapshots: Iterable[Snapshot]) -> None:
        self._sets = DisjointSets[str]()
        self._leaves = dict(_leaves(snapshots))
        for guid, switch in self._leaves.items():
            for link in switch.links:
                if not link.local_port:
                    self._join(guid, link.peer)

    def of(self, guid: str) -> str:
        """Return the switch that stands for a leaf's group; "" for a leaf that is linked to none."""
        return self._sets.leader(guid) if guid in self._sets else ""

    def _join(self, one: str, other: str) -> None:
        # One that carries no node leads, where there is any: hosts may hang on switches of the second level too.
        leaders = (self._sets.leader(one), self._sets.leader(other))
        self._sets.join(*sorted(leaders, key=lambda guid: (guid in self._leaves, guid)))


def _leaves(snapshots: Iterable[Snapshot]) -> Iterator[tuple[str, IbSwitch]]:
    for snapshot in snapshots:
        for fabric in snapshot.ib_fabrics:
            for switch in fabric.switches:
                if any(link.local_port for link in switch.links):
                    yield switch.guid, switch
