"""The matrix of each machine that has a published ``nvidia-smi topo -m`` equals it."""

import os
from pathlib import Path
from typing import Any

import pytest

from fabricd.paths.matrix import TopologyMatrix, format_matrix, topology_matrix
from fabricd.probe.files import parse_cpu_list
from tests.support import machine, topo_text
from tests.support.machine_run import probed

PUBLISHED = [(name, entry) for name in machine.names() for entry in machine.load(name).facts.get("published", [])]


def ours(name: str, entry: dict[str, Any]) -> TopologyMatrix:
    cpuset = frozenset(parse_cpu_list(entry["cpuset"])) if "cpuset" in entry else None
    return topology_matrix(probed(name)[0], nvlink=entry.get("nvlink", True), cpuset=cpuset)


def theirs(entry: dict[str, Any]) -> tuple[topo_text.Published, str]:
    text = (Path(os.environ["FABRICD_CORPUS"]) / "topologies/public/topo_m" / entry["file"]).read_text()
    return topo_text.parse(text), text


@pytest.mark.corpus
@pytest.mark.parametrize(("name", "entry"), PUBLISHED, ids=[entry["file"] for _, entry in PUBLISHED])
def test_types_and_affinities(name: str, entry: dict[str, Any]) -> None:
    matrix, (published, _) = ours(name, entry), theirs(entry)
    by_name = {row.label: row for row in matrix.rows} | {row.name: row for row in matrix.rows if row.label[0] == "N"}
    assert len(published.rows) == len(matrix.rows)
    for label, cells in published.rows.items():
        row = by_name[label]
        assert list(row.cells)[: len(cells)] == cells, label
    for label in published.cpu_affinity if not entry.get("broken_affinity") else ():
        assert by_name[label].cpu_affinity == published.cpu_affinity[label]
    for label, numa in published.numa_affinity.items():
        assert by_name[label].numa_affinity == numa
    for label, numa in published.gpu_numa_id.items():
        assert by_name[label].gpu_numa_id == numa
    for label, adapter in published.adapters.items():
        assert by_name[label].name == adapter


@pytest.mark.corpus
def test_every_published_matrix_has_its_machine() -> None:
    folder = Path(os.environ["FABRICD_CORPUS"]) / "topologies/public/topo_m"
    assert {path.name for path in folder.iterdir()} == {entry["file"] for _, entry in PUBLISHED}


@pytest.mark.corpus
@pytest.mark.parametrize("file", ["h100_8x_princeton_6nic.txt", "perlmutter_4xA100.txt", "rtx4090_2x_sys.txt"])
def test_layout_to_the_byte(file: str) -> None:
    """Captures of newer drivers whose tabs survived: every line that we print stands in the capture."""
    name, entry = next((name, entry) for name, entry in PUBLISHED if entry["file"] == file)
    published = theirs(entry)[1].splitlines()
    for line in format_matrix(ours(name, entry)).splitlines():
        assert line in published
