"""The NCCL engine across two hosts with two networks each: what was measured decides, and the bytes go there.

The library beneath moves host memory over the interface that NCCL_SOCKET_IFNAME names, as NCCL's sockets do.
"""

import sys

import pytest

from demo.hosts import NetworkSpec, make_hosts
from tests.support.host_daemons import PORT, daemons
from tests.support.host_ranks import run_host_ranks

pytest.importorskip("cupy_backends", reason="CuPy is not installed")

RANK = """
import json, os, numpy, fabric_client
from tests.support.nccl_library import HostArray, HostDevice
device = HostDevice("gpu" + os.environ["RANK"])
with fabric_client.create_communicator(engine="nccl", device=device, timeout=40) as comm:
    result = comm.all_reduce(HostArray(numpy.full(300_000, comm.rank + 1.0)))
    seen = device.library.shim_environment(b"NCCL_SOCKET_IFNAME")
    said = {"explain": comm.explain(), "interface": seen.decode(), "verdict": str(comm.verify(4 << 20))}
    print(json.dumps({"sum": float(result.data[-1]), **said}))
"""

pytestmark = pytest.mark.root


def test_nccls_bytes_take_the_network_that_was_measured_faster(tmp_path):
    # The slow one comes first, by name and by address.
    networks = [NetworkSpec("a", "10.68.0.0/24", bits_per_second=50_000_000), NetworkSpec("b", "10.69.0.0/24")]
    with make_hosts(2, networks) as hosts:
        addresses = [f"http://10.68.0.{number}:{PORT}" for number in (1, 2)]
        with daemons(tmp_path, hosts, addresses) as environment:
            told = [ended.json() for ended in run_host_ranks(hosts, [sys.executable, "-c", RANK], environment)]
            sent = {name: hosts[0].link(name).counters().sent_bytes for name in ("a", "b")}
    for one in told:
        assert one["sum"] == 3.0
        assert one["interface"] == "=b"
        assert one["verdict"].startswith("CONFIRMED")
        assert "chosen 10.69.0.0/24" in one["explain"]
        assert "NCCL_SOCKET_IFNAME==b (10.69.0.0/24 joins the nodes" in one["explain"]
    assert sent["b"] > 2_400_000
