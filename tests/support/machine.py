"""Machines of ``tests/machines``: a short description becomes a file tree and the answers of NVML.

A description is a TOML file. Its heart is the PCI tree, one function a line, children indented::

    pci0000:15 numa=0                       a host bridge
      15:01.0 port intel-spr                a bridge; the second word names its model in hardware.toml
        16:00.0 switch pex-gen5             the upstream port of a switch
          17:00.0 port pex-gen5
            18:00.0 gpu h100-sxm
          17:01.0 port pex-gen5
            19:00.0 nic cx7-ib mlx5_0       an adapter with its RDMA device's name, "-" for none

Words with "=" are attributes: ``numa``, ``link=5x16`` (generation and lanes at most), ``now=1x16`` (at present),
``net`` (interface), ``vfs`` (number of virtual functions), ``state``, ``rate``, ``iommu``, ``class``; ``index`` (the
kernel's number of an RDMA device), ``near`` (NUMA nodes that NVML calls near, without: the function's own, or all).
GPUs are numbered in order of PCI address, as NVML does.
"""

import functools
import hashlib
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

MACHINES = Path(__file__).parents[1] / "machines"
KINDS = ("root", "port", "switch", "gpu", "nic", "nvswitch", "other")


@dataclass(eq=False)
class PciNode:
    """A line of the tree."""

    address: str  # "0000:18:00.0", or "pci0000:15" for a host bridge
    kind: str
    words: list[str]  # after the kind
    attributes: dict[str, str]
    parent: "PciNode | None" = None
    children: list["PciNode"] = field(default_factory=list)

    @property
    def chain(self) -> list["PciNode"]:
        """This node and those above it, nearest first; the host bridge last."""
        return [self, *(self.parent.chain if self.parent else [])]

    @property
    def root(self) -> "PciNode":
        """The host bridge."""
        return self.chain[-1]

    @property
    def bridges(self) -> list["PciNode"]:
        """The bridges above, nearest first, without the host bridge."""
        return self.chain[1:-1]

    @property
    def model(self) -> dict[str, Any]:
        """What hardware.toml says of this GPU or adapter."""
        return hardware()[self.kind][self.words[0]]

    @property
    def numa(self) -> int:
        """The NUMA node that the kernel names; -1 for none."""
        return next((int(node.attributes["numa"]) for node in self.chain if "numa" in node.attributes), -1)

    @property
    def place(self) -> str:
        """The folder below sys/devices."""
        return "/".join(node.address for node in reversed(self.chain))


@dataclass
class Machine:
    """A description."""

    name: str
    folder: Path
    facts: dict[str, Any]
    roots: list[PciNode]

    @functools.cached_property
    def nodes(self) -> list[PciNode]:
        """All PCI functions, in order of address."""
        found: list[PciNode] = []
        waiting = list(self.roots)
        while waiting:
            node = waiting.pop()
            waiting += node.children
            found.append(node)
        return sorted((node for node in found if node.kind != "root"), key=lambda node: node.address)

    @property
    def serial(self) -> int:
        """A byte that makes this machine's addresses and GUIDs its own."""
        return hashlib.blake2b(self.name.encode(), digest_size=1).digest()[0]

    def of_kind(self, kind: str) -> list[PciNode]:
        """Functions of a kind, in order of address."""
        return [node for node in self.nodes if node.kind == kind]

    def section(self, name: str) -> dict[str, Any]:
        """A table of the description, empty when it has none."""
        table: dict[str, Any] = self.facts.get(name, {})
        return table


@functools.cache
def hardware() -> dict[str, Any]:
    """The models of hardware.toml."""
    return tomllib.loads((MACHINES / "hardware.toml").read_text())


def names() -> list[str]:
    """All machines of the suite that are described."""
    return sorted(path.parent.name for path in MACHINES.glob("*/machine.toml"))


def captured() -> list[str]:
    """All machines of the suite that were captured."""
    return sorted(path.parent.name for path in MACHINES.glob("*/capture.json"))


def load(name: str) -> Machine:
    """Read a description."""
    folder = MACHINES / name
    facts = tomllib.loads((folder / "machine.toml").read_text())
    machine = Machine(name=name, folder=folder, facts=facts, roots=_parse_tree(facts.get("pci", "")))
    _check(machine)
    return machine


def _check(machine: Machine) -> None:
    """Refuse what no PCI bus can be: an address twice, a function on the bus that its own bridge sits on."""
    addresses = [node.address for node in machine.nodes]
    twice = {address for address in addresses if addresses.count(address) > 1}
    bus = {node.address: node.address.rpartition(":")[0] for node in machine.nodes}
    same = [
        node.address for node in machine.nodes if node.bridges and bus[node.address] == bus[node.bridges[0].address]
    ]
    if twice or same:
        raise ValueError(f"{machine.name}: addresses given twice {sorted(twice)}, on the bus of their bridge {same}")


def _parse_tree(text: str) -> list[PciNode]:
    roots: list[PciNode] = []
    open_nodes: list[tuple[int, PciNode]] = []
    for line in text.splitlines():
        line = line.partition("#")[0].rstrip()
        if not line.strip():
            continue
        indent = len(line) - len(line.lstrip())
        node = _parse_line(line.split())
        while open_nodes and open_nodes[-1][0] >= indent:
            open_nodes.pop()
        if open_nodes:
            node.parent = open_nodes[-1][1]
            node.parent.children.append(node)
        else:
            roots.append(node)
        open_nodes.append((indent, node))
    return roots


def _parse_line(words: list[str]) -> PciNode:
    plain = [word for word in words if "=" not in word]
    attributes = dict(word.split("=", 1) for word in words if "=" in word)
    if plain[0].startswith("pci"):
        return PciNode(address=plain[0], kind="root", words=[], attributes=attributes)
    address = plain[0] if plain[0].count(":") == 2 else f"0000:{plain[0]}"
    if plain[1] not in KINDS:
        raise ValueError(f"{plain[1]!r} is none of {KINDS}: {words}")
    return PciNode(address=address, kind=plain[1], words=plain[2:], attributes=attributes)
