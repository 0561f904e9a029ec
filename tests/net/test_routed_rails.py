"""Jobs over rails that share no subnet: each port has a subnet, a gateway and a routing table of its own.

::

    h0  [rail0 10.81.0.1]----[a0]         [b0]----[rail0 10.81.1.2]  h1
                                 h2, a router
        [rail1 10.82.0.1]----[a1]         [b1]----[rail1 10.82.1.2]

Between the hosts lies nothing but the router; no configuration says what the rails are for.
"""

import sys
from contextlib import contextmanager

import pytest

from demo.daemons import wait_for_peers
from demo.hosts import NetworkSpec, make_hosts
from tests.support.host_daemons import PORT, daemons
from tests.support.host_ranks import run_host_ranks

#: By the router's interface: the host, its interface, the subnet.
RAILS = {
    "a0": (0, "rail0", "10.81.0"),
    "b0": (1, "rail0", "10.81.1"),
    "a1": (0, "rail1", "10.82.0"),
    "b1": (1, "rail1", "10.82.1"),
}
#: Joins all, and is slower than any rail.
FRONT = NetworkSpec("front", "10.83.0.0/24", bits_per_second=200_000_000)

pytestmark = [pytest.mark.root, pytest.mark.mpi]


def cable(router_interface, bits_per_second=None):
    """Return a network of one host and the router; the other host's interface on it is to be removed."""
    host, name, subnet = RAILS[router_interface]
    interfaces = [f"{router_interface}x"] * 2 + [router_interface]
    interfaces[host] = name
    return NetworkSpec(router_interface, f"{subnet}.0/24", tuple(interfaces), bits_per_second)


def route(hosts, router_interface):
    """Give a port its table: all that comes from its address goes by its gateway."""
    host, name, subnet = RAILS[router_interface]
    hosts[1 - host].run(["ip", "link", "delete", f"{router_interface}x"])
    table = str(100 + int(name[-1]))
    hosts[host].run(["ip", "rule", "add", "from", f"{subnet}.{host + 1}", "table", table, "priority", table])
    hosts[host].run(["ip", "route", "add", "default", "via", f"{subnet}.3", "dev", name, "table", table])


@contextmanager
def routed_hosts(*more, slow=()):
    """Make the hosts; those cables are slow that ``slow`` names."""
    specs = [*more, *(cable(name, 200_000_000 if name in slow else None) for name in RAILS)]
    with make_hosts(3, specs) as hosts:
        hosts[2].run(["sysctl", "-qw", "net.ipv4.ip_forward=1"])
        for name in RAILS:
            route(hosts, name)
        yield hosts


def ended(hosts, environment):
    """Run a rank on each of two hosts that verifies 4 MiB; return how each ended."""
    return run_host_ranks(hosts, [sys.executable, "-m", "tests.e2e.rank_verifies", str(4 << 20)], environment)


def carried(hosts, environment):
    """Return which interface of each host carried a job's bytes, by the counters, once that is the planned one."""
    told = [one.json() for one in ended(hosts, environment)]
    assert [one["verdict"] for one in told] == ["CONFIRMED"] * 2, told
    assert len({one["told"] for one in told}) == 1
    return [line.partition(" sent ")[0] for line in told[0]["told"].splitlines()[1:]]


@contextmanager
def cluster(folder, addresses, *specs, slow=(), routes=()):
    """Run daemons at addresses, the hosts with a route each in the main table; yield hosts and ranks' environment."""
    with routed_hosts(*specs, slow=slow) as hosts:
        ends = hosts[:2]
        for host, words in zip(ends, routes, strict=False):
            host.run(["ip", "route", "add", *words.split()])
        with daemons(folder, ends, [f"http://{address}:{PORT}" for address in addresses]) as environment:
            for host in ends:
                wait_for_peers(host, len(ends))
            yield ends, environment


@pytest.mark.timeout(120)
def test_rails_with_tables_of_their_own_alone_and_the_faster_one_is_taken(tmp_path):
    # What comes from no rail's address, as the daemons' questions to one another, has a way by the slow rail.
    by_slow = [f"default via 10.81.{number}.3" for number in (0, 1)]
    with cluster(tmp_path, ("10.81.0.1", "10.81.1.2"), slow=("a0", "b0"), routes=by_slow) as (hosts, environment):
        assert carried(hosts, environment) == ["h0: rail1 (planned)", "h1: rail1 (planned)"]


@pytest.mark.timeout(120)
def test_rails_come_before_a_slower_network_that_joins_all(tmp_path):
    with cluster(tmp_path, ("10.83.0.1", "10.83.0.2"), FRONT, slow=("a0",)) as (hosts, environment):
        assert carried(hosts, environment) == ["h0: rail1 (planned)", "h1: rail1 (planned)"]


@pytest.mark.timeout(120)
def test_a_rail_that_ucx_would_not_take_is_not_planned(tmp_path):
    # A longer prefix in the main table than in the rails' own: packets do not go by it, and UCX thinks they do.
    by_front = ["10.80.0.0/13 via 10.83.0.3"] * 2
    with cluster(tmp_path, ("10.83.0.1", "10.83.0.2"), FRONT, routes=by_front) as (hosts, environment):
        assert carried(hosts, environment) == ["h0: front (planned)", "h1: front (planned)"]
        forced = ended(hosts, {**environment, "FABRICD_GROUP": "forced", "UCX_NET_DEVICES": "rail1"})
        assert all(one.status for one in forced)
        assert "Destination is unreachable" in "".join(one.err for one in forced)
