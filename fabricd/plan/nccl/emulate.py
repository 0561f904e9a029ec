"""What NCCL would do with a job on machines of one kind, before any GPU is touched."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from fabricd.errors import InputError
from fabricd.graph.nccl_xml_types import NcclTopology
from fabricd.paths.nccl.build import build_system
from fabricd.paths.nccl.domain import domains, searched_paths
from fabricd.paths.nccl.environment import NcclEnvironment
from fabricd.paths.nccl.paths import PathTable
from fabricd.paths.nccl.rules import compute_paths
from fabricd.plan.nccl.channels import Channels, Node, connect, ring_channel, shifted
from fabricd.plan.nccl.graphs import SearchGraph
from fabricd.plan.nccl.job import Collective, Job
from fabricd.plan.nccl.machine import Machine
from fabricd.plan.nccl.search import Found, search_all
from fabricd.plan.nccl.tuning import Choice, Lines, choose, tuning_lines

#: NCCL's ranks are 32-bit, and lists of all ranks are written for each channel here.
MAX_RANKS = 1 << 17


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A machine of a job, or a part that NCCL splits it into.

    Attributes:
        part: number among the search results.
        ranks: of the job, in the order of the file's.
        node: its search results; ranks are those of the job.
    """

    part: int
    ranks: tuple[int, ...]
    node: Node

    def shifted(self, by: int) -> "Member":
        """Return the same on a later machine, its ranks so many further on."""
        return Member(part=self.part, ranks=tuple(rank + by for rank in self.ranks), node=shifted(self.node, by))


@dataclass(frozen=True, kw_only=True)
class NcclPlan:
    """NCCL's plan.

    Attributes:
        found: search results of one machine of each kind; one for each part, if NCCL splits it.
        tables: the paths that each was found on.
        members: all machines, or parts of them, in NCCL's order.
        channels: what runs across all of them.
        job: what the model of time is fed with.
        environment: settings assumed.
    """

    found: tuple[Found, ...]
    tables: tuple[PathTable, ...]
    members: tuple[Member, ...]
    channels: Channels
    job: Job
    environment: NcclEnvironment

    @property
    def nodes(self) -> tuple[Node, ...]:
        """Search results of all machines, in NCCL's order."""
        return tuple(member.node for member in self.members)

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
    return plan_cluster([topology], [0] * min(nodes, MAX_RANKS + 1), environment=environment)


def plan_cluster(
    topologies: Sequence[NcclTopology], order: Sequence[int], *, environment: NcclEnvironment | None = None
) -> NcclPlan:
    """Return what NCCL would do on machines of several kinds.

    Args:
        topologies: one for each kind.
        order: the kind of each machine, in the order of the ranks.
        environment: settings.

    Raises:
        InputError: as ``plan``.
    """
    environment = environment or NcclEnvironment()
    kinds = [_Kind.of(topology, environment) for topology in topologies]
    ranks = sum(kinds[kind].ranks for kind in order)
    if not 1 <= ranks <= MAX_RANKS:
        raise InputError(f"{len(order)} machines with {ranks} ranks in all", hint=f"1 to {MAX_RANKS} ranks in all")
    several = sum(len(kinds[kind].groups) for kind in order) > 1
    for kind in kinds:
        kind.search(between_nodes=several)
    members: list[Member] = []
    offset = 0
    for number in order:
        members += [member.shifted(offset) for member in kinds[number].members(sum(map(_parts, kinds[:number])))]
        offset += kinds[number].ranks
    members.sort(key=lambda member: min(member.node.ring.channels[0].ranks))
    found = [one for kind in kinds for one in kind.found]
    channels = connect([member.node for member in members], sm=min(kind.sm for kind in kinds), environment=environment)
    job = Job.of(
        [kind.table.system for kind in kinds],
        nodes=len(members),
        ranks=ranks,
        ring=_worst([one.ring for one in found]),
        tree=_worst([one.tree for one in found]),
        nvls=_worst([one.nvls for one in found]),
        channels=len(channels.rings),
    )
    return NcclPlan(
        found=tuple(found),
        tables=tuple(table for kind in kinds for table in kind.tables),
        members=tuple(members),
        channels=channels,
        job=job,
        environment=environment,
    )


class _Kind:
    """Machines that are all alike: what NCCL makes of one of them."""

    def __init__(self, topology: NcclTopology, table: PathTable) -> None:
        self.topology = topology
        self.table = table
        self.groups = domains(table)
        self.places = {rank: number for number, rank in enumerate(sorted(gpu.rank for gpu in table.system.gpus))}
        self.tables: list[PathTable] = []
        self.found: list[Found] = []

    @classmethod
    def of(cls, topology: NcclTopology, environment: NcclEnvironment) -> "_Kind":
        kind = cls(topology, compute_paths(build_system(topology), environment))
        if not kind.places:
            raise InputError("no GPU of the file has a rank", hint="NCCL writes ranks into its dumps")
        return kind

    @property
    def ranks(self) -> int:
        return len(self.places)

    @property
    def sm(self) -> int:
        return min(device.sm for device in self.table.system.devices)

    def search(self, *, between_nodes: bool) -> None:
        for group in self.groups:
            own = self.table
            if len(self.groups) > 1:
                own = searched_paths(self.topology, self.table.environment, rank=group[0].rank)
            self.tables.append(own)
            self.found.append(search_all(Machine(own, between_nodes=between_nodes)))

    def members(self, first: int) -> list[Member]:
        """Return the parts of the first such machine; ``first`` is the number of the first part among all."""
        return [
            Member(
                part=first + number,
                ranks=tuple(sorted(self.places[gpu.rank] for gpu in table.system.gpus)),
                node=Node(ring=_renumbered(one.ring, self.places), tree=_renumbered(one.tree, self.places)),
            )
            for number, (table, one) in enumerate(zip(self.tables, self.found, strict=True))
        ]


def _parts(kind: _Kind) -> int:
    return len(kind.groups)


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
