"""The simulator's templates are what the probes say of machines of this suite."""

from pathlib import Path

import pytest

import fabricd.graph.simulate
from fabricd.graph.simulate.templates import TEMPLATES, load_template
from tests.support.machine_run import probed
from tests.support.templates import MACHINES, template_text

FOLDER = Path(fabricd.graph.simulate.__file__).parent / "machines"


@pytest.mark.parametrize("name", sorted(MACHINES))
def test_a_template_is_what_the_probes_say(name: str, request: pytest.FixtureRequest) -> None:
    file = FOLDER / f"{name}.json"
    actual = template_text(probed(MACHINES[name])[0])
    if request.config.getoption("--update-golden", default=False):
        file.write_text(actual)
    assert actual == file.read_text()
    assert template_text(load_template(name)) == actual


def test_every_template_has_its_machine_and_its_file() -> None:
    assert set(TEMPLATES) == set(MACHINES) == {file.stem for file in FOLDER.iterdir()}
