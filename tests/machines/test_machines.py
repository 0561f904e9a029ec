"""Each machine of the suite: rendered, probed, and compared with its golden files.

``pytest tests/machines --update-golden`` writes the golden files anew.
"""

from dataclasses import replace
from pathlib import Path

import pytest

from fabricd.capture import finished, read_capture, to_text
from fabricd.findings.find import findings_of
from fabricd.model.snapshot import Snapshot
from fabricd.paths.matrix import format_matrix, topology_matrix
from tests.support import machine
from tests.support.golden import golden_text
from tests.support.machine_run import probed


def compare(actual: str, golden: Path, request: pytest.FixtureRequest) -> None:
    if request.config.getoption("--update-golden", default=False):
        golden.write_text(actual)
    assert golden.exists(), f"{golden} is missing: pytest tests/machines --update-golden"
    assert actual == golden.read_text()


@pytest.mark.parametrize("name", machine.names())
def test_snapshot_equals_golden(name: str, request: pytest.FixtureRequest) -> None:
    """The whole of what ``fabricd probe --json`` prints, and an excerpt for people."""
    whole, excerpt = probed(name)[1:]
    folder = machine.load(name).folder
    compare(whole, folder / "snapshot.json", request)
    compare(excerpt, folder / "snapshot.txt", request)


@pytest.mark.parametrize("name", machine.captured())
def test_replay_of_a_capture_equals_the_snapshot_in_it(name: str, request: pytest.FixtureRequest) -> None:
    """The golden of a captured machine is its own file, written by ``fabricd capture``."""
    file = machine.MACHINES / name / "capture.json"
    capture = read_capture(file)
    assert capture.redacted
    assert capture.recording is not None
    again = finished(capture.recording, capture.snapshot)
    if request.config.getoption("--update-golden", default=False):
        file.write_text(to_text(replace(again, redacted=True)))
    assert golden_text(again.snapshot) == golden_text(capture.snapshot)


@pytest.mark.parametrize("name", [name for name in machine.names() if machine.load(name).of_kind("gpu")])
def test_matrix_equals_golden(name: str, request: pytest.FixtureRequest) -> None:
    snapshot = probed(name)[0]
    compare(format_matrix(topology_matrix(snapshot)), machine.load(name).folder / "matrix.txt", request)


def found_on(name: str, snapshot: Snapshot) -> list[str]:
    """What is found wrong, without what every machine of the suite lacks: a walk over its fabric."""
    found = [one for one in findings_of(snapshot) if (one.code, one.subject) != ("probe-not-run", "ibfabric")]
    return [
        name,
        *(
            # Why a probe failed names files in the folder of this very run.
            f"  {one.severity}: {one.code}: {one.what}"
            + ("" if one.code.startswith("probe-") else f"; {'; '.join(one.evidence)}")
            for one in found
        ),
    ]


def test_what_is_found_wrong_equals_golden(request: pytest.FixtureRequest) -> None:
    """On all machines, in one file: an alarm that is false is seen there at once."""
    snapshots = {name: probed(name)[0] for name in machine.names()}
    snapshots |= {name: read_capture(machine.MACHINES / name / "capture.json").snapshot for name in machine.captured()}
    told = "".join(f"{line}\n" for name, snapshot in snapshots.items() for line in found_on(name, snapshot))
    compare(told, machine.MACHINES / "findings.txt", request)


@pytest.mark.parametrize("name", [*machine.names(), *machine.captured()])
def test_every_machine_says_what_it_is(name: str) -> None:
    about = (machine.MACHINES / name / "ABOUT.md").read_text()
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
