"""NCCL's paths in the form of all paths: by name, with hops, and the rules that made them what they are."""

from collections import Counter
from collections.abc import Collection, Mapping

from fabricd.errors import UnknownNameError
from fabricd.graph.nccl_xml_types import NcclTopology
from fabricd.model.observation import Evidence
from fabricd.model.path import Hop, Path, PathType, Transport
from fabricd.paths.nccl.build import build_system
from fabricd.paths.nccl.environment import parse_environment
from fabricd.paths.nccl.gdr import check_gdr
from fabricd.paths.nccl.kinds import LinkType, NodeType, PathKind
from fabricd.paths.nccl.paths import PathTable, Rule
from fabricd.paths.nccl.rules import compute_paths
from fabricd.paths.nccl.system import Device, Gpu, Link, Net, Node

VIEW = "nccl"

#: What a hop is called, by type of link.
HOP_NAMES = {
    LinkType.NVL: "nvlink",
    LinkType.C2C: "c2c",
    LinkType.PCI: "pcie",
    LinkType.LOC: "pcie",
    LinkType.SYS: "interconnect",
    LinkType.NET: "port",
}


class NcclView:
    """The paths between GPUs, and between GPUs and ports, of one topology file.

    Attributes:
        table: NCCL's own graph and paths.
        notes: what the file says that NCCL ignores, defaults, or stumbles over.
    """

    def __init__(self, topology: NcclTopology, variables: Mapping[str, str] | None = None) -> None:
        """Compute all paths.

        Args:
            topology: the file.
            variables: NCCL's environment variables to assume, by full name.

        Raises:
            UnknownNameError: a variable that has no bearing.
            InputError: a value that means nothing, or a file that NCCL fails on.
        """
        self.table = compute_paths(build_system(topology), parse_environment(variables or {}))
        self.notes = (*topology.notes, *self.table.system.notes)
        self._names = node_names(self.table, topology.repeated_devs())
        self._hops: dict[int, Hop] = {}  # by identity of the link, which the table keeps alive
        gpus = self.table.system.gpus
        users = Counter(gpu.device.position for gpu in gpus)
        self._sharing = {gpu.position for gpu in gpus if users[gpu.device.position] > 1}

    def names(self) -> list[str]:
        """Return the names of all ends of paths: GPUs by rank, then ports by index."""
        return [self._names[node.position] for node in self._ends()]

    def find(self, name: str) -> Gpu | Net:
        """Return the GPU or port of a name: "gpu0", "net0", or the name that the file gives a port.

        Raises:
            UnknownNameError: none is called so.
        """
        ends = self._ends()
        for node in ends:
            if self._names[node.position] == name:
                return node
        labelled = [node for node in ends if isinstance(node, Net) and node.label == name]
        if not labelled:
            raise UnknownNameError("GPU or port", name[:80], self.names())
        return labelled[0]

    def paths(self) -> list[Path]:
        """Return the paths of all pairs of GPUs, and of all GPUs with all ports both ways."""
        ends = self._ends()
        return [
            self.path(src, dst)
            for src in ends
            for dst in ends
            if src is not dst and (isinstance(src, Gpu) or isinstance(dst, Gpu))
        ]

    def path(self, src: Gpu | Net, dst: Gpu | Net) -> Path:
        """Return NCCL's one path from ``src`` to ``dst``; its type is DIS if there is none."""
        table = self.table
        route = table.get(src, dst)
        kind = PathKind(route.kind)
        reasons = table.reasons.get((src.position, dst.position), [])
        links = list(route.links())
        because = [f"rule {reason.rule}: {reason.why}" for reason in reasons]
        if links:
            narrowest = min(links, key=lambda link: link.bandwidth)
            hop = self._hop(narrowest, src, dst)
            because.append(f"held back by {hop.src} - {hop.dst}, {hop.link} at {narrowest.bandwidth:g} GB/s")
        gdr = None
        if isinstance(src, Gpu) is not isinstance(dst, Gpu) and kind != PathKind.DIS:
            gdr, why = self._gdr(src, dst)
            because.append(why)
        return Path(
            src=self._names[src.position],
            dst=self._names[dst.position],
            view=VIEW,
            type=PathType(kind.name),
            transport=_transport(kind, src, dst, {reason.rule for reason in reasons}),
            bandwidth_bytes_per_second=_bytes_per_second(route.bandwidth),
            hops=tuple(self._hop(link, src, dst) for link in links if not _is_inside(link)),
            evidence=Evidence.ASSUMED,
            gdr=gdr,
            rank=1,
            because=tuple(because),
        )

    def _ends(self) -> list[Gpu | Net]:
        gpus = sorted(self.table.system.gpus, key=lambda gpu: gpu.rank)
        return [*gpus, *self.table.system.nets]

    def _gdr(self, src: Gpu | Net, dst: Gpu | Net) -> tuple[bool, str]:
        if isinstance(src, Gpu) and isinstance(dst, Net):
            gdr = check_gdr(self.table, src, dst, read=True)
        elif isinstance(src, Net) and isinstance(dst, Gpu):
            gdr = check_gdr(self.table, dst, src, read=False)
        else:
            raise TypeError("GPUDirect is between a GPU and a port")
        return gdr.enabled, f"GPUDirect {'on' if gdr.enabled else 'off'}: {gdr.reason}"

    def _hop(self, link: Link, src: Node, dst: Node) -> Hop:
        shared = self._shared_device(link, src, dst)
        if not shared and id(link) in self._hops:
            return self._hops[id(link)]
        hop = Hop(
            src=self._place_name(link.source, src, dst),
            dst=self._place_name(link.target, src, dst),
            link="local" if link.type == LinkType.LOC and isinstance(link.target, Device) else HOP_NAMES[link.type],
            bandwidth_bytes_per_second=_bytes_per_second(link.bandwidth),
            evidence=Evidence.ASSUMED,
            detail=link.type.name,
        )
        if not shared:
            self._hops[id(link)] = hop
        return hop

    def _shared_device(self, link: Link, src: Node, dst: Node) -> bool:
        """Return whether a link ends in a GPU of several ranks, one of which is an end of the path."""
        return any(
            isinstance(end, Gpu) and end.device in (link.source, link.target) and end.position in self._sharing
            for end in (src, dst)
        )

    def _place_name(self, node: Node, src: Node, dst: Node) -> str:
        """Return the name of a place on a path; a physical GPU bears that of the end that is on it."""
        for end in (src, dst):
            if isinstance(end, Gpu) and end.device is node:
                return self._names[end.position]
        return self._names[node.position]


