"""Slurm's ``topology.yaml``: named topologies, each a tree of switches, blocks of nodes, or flat.

Source: topology.yaml(5).
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from fabricd.errors import ParseError, UnavailableError
from fabricd.install import install_line
from fabricd.placement.imported import Imported
from fabricd.placement.slurm import SlurmTopology

#: The parser takes a second for 100 KiB where its C part is missing.
_MAX_CHARACTERS = 4 * 2**20
_FIRST_KEY = re.compile(r"""^\s*-\s*["']?topology["']?\s*:""", re.MULTILINE)
_KINDS = ("tree", "block", "flat", "ring")


def looks_so(text: str) -> bool:
    """Tell whether a text has entries of a ``topology.yaml``."""
    return _FIRST_KEY.search(text) is not None


def read(text: str, origin: str) -> Imported:
    """Return what a ``topology.yaml`` says. Of several trees the default one counts, else the first; so of blocks.

    Raises:
        ParseError: says in which line what is wrong.
        UnavailableError: no parser is installed.
    """
    topology = SlurmTopology(origin)
    reader = _Reader(topology)
    entries = [reader.entry(item) for item in reader.items(_document(text, topology), "the list of topologies")]
    entries.sort(key=lambda entry: not entry["cluster_default"])
    taken: dict[str, str] = {}
    notes = []
    for entry in entries:
        name, kind = entry["topology"], entry["kind"]
        if kind in taken or kind in ("flat", "ring"):
            why = f"{taken[kind]} is taken" if kind in taken else f"{kind} places no node"
            notes.append(f"topology {name} is not used: {why}")
            continue
        taken[kind] = name
        reader.fill(kind, entry["node"])
    return Imported(origin=origin, positions=topology.positions(), notes=tuple(notes))


def _document(text: str, topology: SlurmTopology) -> Any:
    try:
        import yaml  # only who reads such a file needs it
    except ImportError as error:
        raise UnavailableError(
            f"{topology.origin} is YAML, and no parser is installed", hint=install_line("cli")
        ) from error
    if len(text) > _MAX_CHARACTERS:
        raise ParseError(f"{topology.origin} has more than {_MAX_CHARACTERS} characters")
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        return yaml.compose(text, Loader=loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f"line {mark.line + 1}" if mark else "somewhere"
        raise topology.fault(where, f"no YAML: {error.problem or error}") from error
    except (yaml.YAMLError, RecursionError) as error:
        raise topology.fault("somewhere", f"no YAML: {error}") from error


class _Reader:
    """Reads the parser's tree of nodes, which know their lines. Walks to a fixed depth, whatever aliases make of it."""

    def __init__(self, topology: SlurmTopology) -> None:
        self._topology = topology

    def entry(self, item: Any) -> dict[str, Any]:
        """Return name, kind, content and whether it is the default of a topology."""
        fields = self.fields(item, {"topology", "cluster_default", *_KINDS})
        kinds = [kind for kind in _KINDS if kind in fields]
        if len(kinds) != 1:
            raise self.fault(item, f"a topology is one of {', '.join(_KINDS)}")
        return {
            "topology": self.text(fields.get("topology"), item, "topology"),
            "kind": kinds[0],
            "node": fields[kinds[0]],
            "cluster_default": "cluster_default" in fields
            and self.text(fields["cluster_default"], item, "cluster_default").lower() == "true",
        }

    def fill(self, kind: str, node: Any) -> None:
        """Take the switches of a tree, or the blocks."""
        if kind == "tree":
            for item in self.items(self.fields(node, {"switches"}).get("switches"), "switches"):
                fields = self.fields(item, {"switch", "children", "nodes", "linkspeed"})
                name = self.text(fields.get("switch"), item, "switch")
                below = {key: self.text(fields[key], item, key) for key in ("children", "nodes") if key in fields}
                self._topology.add_switch(name, _where(item), **below)
            return
        for item in self.items(self.fields(node, {"block_sizes", "blocks"}).get("blocks"), "blocks"):
            fields = self.fields(item, {"block", "nodes"})
            nodes = self.text(fields["nodes"], item, "nodes") if "nodes" in fields else ""
            self._topology.add_block(self.text(fields.get("block"), item, "block"), _where(item), nodes)

    def items(self, node: Any, what: str) -> Iterator[Any]:
        if node is None or node.id != "sequence":
            raise self.fault(node, f"{what} must be a list")
        yield from node.value

    def fields(self, node: Any, known: set[str]) -> Mapping[str, Any]:
        if node is None or node.id != "mapping":
            raise self.fault(node, f"expected a mapping with {', '.join(sorted(known))}")
        found: dict[str, Any] = {}
        for key, value in node.value:
            name = str(key.value).lower() if key.id == "scalar" else "?"
            if name not in known:
                raise self.fault(key, f"{name[:60]} does not belong here: {', '.join(sorted(known))} do")
            if name in found:
                raise self.fault(key, f"{name} stands twice")
            found[name] = value
        return found

    def text(self, node: Any, around: Any, what: str) -> str:
        if node is None or node.id != "scalar":
            raise self.fault(node or around, f"{what} must be a word")
        return str(node.value)

    def fault(self, node: Any, what: str) -> ParseError:
        return self._topology.fault(_where(node), what)


def _where(node: Any) -> str:
    return f"line {node.start_mark.line + 1}" if node is not None else "somewhere"
