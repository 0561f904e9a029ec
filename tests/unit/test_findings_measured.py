"""What measurements show: a slow port is told from a slow way, and from the port that it was measured with."""

from itertools import combinations

from fabricd.findings.find import find
from fabricd.findings.measured import measured_findings
from fabricd.model.measurement import Measurement
from fabricd.model.network import Network, NetworkPort
from fabricd.model.path import Transport
from tests.support.nodes import node

FAST, SLOW = 2.5e9, 0.2e9
NAMES = {name: f"host-{name}" for name in "abcdef"}


def between(src: str, dst: str, speed: float | None = FAST, **fields: object) -> Measurement:
    facts = {
        "src_node": src,
        "dst_node": dst,
        "src_interface": "eth0",
        "dst_interface": "eth0",
        "src_address": f"10.0.0.{ord(src)}",
        "dst_address": f"10.0.0.{ord(dst)}",
        "network": "10.0.0.0/24",
        "reachable": speed is not None,
        "bandwidth_bytes_per_second": speed,
    }
    return Measurement(**(facts | fields))  # type: ignore[arg-type] # the caller names fields of Measurement


def all_pairs(members: str, slow: object, **fields: object) -> list[Measurement]:
    """Every pair; those for which ``slow`` is true carry little."""
    return [between(a, b, SLOW if slow(a, b) else FAST, **fields) for a, b in combinations(members, 2)]  # type: ignore[operator] # a function of two names


def told(measurements: list[Measurement]) -> list[tuple[str, str, str]]:
    return [(one.code, one.node, one.subject) for one in measured_findings(NAMES, measurements)]


def test_a_port_that_is_slow_with_everybody_is_the_one():
    found = list(measured_findings(NAMES, all_pairs("abcd", lambda a, b: "c" in (a, b))))
    assert [(one.code, one.node, one.subject) for one in found] == [("measured-slow", "host-c", "eth0")]
    assert "0.2 GB/s with host-a, 0.2 GB/s with host-b" in found[0].evidence[0]
    assert "2.5 GB/s (median)" in found[0].evidence[0]


def test_three_hosts_are_enough_and_two_are_not():
    assert told(all_pairs("abc", lambda a, b: "c" in (a, b))) == [("measured-slow", "host-c", "eth0")]
    assert told(all_pairs("ab", lambda a, b: True)) == []


def test_a_way_that_is_slow_between_ports_that_are_not():
    found = all_pairs("abcd", lambda a, b: (a, b) == ("a", "d"))
    assert told(found) == [("measured-slow-way", "host-a", "eth0")]
    assert "host-a/eth0 and host-d/eth0" in next(measured_findings(NAMES, found)).what


def test_equal_ports_are_fine_however_fast_and_networks_are_judged_apart():
    assert told(all_pairs("abcdef", lambda a, b: True)) == []
    slower = all_pairs("abcd", lambda a, b: True, network="10.9.0.0/24", src_interface="eth9", dst_interface="eth9")
    assert told(all_pairs("abcd", lambda a, b: False) + slower) == []


def test_ports_are_judged_among_those_that_report_the_same_speed():
    speeds = {"a": 100, "b": 100, "c": 100, "d": 10, "e": 10, "f": 10}
    ports = tuple(
        NetworkPort(node=name, interface="eth0", address=f"10.0.0.{ord(name)}", speed_bytes_per_second=speed)
        for name, speed in speeds.items()
    )
    network = Network(name="10.0.0.0/24", transport=Transport.ETHERNET, ports=ports)
    mixed = all_pairs("abcdef", lambda a, b: min(speeds[a], speeds[b]) == 10)
    assert list(measured_findings(NAMES, mixed, [network])) == []
    worse = [between("e", other, SLOW / 10) for other in "df"] + [
        one for one in mixed if "e" not in (one.src_node, one.dst_node)
    ]
    assert [(one.code, one.node) for one in measured_findings(NAMES, worse, [network])] == [("measured-slow", "host-e")]


def test_one_partner_is_no_proof():
    assert told([between("a", "b"), between("c", "d", SLOW), between("e", "f")]) == []


def test_what_is_old_or_of_others_says_nothing():
    assert told(all_pairs("abcd", lambda a, b: "c" in (a, b), age_seconds=7200.0)) == []
    assert told([between("x", "y", None), between("a", "z", None)]) == []


def test_unreachable_stays_what_it_was_and_findings_of_nodes_have_all_of_it():
    nodes = {name: node(f"host-{name}") for name in "abcd"}
    measured = [*all_pairs("abcd", lambda a, b: "c" in (a, b)), between("a", "b", None, reason="no answer")]
    codes = [one.code for one in find(nodes, NAMES, measurements=measured).findings]
    assert {"unreachable", "measured-slow"} <= set(codes)
