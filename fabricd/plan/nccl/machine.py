"""A machine in the numbers that NCCL's search works with: paths as lists of links, and what is left on each link.

Source: NCCL 2.30, graph/search.cc.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

from fabricd.paths.nccl.kinds import LOCAL_BANDWIDTH, LinkType, PathKind
from fabricd.paths.nccl.paths import PathTable
from fabricd.paths.nccl.system import Cpu, Device, Gpu, Link, Net, Node

#: GPUs older than this send back an eighth of what they receive from anything but a GPU.
_READ_REQUESTS_BELOW_SM = 80
_READ_REQUEST_SHARE = 8
#: NCCL looks at this many ports at most.
_MAX_NETS = 64

#: Loads are counted in such parts of a channel's bandwidth.
PARTS = 40
_SLOWED_PARTS = PARTS * 6 // 5


@dataclass(frozen=True, slots=True)
class Track:
    """A path that channels may take.

    Attributes:
        kind: its type.
        hops: number of links.
        plain: numbers of the links that a channel loads with its bandwidth.
        weighted: numbers of the others, and the parts of the bandwidth that load them.
    """

    kind: int
    hops: int
    plain: tuple[int, ...]
    weighted: tuple[tuple[int, int], ...]


class Machine:
    """What the search reads of one machine, or one domain of it.

    Attributes:
        table: its paths.
        gpus, nets: in NCCL's order; everything below goes by their index.
        between_nodes: the job goes on beyond this machine.
        capacity: of each link, GB/s.
        between: track from GPU to GPU.
        inward: track from port to GPU.
        outward: track from GPU to port.
        back: track from GPU to port's way back, for its type alone.
        up, down: tracks from each GPU to the NVSwitch and back; empty without one.
        sm: lowest compute capability times ten.
        max_bandwidth: of the fastest path, to a port or to another GPU.
        total_bandwidth: of the widest GPU, over PCIe or over all its NVLinks.
    """

    def __init__(self, table: PathTable, *, between_nodes: bool) -> None:
        system = table.system
        self.table = table
        self.gpus: Sequence[Gpu] = system.gpus
        self.nets: Sequence[Net] = system.nets if between_nodes else ()
        self.all_nets: Sequence[Net] = system.nets
        self.between_nodes = between_nodes
        self.sm = min(device.sm for device in system.devices)
        self.hosts = system.hosts
        first = system.cpus[0]
        self.amd = (first.arch, first.vendor) == ("x86_64", "AuthenticAMD")
        self._numbers: dict[int, int] = {}
        self.capacity: list[float] = []
        for node in system.nodes():
            for link in node.links:
                self._numbers[id(link)] = len(self.capacity)
                self.capacity.append(link.bandwidth)
        self.between = [[self._track(a, b) for b in self.gpus] for a in self.gpus]
        self.inward = [[self._track(net, gpu) for gpu in self.gpus] for net in self.nets]
        self.outward = [[self._track(gpu, net) for net in self.nets] for gpu in self.gpus]
        switch = system.nvswitches[0] if system.nvswitches else None
        self.has_nvswitch = switch is not None
        self.up = [self._track(gpu, switch) for gpu in self.gpus] if switch else []
        self.down = [self._track(switch, gpu) for gpu in self.gpus] if switch else []
        self._set_preferences()
        self._set_bandwidths()
        self._pci = [self._pci_links(gpu.device) for gpu in self.gpus]
        self._choices: dict[tuple[int, int], list[int]] = {}

    def _track(self, src: Node, dst: Node) -> Track:
        route = self.table.get(src, dst)
        links = list(route.links())
        from_gpu = isinstance(src, Gpu)
        slowed = from_gpu and route.kind == PathKind.PHB and any(_is_intel(link.target) for link in links)
        loads: Counter[int] = Counter()
        for link in links:
            loads[self._numbers[id(link)]] += _SLOWED_PARTS if slowed and link.type == LinkType.PCI else PARTS
            share = _back_parts(link, from_gpu=from_gpu)
            back = next((one for one in link.target.links if one.target is link.source and one.type == link.type), None)
            if share and back is not None:
                loads[self._numbers[id(back)]] += share
        return Track(
            route.kind,
            route.hops,
            tuple(number for number, parts in loads.items() if parts == PARTS),
            tuple((number, parts) for number, parts in loads.items() if parts != PARTS),
        )

    def _set_preferences(self) -> None:
        """Set the order in which each GPU tries the others, and what ranks them towards a port."""
        count = len(self.gpus)
        routes = [[self.table.get(a, b) for b in self.gpus] for a in self.gpus]
        #: Bandwidth, truncated, and hops: what ties between GPUs are judged by.
        self.nearness = [[(int(route.bandwidth), route.hops) for route in row] for row in routes]
        self.order = [
            sorted(
                (other for other in range(count) if other != gpu and routes[gpu][other].hops),
                key=lambda other: (-near[other][0], near[other][1], (other - gpu) % count),
            )
            for gpu, near in enumerate(self.nearness)
        ]
        arrivals = [[self.table.get(net, gpu) for gpu in self.gpus] for net in self.nets]
        self.net_bandwidth = [[int(route.bandwidth) for route in row] for row in arrivals]
        self.net_hops = [[route.hops for route in row] for row in arrivals]
        near = [self.table.local_gpu(net) for net in self.nets]
        #: Of each port: the GPU beside it, -1 for none, and all GPUs that are nearest.
        self.local_gpu = [-1 if gpu is None else gpu.index for gpu in near]
        self.local_gpus = [[gpu.index for gpu in self.table.local_gpus(net)] for net in self.nets]

    def _set_bandwidths(self) -> None:
        devices = self.table.system.devices
        self.total_bandwidth = max(map(_widest, devices))
        if not self.between_nodes and len(self.gpus) == 1:
            self.max_bandwidth = self.total_bandwidth = LOCAL_BANDWIDTH
            return
        goals: Sequence[Node] = self.nets if self.between_nodes else devices
        routes = (self.table.get(device, goal) for device in devices for goal in goals if goal is not device)
        self.max_bandwidth = max((route.bandwidth for route in routes if route.hops), default=0.0)

    def _pci_links(self, device: Device) -> tuple[int, int] | None:
        """Return the numbers of a GPU's first PCI link and of the first link back from its far end."""
        for link in device.links:
            if link.type == LinkType.PCI:
                back = next((one for one in link.target.links if one.target is device), None)
                if back is not None:
                    return self._numbers[id(link)], self._numbers[id(back)]
        return None

    def pci_left(self, gpu: int, left: Sequence[int]) -> int:
        """Return what is left on a GPU's PCI link in the fuller direction, of ``left`` by link; -1 without one."""
        links = self._pci[gpu]
        return -1 if links is None else min(left[links[0]], left[links[1]])

    def net_choices(self, type_inter: int, gpu: int = -1) -> list[int]:
        """Return the ports to try, best first: preferred ones, then others up to a path type.

        Args:
            type_inter: the worst type allowed.
            gpu: the leaving GPU; -1 to enter by, for all GPUs.
        """
        key = (type_inter, gpu)
        if key not in self._choices:
            gpus = list(self.gpus) if gpu < 0 else [self.gpus[gpu]]
            found = dict.fromkeys(net.index for net in self._preferred(gpus))
            limit = self.table.environment.netdevs_policy.limit
            for kind, one, net in product(range(type_inter + 1), gpus, self.nets[:_MAX_NETS]):
                if self.table.get(one, net).kind == kind:
                    found.setdefault(net.index)
            self._choices[key] = list(found)[: None if limit is None else limit * len(gpus)]
        return self._choices[key]

    def _preferred(self, gpus: Sequence[Gpu]) -> list[Net]:
        lists = [[self.table.named(net) for net in self.table.preferred_nets(gpu)] for gpu in gpus]
        if self.hosts > 1 and self.table.environment.mnnvl_scatter_nets_enable:
            depth = max(map(len, lists), default=0)
            return [nets[channel] for channel in range(depth) for nets in lists if channel < len(nets)]
        return [net for nets in lists for net in nets]


def _back_parts(link: Link, *, from_gpu: bool) -> int:
    """Return what a channel loads the way back with: read requests to an old GPU, or all of it on POWER's NVLink."""
    target = link.target
    if isinstance(target, Device) and target.sm < _READ_REQUESTS_BELOW_SM and not from_gpu:
        return PARTS // _READ_REQUEST_SHARE
    return PARTS if isinstance(target, Cpu) and target.arch == "ppc64" and link.type == LinkType.NVL else 0


def _is_intel(node: Node) -> bool:
    return isinstance(node, Cpu) and (node.arch, node.vendor) == ("x86_64", "GenuineIntel")


def _widest(device: Device) -> float:
    nvlink = sum(link.bandwidth for link in device.links if link.type == LinkType.NVL)
    pci = [link.bandwidth for link in device.links if link.type == LinkType.PCI]
    return max(nvlink, pci[-1] if pci else 0.0)
