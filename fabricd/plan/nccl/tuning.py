"""NCCL's model of time: latency and bandwidth of each algorithm and protocol, from what its search found.

Source: NCCL 2.30, graph/tuning.cc. CollNet (in-network reduction by a plugin) is left out.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from fabricd.paths.nccl.environment import ALGORITHMS, PROTOCOLS, NcclEnvironment
from fabricd.paths.nccl.kinds import PathKind, single
from fabricd.plan.nccl import constants
from fabricd.plan.nccl.graphs import Pattern, SearchGraph
from fabricd.plan.nccl.job import Collective, Job

_SCATTERED = (Collective.ALL_GATHER, Collective.REDUCE_SCATTER)
#: With more GPUs on a machine, NVLS is not used to gather or scatter.
_NVLS_MAX_LOCAL_RANKS = 32


@dataclass(frozen=True, slots=True)
class Entry:
    """A line of the table: time is ``latency + bytes / bandwidth``."""

    latency: float  #: us
    bandwidth: float  #: GB/s, of the whole message


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What NCCL would take for a message."""

    algorithm: str
    protocol: str
    time: float  #: us


Lines = dict[tuple[str, str], Entry]


def tuning_lines(job: Job, collective: Collective, environment: NcclEnvironment | None = None) -> Lines:
    """Return latency and bandwidth by algorithm and protocol, in the order in which NCCL decides ties."""
    environment = environment or NcclEnvironment()
    lines: Lines = {}
    for algorithm, protocol in _candidates(job, collective, environment):
        bandwidth = _algorithm_bandwidth(
            job, collective, algorithm, _bus_bandwidth(job, collective, algorithm, protocol)
        )
        if bandwidth > 0:
            latency = _latency(job, collective, algorithm, protocol, environment)
            lines[algorithm, protocol] = Entry(single(latency), single(bandwidth))
    return lines


def choose(job: Job, lines: Lines, collective: Collective, size: int) -> Choice | None:
    """Return what NCCL takes for a message; None if its settings leave nothing.

    Args:
        job: the job.
        lines: of this collective.
        collective: which.
        size: bytes of the larger of the whole send and receive buffer.
    """
    if job.ranks == 1:
        return Choice(algorithm="Ring", protocol="Simple", time=0.0)
    times = {key: _time(job, collective, key, entry, size) for key, entry in lines.items()}
    if not times:
        return None
    best = min(times, key=times.__getitem__)
    return Choice(algorithm=best[0], protocol=best[1], time=times[best])


def _candidates(job: Job, collective: Collective, environment: NcclEnvironment) -> Iterator[tuple[str, str]]:
    if job.ranks == 1:
        return
    for algorithm in ALGORITHMS:
        if not _offers(job, collective, algorithm) or (
            environment.algo is not None and algorithm not in environment.algo
        ):
            continue
        for protocol in PROTOCOLS if algorithm in ("Tree", "Ring") else ("Simple",):
            if environment.proto is not None:
                allowed = protocol in environment.proto
            else:
                allowed = protocol != "LL128" or _has_ll128(job, job.graph(algorithm), environment)
            if allowed:
                yield algorithm, protocol


def _offers(job: Job, collective: Collective, algorithm: str) -> bool:
    """Return whether an algorithm exists for a collective on such a job."""
    if algorithm == "Ring":
        return True
    if algorithm == "Tree":
        return collective is Collective.ALL_REDUCE
    if algorithm == "PAT":
        return collective in _SCATTERED and job.ranks == job.nodes and job.sm >= 60
    if len(job.nvls.channels) < 2:
        return False
    if algorithm == "NVLS":
        small = job.ranks_per_node <= _NVLS_MAX_LOCAL_RANKS
        return job.nodes == 1 and (collective is Collective.ALL_REDUCE or (collective in _SCATTERED and small))
    return algorithm == "NVLSTree" and collective is Collective.ALL_REDUCE and job.nodes > 1


def _has_ll128(job: Job, graph: SearchGraph, environment: NcclEnvironment) -> bool:
    """Return whether NCCL trusts 128-byte stores to arrive whole: over NVLink, near ports, equal GPUs."""
    far = PathKind.PXN if job.sm >= 90 and environment.ll128_c2c else PathKind.PXB
    alike = job.sm == job.sm_max or job.sm >= 90
    return graph.type_intra <= PathKind.NVB and graph.type_inter <= far and alike and job.sm >= 70


def _bus_bandwidth(job: Job, collective: Collective, algorithm: str, protocol: str) -> float:
    channels, graph = job.channels_of(algorithm), job.graph(algorithm)
    row, column = job.generation, job.column
    if algorithm.startswith("NVLS"):
        return channels * _nvls_bandwidth(job, collective, algorithm)
    total = channels * (graph.bandwidth_intra if job.nodes <= 2 else graph.bandwidth_inter)
    ll_row = row if job.nodes == 1 else int(job.vendor in ("AuthenticAMD", "mixed"))
    ll_max = constants.LL_MAX[ll_row][column]
    if algorithm == "PAT":
        return 0.75 * total
    if algorithm == "Ring":
        if protocol == "LL":
            return min(ll_max, total / 2)
        return min(0.92 * total, channels * constants.RING_LL128[row][column]) if protocol == "LL128" else total
    total = min(0.92 * total, channels * constants.TREE[row][column])
    if protocol == "LL":
        total = min(total / 3.8, ll_max)
    elif protocol == "LL128":
        share = 7 / 9 if job.nodes == 1 else 120 / 128
        total = min(total * share, channels * constants.TREE_LL128[row][column])
    return total * 0.85 if graph.pattern is Pattern.TREE else total


