"""The paths of one machine as they stand, and what NCCL derives from them: the CPU, ports and GPUs near something.

Source: NCCL 2.30, graph/paths.cc, graph/topo.cc.
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple, TypeVar

from fabricd.paths.nccl.environment import NcclEnvironment
from fabricd.paths.nccl.kinds import PathKind
from fabricd.paths.nccl.system import Cpu, Gpu, Net, Node, System
from fabricd.paths.nccl.walk import Route, Walker

AnyNode = TypeVar("AnyNode", bound=Node)

#: NCCL looks for a port's local GPU over this many channels.
_CHANNELS = 64


class Rule(StrEnum):
    """What rewrites a path after the search."""

    P2P_LEVEL = "P2P level"  #: two GPUs too far apart: through the CPU
    BY_NETWORK = "network instead"  #: two GPUs that reach each other faster by their ports
    P2C = "P2C"  #: from GPU to port through C2C and the CPU
    PXN = "PXN"  #: to a port through the GPU beside it
    GPUDIRECT = "no GPUDirect"  #: to a port through the CPU


class Reason(NamedTuple):
    """A rule that changed a path, and the facts it rests on."""

    rule: Rule
    why: str


class PathTable:
    """The path from every node to each GPU, port, CPU; to others when asked for.

    Attributes:
        system: the graph.
        environment: the settings that the paths obey.
        reasons: by positions of both ends, what changed a path, in order.
    """

    def __init__(self, system: System, environment: NcclEnvironment) -> None:
        self.system = system
        self.environment = environment
        self.reasons: dict[tuple[int, int], list[Reason]] = {}
        self._walker = Walker(system, relays=not environment.nvb_disable)
        self._rows: dict[int, list[Route]] = {}
        self._cpu_near: dict[int, Cpu | None] = {}
        self._preferred: dict[int, list[Net]] = {}
        self._nets_near: dict[int, list[Net]] = {}
        self._gpus_near: dict[int, list[Gpu]] = {}
        #: Nodes that a file gives one id, by type and id; NCCL finds the first.
        self._namesakes: dict[tuple[int, int], list[Node]] = {}
        for node in system.nodes():
            self._namesakes.setdefault((node.type, node.key), []).append(node)

    def get(self, src: Node, dst: Node) -> Route:
        """Return the path from one node to another; to the second of two with one id there is none."""
        row = self._rows.get(dst.position)
        if row is None:
            namesakes = self._namesakes[dst.type, dst.key]
            found = self._walker.to(*namesakes) if dst is namesakes[0] else self._walker.to()
            row = self._rows[dst.position] = found
        return row[src.position]

    def put(self, src: Node, dst: Node, route: Route, rule: Rule, why: str) -> None:
        """Rewrite a path."""
        self.get(src, dst)
        self._rows[dst.position][src.position] = route
        self.reasons.setdefault((src.position, dst.position), []).append(Reason(rule, why))
        self._nets_near.pop(src.position, None)
        self._preferred.pop(src.position, None)
        if self._gpus_near.pop(src.position, None):
            self._preferred.clear()

    def local(self, node: Node, candidates: Sequence[AnyNode]) -> list[AnyNode]:
        """Return the candidates that a node is nearest to: by bandwidth, then by type. Here bandwidth comes first.

        All of them, if none can be reached.
        """
        best: tuple[float, int] = (0.0, -PathKind.DIS)
        nearest: list[AnyNode] = []
        for candidate in candidates:
            route = self.get(node, candidate)
            merit = (route.bandwidth, -route.kind)
            if merit > best:
                best, nearest = merit, []
            if merit == best:
                nearest.append(candidate)
        return nearest

    def local_cpu(self, gpu: Gpu) -> Cpu | None:
        """Return the CPU that NCCL sends a GPU's data through when it may not go directly."""
        if gpu.position not in self._cpu_near:  # no rule rewrites paths to CPUs
            nearest = self.local(gpu, self.system.cpus)
            self._cpu_near[gpu.position] = min(nearest, key=lambda cpu: self.get(gpu, cpu).hops, default=None)
        return self._cpu_near[gpu.position]

    def local_nets(self, gpu: Gpu) -> list[Net]:
        """Return the ports nearest to a GPU."""
        if gpu.position not in self._nets_near:
            self._nets_near[gpu.position] = self.local(gpu, self.system.nets)
        return self._nets_near[gpu.position]

    def local_gpus(self, net: Net) -> list[Gpu]:
        """Return the GPUs nearest to a port."""
        if net.position not in self._gpus_near:
            self._gpus_near[net.position] = self.local(net, self.system.gpus)
        return self._gpus_near[net.position]

    def preferred_nets(self, gpu: Gpu) -> list[Net]:
        """Return the ports that a GPU uses for channels 0, 1, ...; further channels begin anew.

        GPUs near the same ports share them out: each takes as many as there are ports for one GPU, and begins at
        its own, spread by mirroring the bits of its index.
        """
        if gpu.position not in self._preferred:
            self._preferred[gpu.position] = self._find_preferred_nets(gpu)
        return self._preferred[gpu.position]

    def _find_preferred_nets(self, gpu: Gpu) -> list[Net]:
        nets = self.local_nets(gpu)
        if not nets:
            return []
        sharing = len(self.local_gpus(nets[0]))
        policy = self.environment.netdevs_policy
        count = -(-len(nets) // sharing) if policy.auto else min(policy.limit or len(nets), len(nets))
        start = gpu.dev % sharing
        if len(nets) & (len(nets) - 1) == 0:
            start = _mirror(start, len(nets))
        return [nets[(start + channel) % len(nets)] for channel in range(count)]

    def local_gpu(self, net: Net) -> Gpu | None:
        """Return the GPU that NCCL takes to sit beside a port: of those nearest, the first that prefers it.

        The lowest channel counts, then order. None if no GPU near it prefers it.
        """
        net = self.named(net)
        preferences = [(gpu, self.preferred_nets(gpu)) for gpu in self.local_gpus(net)]
        for channel in range(min(_CHANNELS, max((len(nets) for _, nets in preferences), default=0))):
            for gpu, nets in preferences:
                if nets[channel % len(nets)].key == net.key:
                    return gpu
        return None

    def named(self, net: Net) -> Net:
        """Return what NCCL finds by a port's id: itself, or an earlier one where a file repeats an index."""
        first = self._namesakes[net.type, net.key][0]
        return first if isinstance(first, Net) else net


def _mirror(value: int, power: int) -> int:
    """Return the bits below ``power`` (a power of two) of a value, in reverse order."""
    bits = power.bit_length() - 1
    return sum(1 << (bits - 1 - bit) for bit in range(bits) if value >> bit & 1)
