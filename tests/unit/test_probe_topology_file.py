"""The topology file of a machine's image is found by what it names, and what it holds is not believed."""

import os
from pathlib import Path

import pytest

from fabricd.model.observation import Outcome
from fabricd.probe.base import ProbeContext, Roots
from fabricd.probe.runner import take_snapshot
from fabricd.probe.topology_file import TopologyFileProbe
from tests.support.tree import Tree


def topology(*addresses: str) -> str:
    devices = "".join(f'<pci busid="{address}"/>' for address in addresses)
    return f'<system version="1"><cpu numaid="0">{devices}</cpu></system>'


def taken(root: Path, files: dict[str, str], **context):
    tree = Tree()
    for domain in range(4):
        tree[f"sys/bus/pci/devices/000{domain}:00:00.0/class"] = "0x030200\n"
    for path, text in files.items():
        tree[path] = text
    tree.write(root)
    where = ProbeContext(roots=Roots.under(root), this_host=False, **context)
    snapshot = take_snapshot(where, probes=[TopologyFileProbe()])
    return snapshot.topology_file, snapshot.probes[0]


def test_the_file_that_names_most_of_the_devices(tmp_path):
    files = {
        "opt/microsoft/a-topo.xml": topology("0000:00:00.0", "0009:00:00.0"),
        "opt/microsoft/b-topo.xml": topology("00000001:00:00.0", "0002:00:00.0", "0003:00:00.0"),
        "opt/microsoft/c-topo.xml": topology("0001:00:00.0", "0002:00:00.0", "0003:00:00.0"),
        "opt/microsoft/graph.xml": topology(*(f"000{domain}:00:00.0" for domain in range(4))),
    }
    found, report = taken(tmp_path, files)
    assert report.outcome is Outcome.OK
    assert found.path == "/opt/microsoft/b-topo.xml"
    assert found.text == files["opt/microsoft/b-topo.xml"]
    assert not found.given


def test_nccls_own_configuration_comes_first(tmp_path):
    files = {
        "etc/nccl.conf": "# of the image\nNCCL_TOPO_FILE=/srv/a.xml\nNCCL_TOPO_FILE = /srv/my topo\nNCCL_DEBUG=INFO\n",
        "srv/my": topology("0001:00:00.0"),
        "run/nvidia-topologyd/virtualTopology.xml": topology("0002:00:00.0"),
    }
    assert taken(tmp_path, files)[0].path == "/srv/my"


def test_places_are_the_configurations(tmp_path):
    files = {"run/nvidia-topologyd/virtualTopology.xml": topology("0002:00:00.0")}
    assert taken(tmp_path / "a", files)[0].path == "/run/nvidia-topologyd/virtualTopology.xml"
    found, report = taken(tmp_path / "b", files, topology_files=("/srv/*/x.xml",))
    assert (found, report.outcome, report.reason) == (None, Outcome.ABSENT, "no file in any place of topology_files")


def test_a_file_of_another_machine_is_named(tmp_path):
    found, report = taken(tmp_path, {"opt/microsoft/a-topo.xml": topology("00aa:00:00.0")})
    assert (found, report.outcome) == (None, Outcome.ABSENT)
    assert report.reason == "none of this machine's devices stands in /opt/microsoft/a-topo.xml"


def test_large_files_pipes_and_rings_of_links_are_told(tmp_path):
    folder = tmp_path / "opt/microsoft"
    folder.mkdir(parents=True)
    os.mkfifo(folder / "pipe-topo.xml")
    (folder / "ring-topo.xml").symlink_to("ring-topo.xml")
    found, report = taken(
        tmp_path, {"opt/microsoft/large-topo.xml": topology("0001:00:00.0") + f"<!--{'x' * 300_000}-->"}
    )
    assert (found, report.outcome) == (None, Outcome.FAILED)
    assert "large-topo.xml: more than 262144 characters" in report.reason
    assert "pipe-topo.xml" in report.reason


def test_very_many_files_are_bounded(tmp_path):
    files = {f"opt/microsoft/{index:04}-topo.xml": topology("00aa:00:00.0") for index in range(200)}
    assert taken(tmp_path, files)[1].reason.count(".xml") <= 64


@pytest.mark.parametrize("text", ["", "NCCL_TOPO_FILE=", "NCCL_TOPO_FILE=topo.xml", "NCCL_TOPO_FILE=/", "\0\xff"])
def test_odd_configurations_of_nccl_do_no_harm(tmp_path, text):
    assert taken(tmp_path, {"etc/nccl.conf": text})[1].outcome is Outcome.ABSENT
