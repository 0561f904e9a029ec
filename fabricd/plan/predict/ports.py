"""The ports of a network card as one, as NCCL fuses them at run time (NCCL 2.30, NCCL_NET_MERGE_LEVEL=PORT)."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TypeVar

from fabricd.graph.nccl_xml_types import NcclNet, NcclNic, NcclPci, NcclTopology

#: NCCL fuses no more ports than this.
_MAX_PORTS = 8
_Device = TypeVar("_Device", NcclPci, NcclPci | NcclNic)


def merge_ports(topology: NcclTopology) -> NcclTopology:
    """Return a topology in which each card has one port with the speed of all.

    Ports belong together if they share a ``nic``, or are functions of one PCI device. The first keeps its index.
    """
    cpus = []
    for cpu in topology.cpus:
        children = [_merged(child) if isinstance(child, NcclPci) else _one_port(child) for child in cpu.children]
        cpus.append(replace(cpu, children=_join_functions(children)))
    return replace(topology, cpus=tuple(cpus))


def _merged(device: NcclPci) -> NcclPci:
    nics = tuple(map(_one_port, device.nics))
    children = _join_functions([_merged(child) for child in device.children])
    return replace(device, nics=nics, children=children)


def _one_port(nic: NcclNic) -> NcclNic:
    return replace(nic, nets=_sum(nic.nets))


def _join_functions(devices: Sequence[_Device]) -> tuple[_Device, ...]:
    """Return the devices without those cards that are a further function of one before them."""
    kept: list[_Device] = []
    first_functions: dict[str, int] = {}
    for device in devices:
        slot = device.busid.rpartition(".")[0] if isinstance(device, NcclPci) and _is_card(device) else ""
        place = first_functions.setdefault(slot, len(kept)) if slot else len(kept)
        joined = None if place == len(kept) else _joined(kept[place], device)
        if joined is None:
            kept.append(device)
        else:
            kept[place] = joined
    return tuple(kept)


def _joined(first: _Device, other: _Device) -> _Device | None:
    """Return the first function with the ports of both as one; None if they differ."""
    if not (isinstance(first, NcclPci) and isinstance(other, NcclPci)):
        return None
    nets = _sum([net for device in (first, other) for nic in device.nics for net in nic.nets])
    return replace(first, nics=(replace(first.nics[0], nets=nets),)) if len(nets) == 1 else None


def _is_card(device: NcclPci) -> bool:
    """Return whether a device is a network card and nothing else."""
    return bool(device.nics) and not device.children and not device.gpus


def _sum(nets: Iterable[NcclNet]) -> tuple[NcclNet, ...]:
    """Return one port for all that NCCL sees; ports of unknown speed, or of different abilities, stay apart."""
    seen = [net for net in nets if net.dev is not None]
    alike = len({(net.gdr, net.coll, net.net) for net in seen}) == 1 and all(
        net.megabits_per_second > 0 for net in seen
    )
    if not 1 < len(seen) <= _MAX_PORTS or not alike:
        return tuple(nets)
    return (replace(seen[0], megabits_per_second=sum(net.megabits_per_second for net in seen)),)
