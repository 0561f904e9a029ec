"""Which of the networks that could join a group's hosts is best: a pure, total order.

RDMA that software does comes behind TCP on the same interface, until it is itself measured. Then by estimated time of
one message, from measured figures where there are any. Times that differ by less than noise count as equal; then the
class of transport decides, then hardware before what no hardware backs, then what is meant for data before management,
container and VPN networks, then the finer time, then the name.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from fabricd.graph.networks import is_of
from fabricd.graph.nominal import NETWORK_LATENCY
from fabricd.model.measurement import Measurement
from fabricd.model.network import Network, role_rank
from fabricd.model.observation import Evidence
from fabricd.model.path import Transport
from fabricd.model.plan import NetworkChoice
from fabricd.plan.group_candidate import Candidate
from fabricd.plan.group_hosts import Hosts
from fabricd.units import format_bandwidth, format_latency

#: The message whose time is estimated: large enough that bandwidth counts, small enough that latency does.
MESSAGE_BYTES = 1 << 20
#: Times count as equal when they fall into one step of this ratio: two measurements of one network differ by as much.
_STEP = 1.25
_CLASS = {transport: order for order, transport in enumerate(Transport)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Rated:
    """A candidate with what is known of its speed."""

    candidate: Candidate
    bandwidth_bytes_per_second: float | None  #: of the slowest pair measured, else nominal; None unknown
    latency_seconds: float | None
    evidence: Evidence
    age_seconds: float | None = None  #: of the oldest measurement
    unreachable: str = ""  #: why it does not join all hosts, as measured
    note: str = ""  #: what is to be known of the figures

    @property
    def seconds(self) -> float:
        """Estimated time of one message; infinite when the bandwidth is not known."""
        if not self.bandwidth_bytes_per_second:
            return math.inf
        return (self.latency_seconds or 0.0) + MESSAGE_BYTES / self.bandwidth_bytes_per_second


RatedKey = tuple[bool, bool, int, int, int, bool, int, float, str]


def rated_key(rated: Rated) -> RatedKey:
    """Return what candidates are ordered by, best first."""
    candidate = rated.candidate
    seconds = rated.seconds
    step = math.floor(math.log(seconds, _STEP)) if math.isfinite(seconds) else 1 << 30
    # What is measured comes before what a card claims to do, except for RDMA, of which TCP measures nothing.
    claimed = rated.evidence is not Evidence.MEASURED and not candidate.rdma
    # A site's word that a network is not for jobs comes before any figure; what facts suggest comes behind.
    barred = candidate.configured and role_rank(candidate.role) > role_rank("data")
    return (
        barred,
        # Timed, TCP was 1.3 to 5 times as fast: what a card would do the kernel does, packet by packet (docs/mpi.md).
        candidate.has_tcp_below and rated.evidence is not Evidence.MEASURED,
        2 if not math.isfinite(seconds) or (claimed and candidate.doubt) else int(claimed),
        step,
        _CLASS[candidate.transport],
        candidate.virtual,
        role_rank(candidate.role),
        seconds,
        candidate.name,
    )


def rate(
    candidate: Candidate, hosts: Hosts, measurements: Iterable[Measurement], unmeasured: Mapping[str, str]
) -> Rated:
    """Return a candidate with its figures.

    Args:
        candidate: the network.
        hosts: where the ranks are.
        measurements: of this and other networks; those between two of its ports count, by their addresses.
        unmeasured: why there is no measurement, by network.
    """
    blank = Rated(candidate=candidate, bandwidth_bytes_per_second=None, latency_seconds=None, evidence=Evidence.ASSUMED)
    at = {port.address: place for place, ports in enumerate(candidate.ports) for port in ports if port.address}
    own = [one for one in measurements if at.get(one.src_address, -1) != at.get(one.dst_address, -1)]
    own = [one for one in own if one.src_address in at and one.dst_address in at]
    itself = [one for one in own if is_of(one, Network(name=candidate.name, transport=candidate.transport))]
    own = own if candidate.rdma else itself  # RDMA goes where TCP does, and not the other way round
    failed = next((one for one in own if not one.reachable), None)
    if failed is not None:
        src, dst = (hosts.places[at[end]].name for end in (failed.src_address, failed.dst_address))
        reason = f"{src} cannot reach {dst} on it: {failed.reason or 'no answer'}"
        return replace(blank, unreachable=reason, evidence=Evidence.MEASURED, age_seconds=failed.age_seconds)
    by_tcp = candidate.rdma and not any(one.bandwidth_bytes_per_second for one in itself)
    timed = [one for one in (own if by_tcp else itself) if one.bandwidth_bytes_per_second]
    if not timed or (candidate.rdma and not candidate.software):
        return _nominal(blank, unmeasured.get(candidate.name, ""))
    reached = {at[end] for one in timed for end in (one.src_address, one.dst_address)}
    notes = ["measured by TCP on the same interfaces"] if by_tcp else []
    if len(reached) < len(hosts.places):
        notes.append(f"measured between {len(reached)} of {len(hosts.places)} hosts")
    return Rated(
        candidate=candidate,
        bandwidth_bytes_per_second=min(one.bandwidth_bytes_per_second or math.inf for one in timed),
        latency_seconds=max(one.latency_seconds or 0.0 for one in timed),
        evidence=Evidence.ASSUMED if by_tcp else Evidence.MEASURED,
        age_seconds=max(one.age_seconds for one in timed),
        note="; ".join(notes),
    )


def _nominal(blank: Rated, why: str) -> Rated:
    """Return the figures that the hardware reports; there are none of what no hardware backs."""
    candidate = blank.candidate
    note = "; ".join(filter(None, (why, candidate.doubt)))
    rated = replace(blank, latency_seconds=NETWORK_LATENCY[candidate.transport], note=note)
    if candidate.speed_bytes_per_second is None or candidate.virtual:
        return rated
    return replace(
        rated, bandwidth_bytes_per_second=float(candidate.speed_bytes_per_second), evidence=Evidence.REPORTED
    )


def choices(ranked: Sequence[Rated], rejected: Iterable[NetworkChoice]) -> tuple[NetworkChoice, ...]:
    """Return what the plan tells of all networks; the first one that joins all hosts is the chosen one."""
    joined = [rated for rated in ranked if not rated.unreachable]
    told = []
    for rated in ranked:
        chosen = bool(joined) and rated is joined[0]
        reason = rated.unreachable or "; ".join(filter(None, [_place_of(rated, joined), rated.note]))
        told.append(
            NetworkChoice(
                network=rated.candidate.name,
                transport=rated.candidate.transport,
                bandwidth_bytes_per_second=rated.bandwidth_bytes_per_second,
                latency_seconds=rated.latency_seconds,
                evidence=rated.evidence,
                age_seconds=rated.age_seconds,
                chosen=chosen,
                virtual=rated.candidate.virtual,
                reason=reason,
            )
        )
    return (*told, *rejected)


def _place_of(rated: Rated, joined: Sequence[Rated]) -> str:
    """Return what put a candidate before or behind the best of the others."""
    others = [one for one in joined if one is not rated]
    if not others:
        return "the only network that joins all hosts"
    first = joined[0] is rated
    mine, other = rated_key(rated), rated_key(others[0])
    differs = next((index for index, (a, b) in enumerate(zip(mine, other, strict=True)) if a != b), -1)
    word = "before" if first else "behind"
    why = (
        f"configured for {rated.candidate.role} against {others[0].candidate.role}",
        f"{(rated if mine[1] else others[0]).candidate.software}, where the kernel's TCP is faster",
        f"{_told(rated)} against {_told(others[0])}",
        f"{_told(rated)} against {_told(others[0])}",
        f"as fast, and {rated.candidate.transport} against {others[0].candidate.transport}",
        f"as fast, and {_backed(rated)} against {_backed(others[0])}",
        f"as fast, and for {rated.candidate.role} against {others[0].candidate.role}",
        f"hardly different: {_told(rated)} against {_told(others[0])}",
        "nothing tells them apart but the name",
    )[differs]
    return f"{word} {others[0].candidate.name}: {why}"


def _told(rated: Rated) -> str:
    figures = f"{format_bandwidth(rated.bandwidth_bytes_per_second)}, {format_latency(rated.latency_seconds)}"
    return f"{figures} {rated.evidence}"


def _backed(rated: Rated) -> str:
    return "virtual" if rated.candidate.virtual else "hardware"
