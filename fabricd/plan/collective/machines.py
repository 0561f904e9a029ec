"""From the machines of a job to what is planned: its ranks, and which machines are alike."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

from fabricd.errors import InputError
from fabricd.graph.nccl_xml_types import NcclCpu, NcclNic, NcclPci, NcclTopology


@dataclass(frozen=True, slots=True, kw_only=True)
class Machines:
    """A job's machines.

    Attributes:
        topologies: one for each kind of machine.
        order: the kind of each machine, in the order of the ranks.
        names: of the machines; empty for a single one.
    """

    topologies: tuple[NcclTopology, ...]
    order: tuple[int, ...]
    names: tuple[str, ...]


def ranks_of(topology: NcclTopology) -> list[int]:
    """Return the ranks that a file gives its GPUs, lowest first."""
    return sorted(gpu.rank for device in _devices(topology) for gpu in device.gpus if gpu.rank is not None)


def machines_of(named: Sequence[tuple[str, NcclTopology]], chosen: Sequence[int] = ()) -> Machines:
    """Sort machines into kinds.

    Args:
        named: all machines, with their names. Ranks are counted over all of them, each machine's in its file's order.
        chosen: ranks that take part, all if there are none. Those that are left are counted anew.

    Raises:
        InputError: a rank that does not exist, or no GPU at all.
    """
    topologies: list[NcclTopology] = []
    known: dict[object, int] = {}
    order, names = [], []
    offset, wanted = 0, set(chosen)
    for name, topology in named:
        ranks = ranks_of(topology)
        own = frozenset(rank for place, rank in enumerate(ranks) if not chosen or offset + place in wanted)
        wanted -= set(range(offset, offset + len(ranks)))
        offset += len(ranks)
        if not own:
            continue
        short = (id(topology), own)  # copies of one machine need not be compared
        if short not in known:
            used = topology if len(own) == len(ranks) else with_ranks(topology, own)
            known[short] = known.setdefault(without_identity(used), len(topologies))
            if known[short] == len(topologies):
                topologies.append(used)
        order.append(known[short])
        names.append(name)
    if wanted:
        last = f"0 to {offset - 1}" if offset else "there is no GPU"
        raise InputError(f"no rank {min(wanted)} on these machines", hint=f"ranks: {last}")
    if not order:
        raise InputError("no GPU on these machines, so there are no ranks to plan for")
    return Machines(topologies=tuple(topologies), order=tuple(order), names=tuple(names) if len(names) > 1 else ())


def with_ranks(topology: NcclTopology, ranks: Collection[int]) -> NcclTopology:
    """Return a file in which only some ranks take part; NCCL does not see the other GPUs."""

    def kept(device: NcclPci) -> NcclPci:
        gpus = tuple(gpu if gpu.rank in ranks else replace(gpu, rank=None) for gpu in device.gpus)
        return replace(device, gpus=gpus, children=tuple(map(kept, device.children)))

    cpus = tuple(
        replace(cpu, children=tuple(kept(child) if isinstance(child, NcclPci) else child for child in cpu.children))
        for cpu in topology.cpus
    )
    return replace(topology, cpus=cpus).trimmed()


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
