"""What if: a topology without a port or GPU, with a link down, or with a port at the speed that was measured.

Pure: a topology in, the changed one out. Names are those of paths and plans: ``gpu3``, ``net3`` or the port's own name;
``node1/gpu3`` for one node of several.
"""

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from fabricd.errors import InputError, UnknownNameError
from fabricd.graph.nccl_xml_types import NcclGpu, NcclNet, NcclNic, NcclPci, NcclTopology
from fabricd.units import format_bandwidth

_NVSWITCH_CLASS = "0x068000"


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    """Changes to a machine.

    Attributes:
        without: ports and GPUs that are gone.
        links_down: NVLinks: ends ``(a, b)`` and how many, None for all between the two; ``nvswitch`` may be an end.
        port_speeds: bytes/s by port.
    """

    without: Sequence[str] = ()
    links_down: Sequence[tuple[str, str, int | None]] = ()
    port_speeds: Mapping[str, float] = field(default_factory=dict)

    def of_node(self, node: str) -> "WhatIf":
        """Return the changes to one node: those whose names begin with it and a slash, and those that name none."""

        def own(name: str) -> bool:
            return "/" not in name or name.startswith(f"{node}/")

        def local(name: str) -> str:
            return name.removeprefix(f"{node}/")

        return WhatIf(
            without=tuple(local(name) for name in self.without if own(name)),
            links_down=tuple((local(a), local(b), count) for a, b, count in self.links_down if own(a)),
            port_speeds={local(name): speed for name, speed in self.port_speeds.items() if own(name)},
        )

    def in_words(self, nodes: Sequence[tuple[str, NcclTopology]]) -> Iterator[str]:
        """Yield what is assumed, for people to check what they have asked for.

        Args:
            nodes: the machines as they are, by name.
        """

        def where(name: str) -> str:
            return name if "/" in name else f"{name} of every machine"

        for name in self.without:
            yield f"assumed: {where(name)} is not there"
        for a, b, count in self.links_down:
            yield f"assumed: {'all' if count is None else count} NVLinks between {where(a)} and {b} are down"
        for name, speed in self.port_speeds.items():
            told = min(_reported(nodes, name), default=math.inf)
            beyond = f", more than the {format_bandwidth(told)} that it reports" if speed > told else ""
            yield f"assumed: {where(name)} carries {format_bandwidth(speed)}{beyond}"

    def check_nodes(self, nodes: Collection[str]) -> None:
        """Check that the changes are to nodes that there are.

        Raises:
            UnknownNameError: one is not; lists those that are.
        """
        names = [*self.without, *(a for a, _, _ in self.links_down), *self.port_speeds]
        for node in (name.rpartition("/")[0] for name in names):
            if node and node not in nodes:
                raise UnknownNameError("node", node[:60], sorted(nodes))


def _reported(nodes: Sequence[tuple[str, NcclTopology]], name: str) -> Iterator[float]:
    """Yield the speeds that the ports of a name report, bytes/s."""
    node, slash, port = name.rpartition("/")
    shapes = {id(topology): topology for own, topology in nodes if not slash or own == node}
    for topology in shapes.values():
        for net in _ports(topology, port):
            yield net.megabits_per_second * 125_000.0


def changed(topology: NcclTopology, what_if: WhatIf) -> NcclTopology:
    """Return the machine as it would be.

    Raises:
        UnknownNameError: a port or GPU that it has not; lists those it has.
        InputError: links that it has not, or a speed that cannot be.
    """
    for name in what_if.without:
        topology = _without(topology, name)
    for first, second, count in what_if.links_down:
        topology = _link_down(topology, first, second, count)
    for name, speed in what_if.port_speeds.items():
        if not 0 < speed < math.inf:
            raise InputError(f"{name[:40]} at {speed} bytes/s cannot be")
        topology = _at_speed(topology, name, max(1, round(speed / 125_000)))
    return topology


def parse_link(text: str) -> tuple[str, str, int | None]:
    """Return the ends of ``gpu0-gpu1`` or ``gpu0-nvswitch:2``, and how many of the links between them.

    Raises:
        InputError: not in that form.
    """
    ends, colon, number = text.partition(":")
    first, dash, second = ends.partition("-")
    if not dash or not first or not second or (colon and not (number.isascii() and number.isdigit() and int(number))):
        raise InputError(
            f"{text[:60]!r} names no link", hint="expected e.g. gpu0-gpu1, or gpu0-nvswitch:1 for one of them"
        )
    return first, second, int(number) if colon else None


def parse_speed(text: str) -> tuple[str, float]:
    """Return the port and bytes/s of ``mlx5_3=25``, in GB/s.

    Raises:
        InputError: not in that form.
    """
    name, equals, number = text.rpartition("=")
    try:
        speed = float(number) * 1e9
    except ValueError:
        speed = math.nan
    if not equals or not name or not 0 < speed < math.inf:
        raise InputError(f"{text[:60]!r} is no port with its speed", hint="expected e.g. mlx5_3=25, in GB/s")
    return name, speed


