"""The rules by which NCCL rewrites the paths it has found, in NCCL's order.

1. A pair of GPUs beyond the P2P level goes through the CPU; a pair that both have faster ports goes by network.
2. P2C: a GPU with C2C reaches a port beside the same CPU through it.
3. For each port and GPU: PXN, a path through the GPU beside the port; then GPUDirect, without which data go
   through the CPU.

Source: NCCL 2.30, graph/paths.cc, ncclTopoComputePaths.
"""

from fabricd.errors import InputError
from fabricd.paths.nccl.environment import NcclEnvironment
from fabricd.paths.nccl.gdr import check_gdr
from fabricd.paths.nccl.kinds import PathKind
from fabricd.paths.nccl.paths import PathTable, Rule
from fabricd.paths.nccl.system import Device, Gpu, Net, Node, System
from fabricd.paths.nccl.walk import Chain, Route

#: Links times ends of paths, about a microsecond each. A domain of 576 GPUs has 12 million.
MAX_WORK = 60_000_000


def compute_paths(system: System, environment: NcclEnvironment | None = None) -> PathTable:
    """Return all paths of a machine as NCCL has them.

    Raises:
        InputError: NCCL fails on this graph (a link in one direction only), or it is larger than any machine.
    """
    nodes = list(system.nodes())
    bases = len(system.gpus) + len(system.nets) + len(system.cpus)
    if bases * sum(len(node.links) for node in nodes) > MAX_WORK:
        raise InputError(f"{len(nodes)} nodes are too many to find all paths between", hint="split the file by host")
    table = PathTable(system, environment or NcclEnvironment())
    _between_gpus(table)
    for gpu in system.gpus:
        _through_c2c(table, gpu)
    for net in system.nets:
        for gpu in system.gpus:
            if not table.environment.pxn_disable:
                _through_peer(table, gpu, net)
            _without_gdr(table, gpu, net)
    return table


def via(table: PathTable, src: Node, relay: Node, dst: Node) -> Route:
    """Return the path from one node to another through a third."""
    first, second = table.get(src, relay), table.get(relay, dst)
    kinds = {first.kind, second.kind}
    kind = max(kinds)
    if isinstance(relay, Gpu):
        kind = PathKind.PXN
    elif kinds == {PathKind.C2C, PathKind.PHB}:
        kind = PathKind.P2C
    chain: Chain = second.chain
    for link in reversed(list(first.links())):
        chain = (link, chain)
    return Route(kind, min(first.bandwidth, second.bandwidth), first.hops + second.hops, chain)


def _between_gpus(table: PathTable) -> None:
    gpus = table.system.gpus
    fastest_port = {gpu.position: _fastest_close_port(table, gpu) for gpu in gpus}
    level, source = _p2p_level(table)
    for dst in gpus:
        cpu = table.local_cpu(dst)
        for src in gpus:
            route = table.get(src, dst)
            if route.kind > level and cpu is not None:
                why = f"{_name(route.kind)} is beyond {level.name} ({source}), so through {cpu.name}"
                table.put(src, dst, via(table, src, cpu, dst), Rule.P2P_LEVEL, why)
        for src in gpus:
            if src is dst:
                continue
            why = _by_network(table, src, dst, level, fastest_port)
            if why:
                table.put(src, dst, table.get(src, dst)._replace(kind=PathKind.NET), Rule.BY_NETWORK, why)


def _p2p_level(table: PathTable) -> tuple[PathKind, str]:
    environment, system = table.environment, table.system
    if environment.p2p_disable:
        return PathKind.LOC, "NCCL_P2P_DISABLE=1"
    if environment.p2p_level is not None:
        return environment.p2p_level, "NCCL_P2P_LEVEL"
    first = system.cpus[0] if system.cpus else None
    if first is not None and (first.arch, first.vendor) == ("x86_64", "AuthenticAMD") and len(system.devices) <= 2:
        return PathKind.SYS, "AMD with at most two GPUs"
    return PathKind.PXB, "the default"


def _fastest_close_port(table: PathTable, gpu: Gpu) -> float:
    routes = (table.get(gpu, net) for net in table.system.nets)
    return max((route.bandwidth for route in routes if route.kind <= PathKind.PXB), default=0.0)


def _by_network(table: PathTable, src: Gpu, dst: Gpu, level: PathKind, fastest_port: dict[int, float]) -> str:
    """Return why neither P2P nor shared memory will carry this pair; nothing if one does."""
    route = table.get(src, dst)
    direct = route.kind <= level
    if direct and _is_relayed(route):
        return ""
    if not direct and src.host != dst.host:
        return "neither P2P nor shared memory between these hosts"
    slower = min(fastest_port[src.position], fastest_port[dst.position])
    if table.environment.net_disable_intra or slower <= route.bandwidth:
        return ""
    return (
        f"both have a port within PXB of at least {slower:g} GB/s, more than the {route.bandwidth:g} GB/s between them"
    )


def _is_relayed(route: Route) -> bool:
    """Return whether NVLink carries it through one other GPU: four hops, a device in the middle."""
    if route.hops != 4:
        return False
    return isinstance(list(route.links())[1].target, Device)


def _through_c2c(table: PathTable, gpu: Gpu) -> None:
    cpu = table.local_cpu(gpu)
    if cpu is None or table.get(gpu, cpu).kind != PathKind.C2C:
        return
    for net in list(table.local_nets(gpu)):
        if table.get(net, cpu).kind != PathKind.PHB:
            continue
        for src, dst in ((gpu, net), (net, gpu)):
            route = table.get(src, dst)
            if route.kind > PathKind.P2C:
                why = f"{gpu.name} has C2C to {cpu.name}, which {net.name} hangs on"
                table.put(src, dst, route._replace(kind=PathKind.P2C), Rule.P2C, why)


def _through_peer(table: PathTable, gpu: Gpu, net: Net) -> None:
    """PXN: send to a port through the GPU beside it, where that is faster or spares the CPU."""
    peer = table.local_gpu(net)
    if peer is None or peer is gpu or peer.host != gpu.host:
        return
    limit = PathKind.P2C if table.environment.pxn_c2c else PathKind.PXB
    theirs, ours = table.get(peer, net), table.get(gpu, net)
    if theirs.kind > limit or table.get(peer, gpu).kind > PathKind.NVL:
        return
    if theirs.bandwidth <= ours.bandwidth and ours.kind <= PathKind.PXN:
        return
    if not check_gdr(table, peer, net, read=True).enabled:
        return
    why = (
        f"through {peer.name}, which reaches {net.name} by {_name(theirs.kind)} at {theirs.bandwidth:g} GB/s; "
        f"its own way is {_name(ours.kind)} at {ours.bandwidth:g} GB/s"
    )
    table.put(gpu, net, via(table, gpu, peer, net), Rule.PXN, why)


def _without_gdr(table: PathTable, gpu: Gpu, net: Net) -> None:
    """Send data through the CPU where a close port may not write to the GPU directly."""
    if table.get(gpu, net).kind >= PathKind.PHB:
        return
    gdr = check_gdr(table, gpu, net, read=False)
    cpu = table.local_cpu(gpu)
    if gdr.enabled or cpu is None:
        return
    why = f"{gdr.reason}; so through {cpu.name}"
    table.put(net, gpu, via(table, net, cpu, gpu), Rule.GPUDIRECT, why)
    table.put(gpu, net, via(table, gpu, cpu, net), Rule.GPUDIRECT, why)


def _name(kind: int) -> str:
    return PathKind(kind).name
