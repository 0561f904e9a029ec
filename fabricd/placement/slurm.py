"""Slurm's ``topology.conf``: a tree of switches, or blocks of nodes. topograph and slurmibtopology write it too.

Sources: topology.conf(5); Slurm's Topology Guide.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from fabricd.errors import ParseError
from fabricd.model.placement import Position
from fabricd.placement.hostlist import expand
from fabricd.placement.imported import Imported

#: Switches above a node at most; a fabric of Slurm's largest sites has three.
_MAX_LEVELS = 16
#: Nodes of all switches and blocks together.
_MAX_NODES = 400_000
_FIRST_KEY = re.compile(
    r"^[ \t]*(?:SwitchName|BlockName|BlockSizes|BlockLevels|RingName|Include)\b", re.IGNORECASE | re.MULTILINE
)
_FIELD = re.compile(r'\s*([A-Za-z]+)\s*=\s*(?:"([^"]*)"|(\S*))')
_KEYS = {
    "switchname": frozenset({"switchname", "switches", "nodes", "linkspeed"}),
    "blockname": frozenset({"blockname", "nodes"}),
    "blocksizes": frozenset({"blocksizes"}),
    "blocklevels": frozenset({"blocklevels"}),  # its name before Slurm 24.05
}


@dataclass(slots=True)
class SlurmTopology:
    """Switches and blocks, checked as they come in. Messages name them by ``where``: "line 3"."""

    origin: str
    _above: dict[str, tuple[str, str]] = field(default_factory=dict)  #: switch -> the one above it, where it says so
    _switches: dict[str, str] = field(default_factory=dict)  #: switch -> where
    _leaf: dict[str, tuple[str, str]] = field(default_factory=dict)  #: node -> switch, where
    _block: dict[str, tuple[str, str]] = field(default_factory=dict)  #: node -> block, where
    _blocks: dict[str, str] = field(default_factory=dict)

    def add_switch(self, name: str, where: str, *, nodes: str = "", children: str = "") -> None:
        """Take a switch with hostlists of what is below it; nothing is below a leaf that waits for dynamic nodes.

        Raises:
            ParseError: it is there already, has nodes and switches below it, or these are below another one.
        """
        self._new(self._switches, "switch", name, where)
        if nodes and children:
            raise self.fault(where, f"switch {name} has either nodes or switches below it")
        if nodes:
            self._claim(self._leaf, "node", name, where, nodes)
        if children:
            self._claim(self._above, "switch", name, where, children)

    def add_block(self, name: str, where: str, nodes: str) -> None:
        """Take a block with the hostlist of its nodes.

        Raises:
            ParseError: it is there already, is empty, or nodes are in another one.
        """
        self._new(self._blocks, "block", name, where)
        if nodes:
            self._claim(self._block, "node", name, where, nodes)

    def positions(self) -> dict[str, Position]:
        """Return where each node stands.

        Raises:
            ParseError: a switch below another one is not defined, or switches stand in a circle.
        """
        for name, (parent, where) in self._above.items():
            if name not in self._switches:
                raise self.fault(where, f"switch {name} below {parent} is not defined")
        chains = {name: self._chain(name) for name in self._switches}
        return {
            node: Position(
                source="slurm",
                switches=chains[self._leaf[node][0]] if node in self._leaf else (),
                block=self._block[node][0] if node in self._block else "",
            )
            for node in (*self._leaf, *(node for node in self._block if node not in self._leaf))
        }

    def fault(self, where: str, what: str) -> ParseError:
        """Return the error that says what is wrong where."""
        return ParseError(f"{self.origin}, {where}: {what}")

    def _new(self, known: dict[str, str], kind: str, name: str, where: str) -> None:
        if not name or len(name) > 255 or not name.isprintable():
            raise self.fault(where, f"{name[:60]!r} is no name of a {kind}")
        if name in known:
            raise self.fault(where, f"{kind} {name} is defined already at {known[name]}")
        known[name] = where

    def _claim(self, owners: dict[str, tuple[str, str]], kind: str, owner: str, where: str, names: str) -> None:
        try:
            expanded = expand(names)
        except ParseError as error:
            raise self.fault(where, error.message) from error
        for name in expanded:
            other, earlier = owners.setdefault(name, (owner, where))
            if other != owner:
                raise self.fault(where, f"{kind} {name} is below {owner}, and below {other} at {earlier}")
        if len(owners) > _MAX_NODES:
            raise self.fault(where, f"more than {_MAX_NODES} nodes")

    def _chain(self, leaf: str) -> tuple[str, ...]:
        chain = [leaf]
        while chain[-1] in self._above:
            above, where = self._above[chain[-1]]
            if above in chain or len(chain) == _MAX_LEVELS:
                raise self.fault(where, f"switches stand in a circle, or more than {_MAX_LEVELS} deep: {above}")
            chain.append(above)
        return tuple(chain)


def looks_so(text: str) -> bool:
    """Tell whether a text has lines of a ``topology.conf``."""
    return _FIRST_KEY.search(text) is not None


def read(text: str, origin: str) -> Imported:
    """Return what a ``topology.conf`` says.

    Raises:
        ParseError: says in which line what is wrong.
    """
    topology = SlurmTopology(origin)
    for number, line in _lines(text):
        where = f"line {number}"
        fields = _fields(line, where, topology)
        first = next(iter(fields))
        if first == "switchname":
            topology.add_switch(
                fields[first], where, nodes=fields.get("nodes", ""), children=fields.get("switches", "")
            )
        elif first == "blockname":
            topology.add_block(fields[first], where, fields.get("nodes", ""))
    return Imported(origin=origin, positions=topology.positions())


def _lines(text: str) -> list[tuple[int, str]]:
    """Return the lines that say something, with their numbers; one that ends with a backslash goes on."""
    lines: list[tuple[int, str]] = []
    begun, open_line = 0, ""
    for number, raw in enumerate((*text.split("\n"), ""), start=1):
        line = raw.partition("#")[0].rstrip()
        begun = begun or number
        if line.endswith("\\"):
            open_line += line[:-1] + " "
            continue
        if whole := (open_line + line).strip():
            lines.append((begun, whole))
        begun, open_line = 0, ""
    return lines


def _fields(line: str, where: str, topology: SlurmTopology) -> Mapping[str, str]:
    found: dict[str, str] = {}
    at = 0
    while match := _FIELD.match(line, at):
        key, at = match[1].lower(), match.end()
        if key in found:
            raise topology.fault(where, f"{match[1]} stands twice")
        found[key] = match[2] if match[2] is not None else match[3]
    if line[at:].strip() or not found:
        raise topology.fault(where, f"{line[at:].strip()[:60]!r} is no KEY=VALUE")
    allowed = _KEYS.get(next(iter(found)))
    if allowed is None:
        raise topology.fault(where, f"a line begins with SwitchName, BlockName or BlockSizes, not {_told(found)}")
    unknown = [key for key in found if key not in allowed]
    if unknown:
        raise topology.fault(where, f"{_told(unknown)} does not belong here: {_told(sorted(allowed))} do")
    return found


def _told(keys: Sequence[str] | Mapping[str, str]) -> str:
    return ", ".join(keys)