def _without(topology: NcclTopology, name: str) -> NcclTopology:
    rank = _rank(name)
    if rank is not None:
        _gpu_address(topology, rank)
        return _with_gpus(topology, lambda _, gpu: replace(gpu, rank=None) if gpu.rank == rank else gpu)
    gone = {id(net) for net in _ports(topology, name)}
    return _with_nets(topology, lambda net: replace(net, dev=None) if id(net) in gone else net)


def _at_speed(topology: NcclTopology, name: str, megabits: int) -> NcclTopology:
    meant = {id(net) for net in _ports(topology, name)}
    return _with_nets(topology, lambda net: replace(net, megabits_per_second=megabits) if id(net) in meant else net)


def _link_down(topology: NcclTopology, first: str, second: str, count: int | None) -> NcclTopology:
    """Take links away at both ends; those to the NVSwitches have one end here."""
    if first == "nvswitch":
        first, second = second, first
    a = _gpu_address(topology, _rank_of(topology, first))
    if second == "nvswitch":
        return _fewer(
            topology, a, lambda target, kind: kind.startswith(_NVSWITCH_CLASS), count, f"{first} and nvswitch"
        )
    b = _gpu_address(topology, _rank_of(topology, second))
    between = f"{first} and {second}"
    topology = _fewer(topology, a, lambda target, _: target == b, count, between)
    return _fewer(topology, b, lambda target, _: target == a, count, between)


def _fewer(
    topology: NcclTopology, address: str, is_meant: Callable[[str, str], bool], count: int | None, between: str
) -> NcclTopology:
    """Return the topology with so many links less from one GPU to what is meant."""
    links = [link for device, gpu in _gpus(topology) if device == address for link in gpu.nvlinks]
    there = sum(link.count for link in links if is_meant(link.target, link.target_class))
    if not there or (count or 0) > there:
        raise InputError(f"{there} NVLinks between {between}" + (f", {count} cannot be down" if count else ""))
    left = there if count is None else count

    def change(device: NcclPci, gpu: NcclGpu) -> NcclGpu:
        nonlocal left
        kept = []
        for link in gpu.nvlinks if device.busid == address else ():
            down = min(left, link.count) if is_meant(link.target, link.target_class) else 0
            left -= down
            if link.count > down:
                kept.append(replace(link, count=link.count - down))
        return replace(gpu, nvlinks=tuple(kept)) if device.busid == address else gpu

    return _with_gpus(topology, change)


def _rank(name: str) -> int | None:
    digits = name.removeprefix("gpu")
    return int(digits) if digits != name and digits.isascii() and digits.isdigit() and len(digits) < 8 else None


def _rank_of(topology: NcclTopology, name: str) -> int:
    rank = _rank(name)
    if rank is None:
        raise UnknownNameError("GPU", name[:60], _gpu_names(topology))
    return rank


def _gpu_address(topology: NcclTopology, rank: int) -> str:
    found = next((address for address, gpu in _gpus(topology) if gpu.rank == rank), None)
    if found is None:
        raise UnknownNameError("GPU", f"gpu{rank}", _gpu_names(topology))
    return found


def _gpu_names(topology: NcclTopology) -> list[str]:
    return [f"gpu{rank}" for rank in sorted(gpu.rank for _, gpu in _gpus(topology) if gpu.rank is not None)]


def _gpus(topology: NcclTopology) -> Iterator[tuple[str, NcclGpu]]:
    for cpu in topology.cpus:
        for device in cpu.devices():
            for gpu in device.gpus:
                yield device.busid, gpu


def _ports(topology: NcclTopology, name: str) -> list[NcclNet]:
    """Return the ports of a name: ``net3`` by the plugin's index, ``mlx5_3`` by name, ``mlx5_3:1`` with the port."""
    nets = [net for cpu in topology.cpus for nic, _ in cpu.nics() for net in nic.nets if net.dev is not None]
    found = [net for net in nets if name in (f"net{net.dev}", net.name, f"{net.name}:{net.port}")]
    if not found:
        raise UnknownNameError(
            "GPU or port", name[:60], [*_gpu_names(topology), *(net.name or f"net{net.dev}" for net in nets)]
        )
    return found


def _with_gpus(topology: NcclTopology, change: Callable[[NcclPci, NcclGpu], NcclGpu]) -> NcclTopology:
    def device(one: NcclPci) -> NcclPci:
        gpus = tuple(change(one, gpu) for gpu in one.gpus)
        return replace(one, gpus=gpus, children=tuple(device(child) for child in one.children))

    return _with_children(topology, lambda child: device(child) if isinstance(child, NcclPci) else child)


def _with_nets(topology: NcclTopology, change: Callable[[NcclNet], NcclNet]) -> NcclTopology:
    def nic(one: NcclNic) -> NcclNic:
        return replace(one, nets=tuple(change(net) for net in one.nets))

    def device(one: NcclPci) -> NcclPci:
        nics = tuple(nic(card) for card in one.nics)
        return replace(one, nics=nics, children=tuple(device(child) for child in one.children))

    return _with_children(topology, lambda child: device(child) if isinstance(child, NcclPci) else nic(child))


def _with_children(topology: NcclTopology, change: Callable[[NcclPci | NcclNic], NcclPci | NcclNic]) -> NcclTopology:
    cpus = tuple(replace(cpu, children=tuple(change(child) for child in cpu.children)) for cpu in topology.cpus)
    return replace(topology, cpus=cpus)
