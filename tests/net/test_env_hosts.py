"""``fabricctl env`` on each host of a job: concrete names, its own ones, whichever daemon is asked."""

import subprocess

import pytest

from demo.daemons import program
from tests.net.test_measure_hosts import cluster

pytestmark = pytest.mark.root


def test_each_host_is_told_its_own_interface(tmp_path):
    with cluster(tmp_path) as made:
        asked = ["env", "--from", "http://127.0.0.1:7470", "--engine", "gloo,ucx"]

        def env(host, *more):
            command = [program("fabricctl"), *asked, *more]
            done = host.namespaces.inside(
                lambda: subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
            )
            assert done.returncode == 0, done.stderr
            return done.stdout

        here, there = made.hosts
        told = [env(host) for host in (here, there)]
        assert told[0].startswith("# for h0, in a job on h0, h1\n")
        assert told[1].startswith("# for h1, in a job on h1, h0\n")
        names = [text.split("GLOO_SOCKET_IFNAME='")[1].split("'")[0] for text in told]
        for host, name in zip((here, there), names, strict=True):
            assert name in {link.interface for link in host.links.values()}
