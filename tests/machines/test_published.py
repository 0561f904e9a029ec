"""What ``fabricctl topo`` prints of each machine that has a published ``nvidia-smi topo -m`` equals it."""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fabric_client.cli.main import run
from fabricd.model.codec import to_json
from tests.support import machine, topo_text
from tests.support.machine_run import probed

PUBLISHED = [(name, entry) for name in machine.names() for entry in machine.load(name).facts.get("published", [])]

Printed = Callable[[str, dict[str, Any]], str]


@pytest.fixture
def ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Printed:
    """Return what the command prints below its heading."""

    def printed(name: str, entry: dict[str, Any]) -> str:
        file = tmp_path / f"{name}.json"
        file.write_bytes(to_json(probed(name)[0]))
        options = ["--cpus", entry["cpuset"]] if "cpuset" in entry else []
        options += [] if entry.get("nvlink", True) else ["--pcie"]
        monkeypatch.setattr(sys, "argv", ["fabricctl", "topo", "--from", str(file), *options])
        assert run() == 0
        out: str = capsys.readouterr().out
        return out[out.index("\n\t") + 1 :]

    return printed


def theirs(entry: dict[str, Any]) -> str:
    file: str = entry["file"]
    return (Path(os.environ["FABRICD_CORPUS"]) / "topologies/public/topo_m" / file).read_text()


@pytest.mark.corpus
@pytest.mark.parametrize(("name", "entry"), PUBLISHED, ids=[entry["file"] for _, entry in PUBLISHED])
def test_types_and_affinities(name: str, entry: dict[str, Any], ours: Printed) -> None:
    matrix, published = topo_text.parse(ours(name, entry)), topo_text.parse(theirs(entry))
    # Older drivers name adapters at once, newer ones by a legend.
    label_of = {label: label for label in matrix.columns} | {name: label for label, name in matrix.adapters.items()}
    place = {name: matrix.columns.index(label) for name, label in label_of.items()}
    assert len(published.rows) == len(matrix.rows)
    for label, cells in published.rows.items():
        for column, cell in zip(published.columns, cells, strict=True):
            assert matrix.rows[label_of[label]][place[column]] == cell, (label, column)
    if not entry.get("broken_affinity"):
        assert matrix.cpu_affinity == published.cpu_affinity
    if published.numa_affinity:
        assert matrix.numa_affinity == published.numa_affinity
    if published.gpu_numa_id:
        assert matrix.gpu_numa_id == published.gpu_numa_id
    assert matrix.adapters.items() >= published.adapters.items()


@pytest.mark.corpus
def test_every_published_matrix_has_its_machine() -> None:
    folder = Path(os.environ["FABRICD_CORPUS"]) / "topologies/public/topo_m"
    assert {path.name for path in folder.iterdir()} == {entry["file"] for _, entry in PUBLISHED}


@pytest.mark.corpus
@pytest.mark.parametrize("file", ["h100_8x_princeton_6nic.txt", "perlmutter_4xA100.txt", "rtx4090_2x_sys.txt"])
def test_layout_to_the_byte(file: str, ours: Printed) -> None:
    """Captures of newer drivers whose tabs survived: each of their lines is printed, in this order."""
    name, entry = next((name, entry) for name, entry in PUBLISHED if entry["file"] == file)
    published = [line for line in theirs(entry).splitlines() if not line.startswith("$")]
    assert ours(name, entry).splitlines()[: len(published)] == published
