"""Real MPI on plans for networks that are no common IPv4 subnet: IPv6 only, routed, one host without shared memory."""

import sys
from contextlib import ExitStack

import pytest

from demo.hosts import NetworkSpec, make_hosts
from tests.support.host_daemons import PORT, daemons
from tests.support.host_ranks import run_host_ranks

RANK = """
import json, numpy, fabric_client
with fabric_client.create_communicator(timeout=40) as comm:
    result = comm.all_reduce(numpy.full(300_000, comm.rank + 1.0))
    print(json.dumps({"sum": float(result[-1]), "explain": comm.explain()}))
"""

pytestmark = [pytest.mark.root, pytest.mark.mpi]


def run_ranks(places, environment):
    """Run a rank at each place (a host) to its end; return what each said."""
    return [ended.json() for ended in run_host_ranks(places, [sys.executable, "-c", RANK], environment)]


def addresses(host, interface, *lines):
    """Give an interface these addresses and routes instead of those it has."""
    host.run(["ip", "address", "flush", "dev", interface])
    for line in lines:
        host.run(["ip", *line.split()])


def test_ipv6_only(tmp_path):
    with make_hosts(2, [NetworkSpec("net", "10.64.0.0/24")]) as hosts:
        for number, host in enumerate(hosts):
            addresses(host, "net", f"address add fd00:64::{number + 1}/64 dev net nodad")
        with daemons(tmp_path, hosts, [f"http://[fd00:64::{number}]:{PORT}" for number in (1, 2)]) as environment:
            before = hosts[0].link("net").counters().sent_bytes
            told = run_ranks(hosts, environment)
            assert [one["sum"] for one in told] == [3.0, 3.0]
            assert hosts[0].link("net").counters().sent_bytes - before > 1_000_000
            assert "chosen fd00:64::/64" in told[0]["explain"]
            assert "UCX_TCP_AF_PRIO=inet6" in told[0]["explain"]


def test_an_ipv6_network_beside_ipv4_addresses_that_join_nobody(tmp_path):
    with make_hosts(2, [NetworkSpec("net", "10.64.0.0/24")]) as hosts:
        for number, host in enumerate(hosts):
            own = f"address add 10.65.{number}.1/24 dev net"
            addresses(host, "net", own, f"address add fd00:64::{number + 1}/64 dev net nodad")
        with daemons(tmp_path, hosts, [f"http://[fd00:64::{number}]:{PORT}" for number in (1, 2)]) as environment:
            assert [one["sum"] for one in run_ranks(hosts, environment)] == [3.0, 3.0]


def test_hosts_with_a_subnet_of_their_own_each(tmp_path):
    with make_hosts(2, [NetworkSpec("net", "10.64.0.0/24")]) as hosts:
        for number, host in enumerate(hosts):
            addresses(host, "net", f"address add 10.66.{number}.1/24 dev net", "route add 10.66.0.0/16 dev net")
        with daemons(tmp_path, hosts, [f"http://10.66.{number}.1:{PORT}" for number in (0, 1)]) as environment:
            told = run_ranks(hosts, environment)
            assert [one["sum"] for one in told] == [3.0, 3.0]
            assert "routed:10.66.0.0/24+10.66.1.0/24" in told[0]["explain"]


def test_a_group_at_a_daemon_that_holds_no_map(tmp_path):
    with make_hosts(
        2, [NetworkSpec("net", "10.68.0.0/24"), NetworkSpec("slow", "10.69.0.0/24", bits_per_second=50_000_000)]
    ) as hosts:
        of_map, of_agent = (f"http://10.68.0.{number}:{PORT}" for number in (1, 2))
        maps = f'map_nodes = ["{of_map}"]\n'
        with daemons(tmp_path, hosts, [of_agent, of_map], [maps, maps + 'role = "agent"\n']) as environment:
            told = run_ranks(hosts, environment)
            assert [one["sum"] for one in told] == [3.0, 3.0]
            assert "chosen 10.68.0.0/24" in told[0]["explain"]


def test_ranks_on_one_host_that_share_no_memory_talk_over_its_network(tmp_path):
    with make_hosts(1, [NetworkSpec("net", "10.67.0.0/24")]) as hosts, ExitStack() as stack:
        environment = stack.enter_context(daemons(tmp_path, hosts, [f"http://10.67.0.1:{PORT}"]))
        told = run_ranks([hosts[0], Apart(hosts[0])], environment)
        assert [one["sum"] for one in told] == [3.0, 3.0]
        assert "talk over its network interface" in told[0]["explain"]


class Apart:
    """A container on a host: its network, and an IPC namespace, processes and shared memory of its own."""

    def __init__(self, host):
        self._host = host

    def popen(self, command, **options):
        mounts = 'mount -t proc proc /proc && mount -t tmpfs tmpfs /dev/shm && exec "$@"'
        apart = ["unshare", "--ipc", "--pid", "--mount", "--fork", "--kill-child", "sh", "-c", mounts, "sh"]
        return self._host.popen([*apart, *command], **options)
