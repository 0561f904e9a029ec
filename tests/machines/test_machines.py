"""Each machine of the suite: rendered, probed, and compared with its golden files.

``pytest tests/machines --update-golden`` writes the golden files anew.
"""

from pathlib import Path

import pytest

from fabricd.paths.matrix import format_matrix, topology_matrix
from tests.support import machine
from tests.support.machine_run import probed


def compare(actual: str, golden: Path, request: pytest.FixtureRequest) -> None:
    if request.config.getoption("--update-golden", default=False):
        golden.write_text(actual)
    assert golden.exists(), f"{golden} is missing: pytest tests/machines --update-golden"
    assert actual == golden.read_text()


@pytest.mark.parametrize("name", machine.names())
def test_snapshot_equals_golden(name: str, request: pytest.FixtureRequest) -> None:
    compare(probed(name)[1], machine.load(name).folder / "snapshot.txt", request)


@pytest.mark.parametrize("name", [name for name in machine.names() if machine.load(name).of_kind("gpu")])
def test_matrix_equals_golden(name: str, request: pytest.FixtureRequest) -> None:
    snapshot = probed(name)[0]
    compare(format_matrix(topology_matrix(snapshot)), machine.load(name).folder / "matrix.txt", request)


@pytest.mark.parametrize("name", machine.names())
def test_every_machine_says_what_it_is(name: str) -> None:
    about = (machine.load(name).folder / "ABOUT.md").read_text()
    assert about.startswith("# ")
    assert len(about) > 100


LEVELS = {"single": "PIX", "multiple": "PXB", "hostbridge": "PHB", "node": "NODE", "system": "SYS"}


@pytest.mark.parametrize("name", [name for name in machine.names() if len(machine.load(name).of_kind("gpu")) > 1])
def test_matrix_says_what_the_driver_says(name: str) -> None:
    """Between GPUs the PCI tree, read by other code, gives the same word as the driver."""
    snapshot = probed(name)[0]
    rows = topology_matrix(snapshot, nvlink=False).rows
    for gpu in snapshot.gpus:
        for peer in gpu.peers:
            assert rows[gpu.index].cells[peer.gpu] == LEVELS[peer.topology]
