"""Fixtures of several files: a machine with two GPUs and NVLinks, which is quick to ask, and impatience."""

from pathlib import Path

import pytest

from fabricd.measure import tcp
from fabricd.probe.base import Roots
from tests.support import machine_files
from tests.support.machine import Machine, load
from tests.support.machine_nvml import Scenario, scenario


@pytest.fixture
def box() -> Machine:
    return load("rtx3090-bridge")


@pytest.fixture
def answers(box: Machine) -> Scenario:
    return scenario(box)


@pytest.fixture
def roots(box: Machine, tmp_path: Path) -> Roots:
    return Roots.under(machine_files.render(box).write(tmp_path / "root"))


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measuring over TCP soon gives up on who is silent."""
    monkeypatch.setattr(tcp, "_STEP_SECONDS", 0.2)
    monkeypatch.setattr(tcp, "_VERDICT_SECONDS", 0.4)
