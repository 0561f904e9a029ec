"""fabricctl networks and nodes on a cluster in a file: what people see, and what programs get."""

import json
from dataclasses import replace

import pytest

from fabricd.model.cluster import ClusterStatus, NodeState, NodeStatus
from fabricd.model.codec import to_json
from fabricd.model.device import LldpNeighbor
from fabricd.model.network import NetworkRule
from tests.support.nodes import nic, node, nvl_tray

G = 125_000_000


def machine(name, at, leaf):
    interfaces = (
        nic("eno1", f"10.9.0.{at}/24", pci_address="0000:01:00.0", speed_bytes_per_second=1 * G),
        nic("ens1", f"10.1.0.{at}/24", pci_address="0000:02:00.0", speed_bytes_per_second=100 * G),
        nic("ens2", f"10.2.0.{at}/24", pci_address="0000:03:00.0", speed_bytes_per_second=100 * G),
        nic("ens3", pci_address="0000:04:00.0"),
    )
    lldp = tuple(LldpNeighbor(interface=f"ens{rail}", system_name=f"{leaf}-r{rail}") for rail in (1, 2))
    rules = (NetworkRule(name="rail-two", role="compute", subnet="10.2.0.0/16"),)
    return replace(node(name, interfaces=interfaces, lldp=lldp), site_networks=rules)


@pytest.fixture
def cluster(tmp_path):
    file = tmp_path / "cluster.json"
    machines = [machine("a", 1, "leaf0"), machine("b", 2, "leaf0"), machine("c", 3, "leaf1"), nvl_tray(0)]
    nodes = tuple(
        NodeStatus(node_id=one.node.node_id, name=one.node.name, state=NodeState.OK, schema=1, snapshot=one)
        for one in machines
    )
    file.write_bytes(to_json(ClusterStatus(instance="x", generation=1, nodes=nodes)))
    return file


def test_networks_best_for_jobs_first_with_rails_roles_and_reasons(fabricctl, cluster):
    status, out, _ = fabricctl("networks", "--from", cluster)
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert (status, lines[0]) == (0, "NETWORK KIND NODES PORTS SPEED RAIL ROLE VERIFIED REASON")
    assert lines[1:5] == [
        "rail-two ethernet 3 3 12.5 GB/s 1 (assumed) compute (configured) assumed "
        "named so in the configuration of its nodes; its role is configured: compute",
        "nvlink:d0.1 nvlink tray0 4 900 GB/s data assumed GPUs of one NVLink fabric, clique 1, all registered",
        "10.1.0.0/24 ethernet 3 3 12.5 GB/s 0 (assumed) data assumed same subnet 10.1.0.0/24",
        "10.9.0.0/24 ethernet 3 3 0.125 GB/s management assumed "
        "same subnet 10.9.0.0/24; eno1 is 100 times slower than the node's fastest port",
    ]
    assert lines[5] == "3 ports are on no network; --all shows why"
    _, out, _ = fabricctl("networks", "--from", cluster, "--all")
    assert "a/ens3  it has no IP address" in out


def test_no_network_is_a_negative_answer(fabricctl, tmp_path):
    file = tmp_path / "one.json"
    file.write_bytes(to_json(node()))
    status, out, _ = fabricctl("networks", "--from", file)
    assert (status, out) == (1, "no port is on any network\n")
    file.write_text('<system version="1"><cpu numaid="0" affinity="ff" arch="x86_64" vendor="x"/></system>')
    status, _, err = fabricctl("networks", "--from", file)
    assert (status, "is a topology file, which knows no networks" in err) == (2, True)


def test_networks_as_json(fabricctl, cluster):
    told = json.loads(fabricctl("networks", "--from", cluster, "--json")[1])
    first = told["networks"][0]
    assert (first["name"], first["role"], first["configured"], first["rail"]["index"]) == (
        "rail-two",
        "compute",
        True,
        1,
    )
    assert {one["name"] for one in told["no_network"]} == {"id-a/ens3", "id-b/ens3", "id-c/ens3"}


def test_nodes_show_where_they_stand(fabricctl, cluster):
    _, out, _ = fabricctl("nodes", "--from", cluster)
    assert [("leaf0-r1" in line, "leaf1-r1" in line, "NVLink d0.1" in line) for line in out.splitlines()[1:]] == [
        (True, False, False),
        (True, False, False),
        (False, True, False),
        (False, False, True),
    ]
    _, out, _ = fabricctl("nodes", "--from", cluster, "--places")
    assert "ens1 goes into leaf0-r1: LLDP; and 1 more ports" in out


def test_nodes_are_placed_by_a_file_too(fabricctl, cluster, tmp_path):
    conf = tmp_path / "topology.conf"
    conf.write_text("SwitchName=top Switches=l[0-1]\nSwitchName=l0 Nodes=a,b\nSwitchName=l1 Nodes=c,tray0\n")
    _, out, _ = fabricctl("nodes", "--from", cluster, "--placement", conf)
    assert "leaf0-r1 < top" in out
    assert "l1 < top, NVLink d0.1" in out
    told = json.loads(fabricctl("nodes", "--from", cluster, "--placement", conf, "--json")[1])
    assert [one["switches"] for one in told["places"]] == [
        ["leaf0-r1", "top"],
        ["leaf0-r1", "top"],
        ["leaf1-r1", "top"],
        ["l1", "top"],
    ]
    conf.write_text("SwitchName=top Swiches=l0")
    status, _, err = fabricctl("nodes", "--from", cluster, "--placement", conf)
    assert (status, "line 1: swiches does not belong here" in err) == (2, True)
    status, _, err = fabricctl("nodes", "--from", cluster, "--placement", tmp_path / "none")
    assert (status, "cannot read" in err) == (2, True)
