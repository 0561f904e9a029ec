"""From the machines of a job to what is planned: its ranks, and which machines are alike."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from fabricd.errors import InputError
from fabricd.graph.nccl_xml_types import NcclCpu, NcclNic, NcclPci, NcclTopology


@dataclass(frozen=True, slots=True, kw_only=True)
class Machines:
    """A job's machines.

    Attributes:
        topologies: one for each kind of machine.
        order: the kind of each machine, in the order of the ranks.
        names: of the machines, of an NVLink domain over several those of its first and last; empty for a single one.
        ranks: the GPU of each rank.
    """

    topologies: tuple[NcclTopology, ...]
    order: tuple[int, ...]
    names: tuple[str, ...]
    ranks: tuple[str, ...]


def ranks_of(topology: NcclTopology) -> list[int]:
    """Return the ranks that a file gives its GPUs, lowest first."""
    return sorted(gpu.rank for device in _devices(topology) for gpu in device.gpus if gpu.rank is not None)


def machines_of(
    named: Sequence[tuple[str, NcclTopology]],
    chosen: Sequence[int] = (),
    *,
    domains: Mapping[str, str] | None = None,
) -> Machines:
    """Sort machines into kinds.

    Args:
        named: all machines, with their names. Ranks are counted over all of them, each machine's in its file's order.
        chosen: ranks that take part, all if there are none. Those that are left are counted anew.
        domains: by name, the NVLink domain of machines that share one: NCCL takes those together as one. They follow
            each other from the place of their first one.

    Raises:
        InputError: a rank that does not exist, or no GPU at all.
    """
    groups: dict[str, list[_Member]] = {}
    for number, member in enumerate(_members(named, set(chosen))):
        domain = (domains or {}).get(member.name)
        groups.setdefault(f"domain {domain}" if domain else f"machine {number}", []).append(member)
    if not groups:
        raise InputError(
            "no GPU on these machines, so there are no ranks to plan for",
            hint="fabricctl simulate makes a cluster with GPUs, and --from asks it",
        )
    topologies: list[NcclTopology] = []
    known: dict[object, int] = {}
    order, names, ranks = [], [], []
    for members in groups.values():
        short = tuple((id(one.topology), one.ranks) for one in members)  # copies of one machine need not be compared
        if short not in known:
            used = _fused(members) if len(members) > 1 else members[0].used()
            known[short] = known.setdefault(without_identity(used), len(topologies))
            if known[short] == len(topologies):
                topologies.append(used)
        order.append(known[short])
        names.append(members[0].name + (f" to {members[-1].name}" if len(members) > 1 else ""))
        ranks += [(one.name, rank) for one in members for rank in sorted(one.ranks)]
    several = len({name for name, _ in ranks}) > 1
    return Machines(
        topologies=tuple(topologies),
        order=tuple(order),
        names=tuple(names) if several else (),
        ranks=tuple(f"{name}/gpu{rank}" if several else f"gpu{rank}" for name, rank in ranks),
    )


@dataclass(frozen=True, slots=True)
class _Member:
    """A machine and those of its file's ranks that take part."""

    name: str
    topology: NcclTopology
    ranks: frozenset[int]

    def used(self) -> NcclTopology:
        return (
            self.topology if len(self.ranks) == len(ranks_of(self.topology)) else with_ranks(self.topology, self.ranks)
        )


def _members(named: Sequence[tuple[str, NcclTopology]], wanted: set[int]) -> Iterator[_Member]:
    every = not wanted
    offset = 0
    for name, topology in named:
        ranks = ranks_of(topology)
        own = frozenset(rank for place, rank in enumerate(ranks) if every or offset + place in wanted)
        wanted -= set(range(offset, offset + len(ranks)))
        offset += len(ranks)
        if own:
            yield _Member(name, topology, own)
    if wanted:
        last = f"0 to {offset - 1}" if offset else "there is no GPU"
        raise InputError(f"no rank {min(wanted)} on these machines", hint=f"ranks: {last}")


def _fused(members: Sequence[_Member]) -> NcclTopology:
    """Return the machines of an NVLink domain as one file of several hosts, their ranks one after another."""
    cpus: list[NcclCpu] = []
    offset = 0
    for host, member in enumerate(members, start=1):
        places = {rank: offset + place for place, rank in enumerate(sorted(member.ranks))}
        offset += len(places)
        cpus += [replace(cpu, host_hash=host) for cpu in _renumbered(member.used(), places).cpus]
    return replace(members[0].topology, cpus=tuple(cpus))


def _renumbered(topology: NcclTopology, places: Mapping[int, int]) -> NcclTopology:
    """Return a file with other ranks; those without a place take no part."""

    def device(pci: NcclPci) -> NcclPci:
        gpus = tuple(replace(gpu, rank=None if gpu.rank is None else places.get(gpu.rank)) for gpu in pci.gpus)
        return replace(pci, gpus=gpus, children=tuple(map(device, pci.children)))

    cpus = tuple(
        replace(cpu, children=tuple(device(child) if isinstance(child, NcclPci) else child for child in cpu.children))
        for cpu in topology.cpus
    )
    return replace(topology, cpus=cpus)


def with_ranks(topology: NcclTopology, ranks: Collection[int]) -> NcclTopology:
    """Return a file in which only some ranks take part; NCCL does not see the other GPUs."""
    return _renumbered(topology, {rank: rank for rank in ranks}).trimmed()


def without_identity(topology: NcclTopology) -> NcclTopology:
    """Return what makes a machine's kind: the file without what tells two equal machines apart, GUIDs and hosts."""
    guids: dict[int, int] = {0: 0}
    hosts: dict[int, int] = {}

    def card(nic: NcclNic) -> NcclNic:
        nets = tuple(replace(net, guid=guids.setdefault(net.guid, len(guids)), line=0) for net in nic.nets)
        return replace(nic, nets=nets, line=0)

    def device(pci: NcclPci) -> NcclPci:
        return replace(
            pci,
            gpus=tuple(replace(gpu, line=0) for gpu in pci.gpus),
            nics=tuple(map(card, pci.nics)),
            children=tuple(map(device, pci.children)),
            line=0,
        )

    def numa(cpu: NcclCpu) -> NcclCpu:
        children = tuple(card(child) if isinstance(child, NcclNic) else device(child) for child in cpu.children)
        return replace(cpu, children=children, host_hash=hosts.setdefault(cpu.host_hash, len(hosts)), line=0)

    return replace(topology, cpus=tuple(map(numa, topology.cpus)), notes=())


def _devices(topology: NcclTopology) -> Iterator[NcclPci]:
    for cpu in topology.cpus:
        yield from cpu.devices()
