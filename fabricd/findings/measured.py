"""What measurements between nodes show: ports that do not reach each other, and those that are slow among their like.

One slow transfer does not tell which of its two ends is slow, or what lies between; several of each port do. So a port
is judged by the best that it did with anybody whose port is as fast, as reported: a card of 10 Gb/s is not slow among
those of 100, nor are they with it.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from math import ceil
from statistics import median

from fabricd.model.finding import Finding, Severity
from fabricd.model.measurement import Measurement
from fabricd.model.network import Network
from fabricd.units import format_bandwidth

#: A port's best, of the median of its network's ports; a way's, of what its ports do with others. A moment's work on a
#: host makes a transfer half as fast, and each port has several, but a way only its own.
_SLOW, _SLOW_WAY = 0.5, 0.25
#: With so many others a port has to be measured, and so many ports of its network, before it is judged.
_PARTNERS, _PORTS = 2, 3
#: Older measurements say nothing of now.
_MAX_AGE_SECONDS = 3600.0
_SHOWN = 4

#: A port: node_id and interface.
_Port = tuple[str, str]


def measured_findings(
    names: Mapping[str, str], measurements: Iterable[Measurement], networks: Iterable[Network] = ()
) -> Iterator[Finding]:
    """Yield what measurements show.

    Args:
        names: display names of the nodes that count, by node_id.
        measurements: between any nodes.
        networks: what their ports report; those of which nothing is known count as equally fast.
    """
    speeds = {(port.node, port.address): port.speed_bytes_per_second for one in networks for port in one.ports}
    alike: dict[tuple[str, int | None], list[Measurement]] = defaultdict(list)
    for one in measurements:
        if one.src_node in names and one.dst_node in names:
            if not one.reachable:
                yield _unreachable(names, one)
            elif one.bandwidth_bytes_per_second and one.age_seconds <= _MAX_AGE_SECONDS:
                speed = speeds.get((one.src_node, one.src_address))
                if speed == speeds.get((one.dst_node, one.dst_address)):
                    alike[one.network, speed].append(one)
    for (network, _), found in alike.items():
        yield from _slow(network, found, names)


def ends(measurement: Measurement, names: Mapping[str, str]) -> tuple[str, str]:
    """Return the display names of a measurement's two ports: "a/eth0", "b/eth0"."""
    return (
        f"{names.get(measurement.src_node, measurement.src_node)}/{measurement.src_interface}",
        f"{names.get(measurement.dst_node, measurement.dst_node)}/{measurement.dst_interface}",
    )


def _unreachable(names: Mapping[str, str], one: Measurement) -> Finding:
    return Finding(
        code="unreachable",
        severity=Severity.ERROR,
        node=names[one.src_node],
        subject=one.network,
        what=f"{' and '.join(ends(one, names))} do not reach each other, and should",
        evidence=(one.reason, f"measured {one.age_seconds:.0f} s ago, {one.src_address} to {one.dst_address}"),
        fix="see VLANs, routes and firewalls between the two: ping -I INTERFACE ADDRESS",
    )


def _slow(network: str, found: list[Measurement], names: Mapping[str, str]) -> Iterator[Finding]:
    by_port: dict[_Port, list[tuple[float, _Port]]] = defaultdict(list)
    for one in found:
        speed = one.bandwidth_bytes_per_second or 0.0
        src, dst = (one.src_node, one.src_interface), (one.dst_node, one.dst_interface)
        by_port[src].append((speed, dst))
        by_port[dst].append((speed, src))
    judged = {port: max(ways)[0] for port, ways in by_port.items() if len({other for _, other in ways}) >= _PARTNERS}
    if len(judged) < _PORTS:
        return
    usual = median(judged.values())
    slow = {port for port, best in judged.items() if best < _SLOW * usual}
    for port in sorted(slow, key=lambda one: judged[one]):
        name = f"{names[port[0]]}/{port[1]}"
        ways = [f"{format_bandwidth(speed)} with {names[other[0]]}" for speed, other in sorted(by_port[port])[:_SHOWN]]
        yield Finding(
            code="measured-slow",
            severity=Severity.WARNING,
            node=names[port[0]],
            subject=port[1],
            what=f"{name} is slow, with whomever it was measured",
            evidence=(f"{', '.join(ways)}; ports of {network} do {format_bandwidth(usual)} (median)", *_kind(found)),
            fix="fabricctl doctor --nodes NODE (port-slow, half-duplex, pcie-slow); ethtool -S INTERFACE for errors "
            "and pauses; its cable and switch port; other jobs on that node",
        )
    for one in found:
        src, dst = (one.src_node, one.src_interface), (one.dst_node, one.dst_interface)
        speed = one.bandwidth_bytes_per_second or 0.0
        if src in judged and dst in judged and speed < _SLOW_WAY * min(judged[src], judged[dst]):
            first, second = ends(one, names)
            yield Finding(
                code="measured-slow-way",
                severity=Severity.WARNING,
                node=names[one.src_node],
                subject=one.src_interface,
                what=f"{first} and {second} are slow with each other, and not with others",
                evidence=(
                    f"{format_bandwidth(speed)} between them; {format_bandwidth(judged[src])} and "
                    f"{format_bandwidth(judged[dst])} with others",
                    *_kind([one]),
                ),
                fix="what lies between them: uplinks of switches, one link of a bond that their addresses hash to",
            )


def _kind(found: Iterable[Measurement]) -> tuple[str, ...]:
    return (f"one TCP stream each, in the last {ceil(max(one.age_seconds for one in found)) or 1} s",)
