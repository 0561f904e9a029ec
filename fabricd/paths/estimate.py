"""How long a transfer over a path takes, from the path's own figures: its latency, and the bytes over a fair share."""

from dataclasses import dataclass

from fabricd.errors import InputError
from fabricd.model.observation import Evidence
from fabricd.model.path import DEFAULT_BYTES, Estimate, Path, PathType, Policy

MAX_BYTES = 1 << 60
MAX_FLOWS = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """What candidates are compared for.

    Raises:
        InputError: a size or a number of flows that no transfer has.
    """

    policy: Policy = Policy.FASTEST
    bytes: int = DEFAULT_BYTES
    flows: int = 1  #: transfers that share a path at once, this one included

    def __post_init__(self) -> None:
        for what, value, most in (("bytes", self.bytes, MAX_BYTES), ("flows", self.flows, MAX_FLOWS)):
            if not 1 <= value <= most:
                raise InputError(f"{value} {what} asked for", hint=f"between 1 and {most}")


AS_USUAL = Comparison()


def estimate(path: Path, comparison: Comparison) -> Estimate:
    """Return the estimated time of one transfer over a path."""
    bandwidth, latency = path.bandwidth_bytes_per_second, path.latency_seconds
    measured = path.measured_age_seconds is not None
    return estimate_of(path.type, bandwidth, latency, path.evidence, comparison, measured=measured)


def estimate_of(
    kind: PathType,
    bandwidth: float | None,
    latency: float | None,
    evidence: Evidence,
    comparison: Comparison,
    *,
    measured: bool,
) -> Estimate:
    """Return the estimated time of one transfer over a path of such figures.

    Every flow gets the same share of the bottleneck. Unknown bandwidth leaves the time unknown.

    Args:
        kind: type of the path.
        bandwidth: bytes/s.
        latency: seconds.
        evidence: of the bandwidth.
        comparison: what it is estimated for.
        measured: somebody has measured the path.
    """
    share = None if bandwidth is None else bandwidth / comparison.flows
    transfer = None if share is None else comparison.bytes / share
    return Estimate(
        bytes=comparison.bytes,
        flows=comparison.flows,
        time_seconds=time_of(kind, bandwidth, latency, comparison),
        latency_seconds=latency,
        transfer_seconds=transfer,
        share_bytes_per_second=share,
        latency_evidence=Evidence.MEASURED if measured else Evidence.ASSUMED,
        bandwidth_evidence=evidence,
    )


def time_of(kind: PathType, bandwidth: float | None, latency: float | None, comparison: Comparison) -> float | None:
    """Return the estimated time of one transfer over a path of such figures, ``None`` where it is not known."""
    if kind is PathType.DIS or bandwidth is None:
        return None
    return (latency or 0.0) + comparison.bytes / (bandwidth / comparison.flows)
