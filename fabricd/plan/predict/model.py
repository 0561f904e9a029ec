"""The time that a collective will take: NCCL's choice and graph, priced by figures fitted to measured results.

The model: latency of the steps, plus bytes over the bandwidth that NCCL's search found as far as adapters reach it,
plus what starting and skew between ranks cost, which grows with size, but less than in proportion. Below 64 MiB that
last part and the network's real latency are what NCCL's own model lacks.
"""

from dataclasses import dataclass

from fabricd.errors import InputError
from fabricd.model.collective import Prediction
from fabricd.model.path import Transport
from fabricd.paths.nccl.kinds import PathKind
from fabricd.plan.nccl.emulate import NcclPlan
from fabricd.plan.nccl.job import Collective, Job
from fabricd.plan.nccl.tuning import Entry, Lines, choose
from fabricd.plan.predict.calibration import Calibration, Correction
from fabricd.plan.predict.conditions import Conditions
from fabricd.plan.predict.parameters import CALIBRATED, DOMAIN, FAR, NEAR, Figures, Spread, parameters
from fabricd.plan.predict.terms import Terms, terms_of

#: Skew grows with the time on the wire to this power; the rest of the unit is the parameter's.
SKEW_EXPONENT = 0.4
MAX_BYTES = 1 << 50
#: What a second run of nccl-tests differs by, mostly.
_REPEATABLE = 0.05
#: Networks that NCCL's own figures were made with.
_TUNED_TRANSPORTS = (Transport.INFINIBAND, Transport.ROCE, Transport.EFA)


def time_of(terms: Terms, conditions: Conditions, figures: Figures, *, scale: float = 1.0) -> float:
    """Return the time of one way, us.

    Args:
        terms: what it is made of.
        conditions: of the machine.
        figures: the fitted ones.
        scale: factor on bandwidth, as a calibration found it.
    """
    between = terms.to_network != PathKind.LOC
    step = terms.network_step * (figures.nvls_tree if terms.chunked else 1.0) + figures.hop(conditions.transport)
    latency = terms.fixed + terms.network_steps * step + terms.nvls_gpus * figures.nvls_gpu
    latency *= 1 + terms.surcharge * figures.ring_surcharge
    wire = terms.wire / (_reach(terms, conditions, figures) if between else 1.0)
    skew = figures.skew_domain
    if between:
        skew = figures.skew_virtual if conditions.virtual else figures.skew_network
    return float(latency + wire / scale + skew ** (1 - SKEW_EXPONENT) * wire**SKEW_EXPONENT)


def _reach(terms: Terms, conditions: Conditions, figures: Figures) -> float:
    """Return the share of the bandwidth that gets from GPU memory to the network."""
    if conditions.transport is Transport.ETHERNET:
        return min(1.0, figures.socket_stream * terms.socket_share)
    if terms.to_network == PathKind.PHB:
        return figures.reach_host
    return figures.reach_sockets if terms.to_network == PathKind.SYS else 1.0


def bus_factor(collective: Collective, ranks: int) -> float:
    """Return bus bandwidth by message bytes over time, as nccl-tests define it."""
    if collective is Collective.ALL_REDUCE:
        return 2 * (ranks - 1) / ranks
    if collective in (Collective.ALL_GATHER, Collective.REDUCE_SCATTER):
        return (ranks - 1) / ranks
    return 1.0


def group_of(job: Job, conditions: Conditions) -> str:
    """Return which machines' errors a prediction shares.

    Those of one NVLink domain, those with the networks that NCCL was tuned on, or the others.
    """
    if job.nodes == 1:
        return DOMAIN if job.ring.type_intra <= PathKind.NVB else FAR
    tuned = conditions.direct and conditions.transport in _TUNED_TRANSPORTS
    return NEAR if tuned and job.ring.type_inter <= PathKind.PXN else FAR


@dataclass(frozen=True, slots=True)
class Curve:
    """Time by size of one collective.

    Attributes:
        job: the job.
        collective: which.
        lines: NCCL's ways.
        conditions: of the machine.
        figures: the fitted ones.
        scale: factor on bandwidth.
    """

    job: Job
    collective: Collective
    lines: Lines
    conditions: Conditions
    figures: Figures
    scale: float = 1.0

    def way(self, size: int) -> tuple[str, str]:
        """Return algorithm and protocol of a message: NCCL's choice for its size rounded down to a power of two."""
        choice = choose(self.job, self.lines, self.collective, 1 << (size.bit_length() - 1))
        if choice is None:
            raise ValueError("a curve without lines")
        return choice.algorithm, choice.protocol

    def time(self, size: int) -> float:
        """Return the time of a message, us: no less than that of any smaller one.

        NCCL changes over by its own model, which is not exact, so that the time of its choice can fall with size.
        """
        ends = (1 << power for power in range(1, size.bit_length()))
        before = max((self._time(self.way(end - 1), end) for end in ends), default=0.0)
        return max(before, self._time(self.way(size), size))

    def _time(self, way: tuple[str, str], size: int) -> float:
        terms = terms_of(self.job, self.collective, way, self.lines[way], size)
        return time_of(terms, self.conditions, self.figures, scale=self.scale)