def _is_inside(link: Link) -> bool:
    """Return whether a link joins a rank with its own physical GPU, which bear one name."""
    return NodeType.GPU in (link.source.type, link.target.type)


def _bytes_per_second(gigabytes: float) -> float:
    """Return bytes/s with the digits that single precision holds."""
    return round(float(f"{gigabytes:.7g}") * 1e9, 3)


def _transport(kind: PathKind, src: Node, dst: Node, rules: set[Rule]) -> Transport:
    if kind in (PathKind.NET, PathKind.DIS):
        return Transport.UNKNOWN
    if isinstance(src, Gpu) and isinstance(dst, Gpu) and Rule.P2P_LEVEL in rules:
        return Transport.SHM
    if kind == PathKind.LOC:
        return Transport.SELF
    if kind in (PathKind.NVL, PathKind.NVB, PathKind.PXN):
        return Transport.NVLINK
    return Transport.C2C if kind in (PathKind.C2C, PathKind.P2C) else Transport.PCIE


def node_names(table: PathTable, repeated_devs: Collection[int]) -> dict[int, str]:
    """Return the names of all nodes, by position, as in ``fabricd.graph.from_nccl``.

    Those of a further host begin with ``host1/``, but for GPUs and for ports of an index that only one host has.
    """
    names: dict[int, str] = {}
    taken: Counter[str] = Counter()
    ranks = {gpu.device.position: gpu for gpu in reversed(table.system.gpus)}
    for node in table.system.nodes():
        place = ranks.get(node.position, node)
        plain = isinstance(place, Gpu) or (isinstance(place, Net) and place.dev not in repeated_devs)
        name = _local_name(place) if plain or not node.host else f"host{node.host}/{_local_name(place)}"
        if not isinstance(node, Device):
            taken[name] += 1
            name = f"{name}#{taken[name]}" if taken[name] > 1 else name
        names[node.position] = name
    return names


def _local_name(node: Node) -> str:
    number = node.key & (1 << 40) - 1
    if isinstance(node, Gpu):
        return f"gpu{node.rank}"
    if isinstance(node, Net):
        return f"net{node.dev}"
    if node.type is NodeType.CPU:
        return f"numa{node.name.partition(':')[2].partition('@')[0]}"
    if node.type is NodeType.NVS:
        return "nvswitch"
    if node.type is NodeType.NIC and not number:
        return "nic"
    digits = f"{number:09x}"
    return f"{digits[:-5]}:{digits[-5:-3]}:{digits[-3:-1]}.{digits[-1]}"
