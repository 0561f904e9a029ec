"""What the time of a message is made of, by NCCL's model: what the fitted model then prices anew.

Times are in microseconds and bandwidths in GB/s, as in ``fabricd.plan.nccl``.
"""

import math
from dataclasses import dataclass

from fabricd.paths.nccl.environment import PROTOCOLS
from fabricd.paths.nccl.kinds import PathKind
from fabricd.plan.nccl import constants
from fabricd.plan.nccl.job import Collective, Job
from fabricd.plan.nccl.tuning import Entry

#: Of the 128 bytes of a line, 120 are data; NCCL counts on 0.92 of the bandwidth.
_LL128_LINES = 120 / 128 / 0.92
_BROADCASTS = (Collective.BROADCAST, Collective.REDUCE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """One way to move a message.

    Attributes:
        fixed: latency without that of the network's steps and of NVLS, us.
        network_steps: how many steps go over the network, one after another.
        network_step: NCCL's latency of such a step, without what the plugin reports, us.
        nvls_gpus: GPUs that reduce through one NVSwitch at once; 0 for other algorithms.
        chunked: a tree of NVLS, which waits for whole chunks at each node.
        surcharge: what NCCL adds to latency, as a share of it.
        wire: bytes over bandwidth, us.
        to_network: type of the path between GPUs and ports; LOC within one machine.
        socket_share: channels in use by what the model's bandwidth counts on, by GB/s of that bandwidth.
    """

    fixed: float
    network_steps: float
    network_step: float
    nvls_gpus: float
    chunked: bool
    surcharge: float
    wire: float
    to_network: PathKind
    socket_share: float


def terms_of(job: Job, collective: Collective, way: tuple[str, str], entry: Entry, size: int) -> Terms:
    """Return what a message's time is made of.

    Args:
        job: the job.
        collective: which.
        way: algorithm and protocol.
        entry: NCCL's line of the way.
        size: bytes of the larger of the whole send and receive buffer.
    """
    algorithm, protocol = way
    place, graph = PROTOCOLS.index(protocol), job.graph(algorithm)
    steps = _network_steps(job, collective, algorithm)
    step = constants.LATENCIES[_row(job, collective, way)][3][place]
    reported = 0.0 if collective in _BROADCASTS else graph.latency_inter * (2 if protocol == "Simple" else 1)
    base = constants.LATENCIES[algorithm][1][place] if algorithm == "NVLS" else 0.0
    lines = _LL128_LINES if protocol == "LL128" and job.nodes > 1 else 1.0
    loaded = job.channels_of(algorithm) * graph.bandwidth_inter
    return Terms(
        fixed=entry.latency - steps * (step + reported) - base,
        network_steps=steps,
        network_step=step,
        nvls_gpus=job.ranks_per_node if algorithm == "NVLS" else 0.0,
        chunked=algorithm == "NVLSTree",
        surcharge=_surcharge(job, collective, way, size),
        wire=size / (1000 * entry.bandwidth * _correction(job, collective, way, size) * lines),
        to_network=graph.type_inter if job.nodes > 1 else PathKind.LOC,
        socket_share=job.channels / loaded if loaded else 0.0,
    )


def _row(job: Job, collective: Collective, way: tuple[str, str]) -> str:
    """Return the algorithm whose network latency NCCL takes."""
    algorithm, protocol = way
    if collective in _BROADCASTS:
        return "Tree" if protocol == "Simple" and not job.ring.same_channels else "Ring"
    return "Tree" if job.ranks == job.nodes else algorithm


def _network_steps(job: Job, collective: Collective, algorithm: str) -> float:
    if job.nodes == 1:
        return 0.0
    depth = math.floor(math.log2(job.nodes))
    if algorithm in ("Tree", "NVLSTree"):
        return 2.0 * depth
    if algorithm == "PAT":
        return depth / 3.5
    if collective in _BROADCASTS:
        return 1.0 if job.ring.same_channels else float(job.ranks)
    return float((job.nodes - 1) * (2 if collective is Collective.ALL_REDUCE else 1))


def _surcharge(job: Job, collective: Collective, way: tuple[str, str], size: int) -> float:
    """Return what NCCL adds to the latency of a ring of several nodes, once every channel has work."""
    slowed = way == ("Ring", "Simple") and collective is Collective.ALL_REDUCE and job.nodes > 1
    if slowed and size // (job.channels * job.ranks) >= 64:
        return 0.9 if job.sm < 80 else 0.4
    return 0.0


def _correction(job: Job, collective: Collective, way: tuple[str, str], size: int) -> float:
    """Return the share of a tree's bandwidth that a message reaches.

    NCCL's table goes by powers of two and jumps there, so that a larger message can seem to take less time. Between
    them the share is interpolated here; at powers of two it is NCCL's.
    """
    algorithm, protocol = way
    if collective is not Collective.ALL_REDUCE or size < 64:
        return 1.0
    if algorithm != "Tree" and not (algorithm == "NVLSTree" and job.sm >= 100 and job.arch == "x86_64"):
        return 1.0
    table = constants.TREE_CORRECTION[protocol][: 23 if algorithm == "Tree" else 24]
    place = math.log2(size / 64)
    below = int(place)
    low, high = (table[step] if step < len(table) else 1.0 for step in (below, below + 1))
    return float(low * (high / low) ** (place - below))
