"""``fabricctl env`` in a job's container: other interfaces than its host's, of whose daemon it has the socket alone."""

import json
import subprocess
from contextlib import contextmanager

import pytest

from demo.daemons import program
from tests.net.test_measure_hosts import cluster

pytestmark = pytest.mark.root

#: A container: network and mounts of its own, the host's folder with the socket read-only, and a pod's eth0. It says
#: its number, and goes on when it is told to.
_CONTAINER = """
mount --make-rprivate /
mount -t sysfs sysfs /sys
mount --bind /run/fabricd /run/fabricd
mount -o remount,bind,ro /run/fabricd
ip link set lo up
ip link add eth0 type bridge
ip address add 10.244.1.7/24 dev eth0
ip link set eth0 up
echo $$
read go
[ ! -e /sys/class/net/net1 ] || { ip address add 10.61.0.77/24 dev net1; ip link set net1 up; }
exec "$@"
"""


@contextmanager
def container(host, *command):
    """Start a container; yield it and its process number on the host."""
    words = ["unshare", "--net", "--mount", "sh", "-ec", _CONTAINER, "sh", *command]
    pipe = subprocess.PIPE
    with host.popen(words, stdin=pipe, stdout=pipe, stderr=pipe) as process:
        try:
            yield process, process.stdout.readline().strip()
        finally:
            process.kill()


def test_a_container_is_told_of_its_own_interfaces(tmp_path):
    with cluster(tmp_path) as made:
        host = made.hosts[0]
        asked = (program("fabricctl"), "env", "--format", "json", "--engine", "gloo,nccl")

        with container(host, *asked) as (process, _):
            told, why = process.communicate("go\n", timeout=60)
        assert process.returncode == 1
        assert told == ""
        assert "no network joins the 2 nodes of the job (this process has eth0 (10.244.1.7/24" in why
        assert "hostNetwork: true" in why

        with container(host, *asked) as (process, number):
            parent = host.link("fast").interface
            host.run(["ip", "link", "add", "link", parent, "name", "net1", "type", "macvlan", "mode", "bridge"])
            host.run(["ip", "link", "set", "net1", "netns", number])
            told, why = process.communicate("go\n", timeout=60)
        assert process.returncode == 0, why
        found = json.loads(told)
        assert found["node"] == "h0"
        values = {one["name"]: one["value"] for one in found["settings"]}
        assert values["GLOO_SOCKET_IFNAME"] == "net1"