def _nvls_bandwidth(job: Job, collective: Collective, algorithm: str) -> float:
    """Return what one channel carries."""
    graph, channels, local = job.nvls, len(job.nvls.channels), job.ranks_per_node
    rounds = 2 if collective is Collective.ALL_REDUCE else (local - 1) / local
    within = graph.bandwidth_intra * constants.NVLS_EFFICIENCY[job.generation] * (channels - 1) / channels * rounds
    if algorithm == "NVLS":
        return min(within, graph.bandwidth_inter)
    between = graph.bandwidth_inter * (2 if job.nodes == 2 else 1)
    return min(within, between, constants.NVLS_TREE[job.generation][job.column])


def _algorithm_bandwidth(job: Job, collective: Collective, algorithm: str, bus: float) -> float:
    """Return message bytes by time, from bytes over the links by time."""
    if algorithm == "Tree":
        return bus / 2
    if algorithm == "PAT" or (algorithm == "NVLS" and collective in _SCATTERED):
        return bus
    return bus * job.ranks / _steps(job, collective)


def _steps(job: Job, collective: Collective) -> int:
    if collective is Collective.ALL_REDUCE:
        return 2 * (job.ranks - 1)
    return job.ranks - 1 if collective in _SCATTERED else job.ranks


def _latency(job: Job, collective: Collective, algorithm: str, protocol: str, environment: NcclEnvironment) -> float:
    place = PROTOCOLS.index(protocol)
    base = constants.LATENCIES[algorithm][0][place]
    intra, inter = _step_latency(job, algorithm, place), _net_latency(job, algorithm, place)
    depth = math.floor(math.log2(job.nodes))
    if algorithm == "Tree":
        return base + 2 * ((job.ranks // job.nodes - 1) * intra + depth * inter)
    if algorithm == "NVLS":
        return intra + (inter if job.nodes > 1 else 0)
    if algorithm == "NVLSTree":
        return intra + 2 * depth * inter
    if algorithm == "PAT":
        return base + depth * inter / 3.5 + 2.8 * job.ranks
    steps = _steps(job, collective)
    if collective in (Collective.BROADCAST, Collective.REDUCE):
        if job.ring.same_channels:
            return base + _broadcast_step(job, "Ring", place)
        return base + steps * _broadcast_step(job, "Tree" if protocol == "Simple" else "Ring", place)
    outside = 0 if job.nodes == 1 else (job.nodes - 1) * (2 if collective is Collective.ALL_REDUCE else 1)
    overhead = _net_overhead(job, environment) * (3 if protocol == "Simple" else 1)
    return base + (steps - outside) * max(intra, overhead) + outside * inter


def _step_latency(job: Job, algorithm: str, place: int, *, row: str = "") -> float:
    """Return the latency of a step between GPUs of one machine; ``row`` of another algorithm's figures."""
    if job.graph(algorithm).type_intra == PathKind.NVL:
        return constants.LATENCIES[row or algorithm][1][place]
    if job.arch == "ppc64" and (row or algorithm) == "Tree" and PROTOCOLS[place] == "Simple":
        return constants.POWER_TREE_PCI_SIMPLE
    return constants.LATENCIES[row or algorithm][2][place]


def _net_latency(job: Job, algorithm: str, place: int) -> float:
    row = "Tree" if job.ranks == job.nodes else algorithm
    own = job.graph(algorithm).latency_inter * (2 if PROTOCOLS[place] == "Simple" else 1)
    return constants.LATENCIES[row][3][place] + own


def _broadcast_step(job: Job, row: str, place: int) -> float:
    return _step_latency(job, "Ring", place, row=row) if job.nodes == 1 else constants.LATENCIES[row][3][place]


def _net_overhead(job: Job, environment: NcclEnvironment) -> float:
    """Return what a step costs that waits for the network beside it, us."""
    if job.nodes == 1:
        return 0.0
    if environment.net_overhead is not None:
        return environment.net_overhead / 1000
    return 2.0 if (job.arch, job.vendor) == ("x86_64", "AuthenticAMD") else 1.0


def _time(job: Job, collective: Collective, key: tuple[str, str], entry: Entry, size: int) -> float:
    algorithm, protocol = key
    latency, bandwidth = entry.latency, entry.bandwidth
    if collective is Collective.ALL_REDUCE:
        step = (size >> 6).bit_length() - 1
        last = 22 if algorithm == "Tree" else 23
        corrected = algorithm == "Tree" or (algorithm == "NVLSTree" and job.sm >= 100 and job.arch == "x86_64")
        if corrected and 0 <= step <= last:
            bandwidth *= constants.TREE_CORRECTION[protocol][step]
        if key == ("Ring", "Simple") and job.nodes > 1 and size // (job.channels * job.ranks) >= 64:
            latency *= 1.9 if job.sm < 80 else 1.4
    return latency + size / (1000 * bandwidth)
