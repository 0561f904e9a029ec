"""fabricctl doctor on files: what people see, what programs get, and the exit status that a prolog goes by."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from fabricd.model.cluster import ClusterStatus, NodeState, NodeStatus
from fabricd.model.codec import from_json, to_json
from fabricd.model.snapshot import Snapshot
from tests.support.nodes import hgx


@pytest.fixture
def sick(tmp_path: Path) -> Path:
    """A node one of whose GPUs has a link down, and whose ACS could not be read."""
    base = hgx("dgx-07")
    links = tuple(replace(link, active=link.index != 7) for link in base.gpus[5].links)
    gpus = (*base.gpus[:5], replace(base.gpus[5], links=links), *base.gpus[6:])
    file = tmp_path / "node.json"
    file.write_bytes(to_json(replace(base, gpus=gpus)))
    return file


@pytest.fixture
def cluster(tmp_path: Path, sick: Path) -> Path:
    """Three nodes alike, one of which is sick."""
    machines = [hgx("dgx-05"), hgx("dgx-06"), from_json(sick.read_bytes(), Snapshot, what="a node")]
    file = tmp_path / "cluster.json"
    file.write_bytes(to_json(cluster_of(*machines)))
    return file


def cluster_of(*machines: Snapshot) -> ClusterStatus:
    nodes = tuple(
        NodeStatus(node_id=one.node.node_id, name=one.node.name, state=NodeState.OK, schema=1, snapshot=one)
        for one in machines
    )
    return ClusterStatus(instance="x", generation=1, nodes=nodes)


def test_each_finding_names_facts_and_the_next_step(fabricctl, sick):
    status, out, _ = fabricctl("doctor", "--from", sick)
    lines = out.splitlines()
    assert (status, lines[0]) == (1, "error    nvlink-down  dgx-07")
    assert lines[1:3] == [
        "         gpu5 has NVLinks that are down: 7",
        "         because: 17 of 18 are active; gpu0 has 18",
    ]
    assert lines[3].startswith("         next: nvidia-smi nvlink -s -i 5")
    assert lines[-1] == "1 error, 0 warnings, 0 notes on 1 node"


def test_a_prolog_goes_by_the_exit_status(fabricctl, sick, cluster):
    assert fabricctl("doctor", "--from", sick, "--ignore", "nvlink-down")[0] == 0
    assert fabricctl("doctor", "--from", cluster, "--nodes", "dgx-[05-06]")[0] == 0
    assert fabricctl("doctor", "--from", cluster, "--nodes", "dgx-[06-07]", "--at-least", "error")[0] == 1


def test_what_is_ignored_does_not_take_with_it_what_else_shows_the_fault(fabricctl, tmp_path):
    slow = hgx("dgx-07")
    port = replace(slow.hcas[2].ports[0], rate_bytes_per_second=25 * 10**9)
    slow = replace(slow, hcas=(*slow.hcas[:2], replace(slow.hcas[2], ports=(port,)), *slow.hcas[3:]))
    file = tmp_path / "cluster.json"
    file.write_bytes(to_json(cluster_of(hgx("dgx-05"), hgx("dgx-06"), slow)))

    def codes(*ignored):
        words = [word for code in ignored for word in ("--ignore", code)]
        told = json.loads(fabricctl("doctor", "--from", file, "--json", *words)[1])
        return [one["code"] for one in told["findings"] if one["node"] == "dgx-07" and one["severity"] != "note"]

    assert codes() == ["rate-differs"]
    assert codes("port-slow") == ["rate-differs"]
    assert codes("rate-differs") == ["port-slow"]
    assert codes("rate-differs", "port-slow") == []


def test_wrong_input_is_told(fabricctl, sick, tmp_path):
    status, _, err = fabricctl("doctor", "--from", sick, "--ignore", "nvlink-dwon")
    assert (status, "nvlink-down" in err) == (2, True)
    status, _, err = fabricctl("doctor", "--from", sick, "--nodes", "dgx-99")
    assert (status, "dgx-07" in err) == (2, True)
    status, _, err = fabricctl("doctor", "--from", sick, "--nodes", "4")
    assert (status, "copies of one machine" in err) == (2, True)
    topology = tmp_path / "topo.xml"
    topology.write_text('<system version="1"><cpu numaid="0" affinity="ff" arch="x86_64" vendor="x"/></system>')
    assert fabricctl("doctor", "--from", topology)[0] == 2


def test_alike_findings_of_many_nodes_are_one(fabricctl, tmp_path):
    lost = [replace(one, gpus=(replace(one.gpus[0], ecc_uncorrected=place + 1), *one.gpus[1:]))
            for place, one in enumerate(hgx(f"n{number}") for number in range(9))]  # fmt: skip
    nodes = tuple(
        NodeStatus(node_id=one.node.node_id, name=one.node.name, state=NodeState.OK, schema=1, snapshot=one)
        for one in lost
    )
    file = tmp_path / "many.json"
    file.write_bytes(to_json(ClusterStatus(instance="x", generation=1, nodes=nodes)))
    _, out, _ = fabricctl("doctor", "--from", file)
    assert "gpu-ecc  n0, n1, n2, n3, n4, n5 and 3 more" in out
    assert "because: 1 uncorrected ECC error since its driver was loaded; and the like" in out
    assert out.splitlines()[-1] == "0 errors, 9 warnings, 0 notes on 9 nodes"


def test_programs_get_json(fabricctl, cluster):
    told = json.loads(fabricctl("doctor", "--from", cluster, "--json")[1])
    assert [(one["code"], one["node"], one["subject"]) for one in told["findings"]] == [
        ("nvlink-down", "dgx-07", "gpu5")
    ]
    assert told["nodes"] == 3
