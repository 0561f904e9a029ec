"""What NCCL would do with a job on machines of one kind, before any GPU is touched."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from fabricd.errors import InputError
from fabricd.graph.nccl_xml_types import NcclTopology
from fabricd.paths.nccl.build import build_system
from fabricd.paths.nccl.domain import domains, searched_paths
from fabricd.paths.nccl.environment import NcclEnvironment
from fabricd.paths.nccl.rules import compute_paths
from fabricd.plan.nccl.channels import Channels, Node, connect, copies, ring_channel
from fabricd.plan.nccl.graphs import SearchGraph
from fabricd.plan.nccl.job import Collective, Job
from fabricd.plan.nccl.machine import Machine
from fabricd.plan.nccl.search import Found, search_all
from fabricd.plan.nccl.tuning import Choice, Lines, choose, tuning_lines

#: NCCL's ranks are 32-bit, and lists of all ranks are written for each channel here.
MAX_RANKS = 1 << 17


@dataclass(frozen=True, kw_only=True)
class NcclPlan:
    """NCCL's plan.

    Attributes:
        found: search results of one machine; one for each part, if NCCL splits it.
        nodes: all machines, or parts of them, in NCCL's order; ranks are those of the job.
        channels: what runs across all of them.
        job: what the model of time is fed with.
        environment: settings assumed.
    """

    found: tuple[Found, ...]
    nodes: tuple[Node, ...]
    channels: Channels
    job: Job
    environment: NcclEnvironment

    @cached_property
    def lines(self) -> dict[Collective, Lines]:
        """Latency and bandwidth of each way, by collective."""
        return {collective: tuning_lines(self.job, collective, self.environment) for collective in Collective}

    def choose(self, collective: Collective, size: int) -> Choice | None:
        """Return what NCCL takes for a message of ``size`` bytes; None if the settings leave nothing."""
        return choose(self.job, self.lines[collective], collective, size)

    @property
    def ring_bandwidth(self) -> float:
        """What all rings carry, GB/s."""
        ring = self.job.ring
        speed = ring.bandwidth_inter if len(self.nodes) > 1 else ring.bandwidth_intra
        return self.channels.searched * speed

    def ring_nets(self, channel: int) -> tuple[tuple[int, int] | None, ...]:
        """Return the ids of the ports by which a ring enters and leaves each of ``nodes``; None without network."""
        count = self.channels.searched
        return tuple(ring_channel(node, place, channel % count, count).nets for place, node in enumerate(self.nodes))


def plan(topology: NcclTopology, *, nodes: int = 1, environment: NcclEnvironment | None = None) -> NcclPlan:
    """Return what NCCL would do with all GPUs of a file that have a rank, on a number of such machines.

    Args:
        topology: the machine. Ranks are taken in their order and counted from 0.
        nodes: number of machines, each with as many ranks, one after another.
        environment: settings.

    Raises:
        InputError: NCCL fails on this file, it has no ranks, or too many ranks are asked for.
    """
    environment = environment or NcclEnvironment()
    table = compute_paths(build_system(topology), environment)
    groups = domains(table)
    gpus = sorted(gpu.rank for gpu in table.system.gpus)
    if not gpus:
        raise InputError("no GPU of the file has a rank", hint="NCCL writes ranks into its dumps")
    if nodes < 1 or nodes * len(gpus) > MAX_RANKS:
        raise InputError(f"{nodes} machines of {len(gpus)} ranks", hint=f"1 to {MAX_RANKS} ranks in all")
    several = nodes > 1 or len(groups) > 1
    found = []
    for group in groups:
        own = table if len(groups) == 1 else searched_paths(topology, environment, rank=group[0].rank)
        found.append(search_all(Machine(own, between_nodes=several)))
    place = {rank: number for number, rank in enumerate(gpus)}
    parts = [Node(ring=_renumbered(one.ring, place), tree=_renumbered(one.tree, place)) for one in found]
    everything = copies(parts, ranks=len(gpus), count=nodes)
    everything.sort(key=lambda node: min(node.ring.channels[0].ranks))
    sm = min(device.sm for device in table.system.devices)
    channels = connect(everything, sm=sm, environment=environment)
    job = Job.of(
        table.system,
        nodes=len(everything),
        ranks=nodes * len(gpus),
        ring=_worst([one.ring for one in found]),
        tree=_worst([one.tree for one in found]),
        nvls=_worst([one.nvls for one in found]),
        channels=len(channels.rings),
    )
    return NcclPlan(found=tuple(found), nodes=tuple(everything), channels=channels, job=job, environment=environment)


def _renumbered(graph: SearchGraph, place: dict[int, int]) -> SearchGraph:
    channels = tuple(replace(one, ranks=tuple(place[rank] for rank in one.ranks)) for one in graph.channels)
    return replace(graph, channels=channels)


def _worst(graphs: Sequence[SearchGraph]) -> SearchGraph:
    """Return what all machines agree on: every figure is the worst of any."""
    first = graphs[0]
    return replace(
        first,
        pattern=max(graph.pattern for graph in graphs),
        channels=first.channels[: min(len(graph.channels) for graph in graphs)],
        bandwidth_intra=min(graph.bandwidth_intra for graph in graphs),
        bandwidth_inter=min(graph.bandwidth_inter for graph in graphs),
        type_intra=max(graph.type_intra for graph in graphs),
        type_inter=max(graph.type_inter for graph in graphs),
        cross_nic=max(graph.cross_nic for graph in graphs),
        same_channels=all(graph.same_channels for graph in graphs),
        latency_inter=max(graph.latency_inter for graph in graphs),
    )