def curve_of(
    plan: NcclPlan,
    conditions: Conditions,
    collective: Collective,
    *,
    bandwidth: float | None = None,
    scale: float = 1.0,
    figures: Figures | None = None,
) -> Curve | None:
    """Return the time by size; None for a single rank, or if the settings of the plan leave no way.

    Args:
        plan: NCCL's.
        conditions: of its machines.
        collective: which.
        bandwidth: of all rings together, bytes/s, in place of that of NCCL's.
        scale: factor on bandwidth.
        figures: in place of those that come with this package.
    """
    lines = plan.lines[collective]
    if conditions.transport is Transport.GPUDIRECT_TCP:
        # The store order that LL128 rests on is not kept by such plugins.
        lines = {way: entry for way, entry in lines.items() if way[1] != "LL128"}
    if bandwidth is not None and plan.ring_bandwidth:
        lines = _with_rings(lines, bandwidth / 1e9 / plan.ring_bandwidth)
    if not lines:
        return None
    return Curve(plan.job, collective, lines, conditions, figures or parameters().figures, scale)


def _with_rings(lines: Lines, ratio: float) -> Lines:
    """Return the lines with other rings; LL is bound by the processors, so that it gains nothing."""

    def changed(protocol: str, entry: Entry) -> Entry:
        return Entry(entry.latency, entry.bandwidth * (min(1.0, ratio) if protocol == "LL" else ratio))

    return {way: changed(way[1], entry) if way[0] == "Ring" else entry for way, entry in lines.items()}


def predict(
    plan: NcclPlan,
    conditions: Conditions,
    collective: Collective,
    size: int,
    *,
    calibration: Calibration | None = None,
    bandwidth: float | None = None,
) -> Prediction | None:
    """Return what a collective will take; None for a single rank, or if the settings of the plan leave no way.

    Time never falls with size. Without a calibration, bus bandwidth does not exceed what NCCL's search found.

    Args:
        plan: NCCL's, of a topology whose ports are merged, see ``merge_ports``.
        conditions: of its machines.
        collective: which.
        size: bytes of the larger of the whole send and receive buffer.
        calibration: results of these machines.
        bandwidth: bus bandwidth of all rings together, bytes/s, in place of that of NCCL's own rings.

    Raises:
        InputError: a size that no message has.
    """
    if not 1 <= size <= MAX_BYTES:
        raise InputError(f"a message of {size} bytes", hint=f"1 to {MAX_BYTES} bytes")
    found = calibration.lookup(collective, plan.job, conditions) if calibration else None
    scale = found.scale if found else 1.0
    curve = curve_of(plan, conditions, collective, bandwidth=bandwidth, scale=scale)
    theirs = curve_of(plan, conditions, collective, scale=scale)
    if curve is None or theirs is None:
        return None
    microseconds, other = curve.time(size), theirs.time(size)
    own = microseconds == other
    if found:  # what was measured is of NCCL's own rings
        microseconds *= found.time(theirs, size) / other
    seconds = microseconds * 1e-6
    busbw = bus_factor(collective, plan.job.ranks) * size / seconds
    spread = _spread(plan, conditions, size, found, measured=own and found is not None and found.covers(size))
    algorithm, protocol = curve.way(size)
    return Prediction(
        time_seconds=seconds,
        busbw_bytes_per_second=busbw,
        busbw_low_bytes_per_second=busbw / spread.high if spread else None,
        busbw_high_bytes_per_second=busbw / spread.low if spread else None,
        algorithm=algorithm,
        protocol=protocol,
        basis=found.basis if found else parameters().basis + (", none of them AMD's" if conditions.amd else ""),
    )


def _spread(
    plan: NcclPlan, conditions: Conditions, size: int, found: Correction | None, *, measured: bool
) -> Spread | None:
    """Return how far off a prediction may be; None where nothing is known of that."""
    if measured:
        return Spread(low=1 - _REPEATABLE, high=1 + _REPEATABLE)
    if conditions.amd:
        return None
    return parameters().spread_of(CALIBRATED if found else group_of(plan.job, conditions), size)
