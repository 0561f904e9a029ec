"""The simulator's templates are what the probes say of machines of this suite."""

from collections import Counter
from pathlib import Path

import pytest

import fabricd.graph.simulate
from fabricd.graph.networks import find_networks
from fabricd.graph.simulate.design import Design, ports_of
from fabricd.graph.simulate.nodes import simulate
from fabricd.graph.simulate.templates import TEMPLATES, load_template
from tests.support import machine
from tests.support.machine_run import probed
from tests.support.templates import MACHINES, template_text, unique_facts

FOLDER = Path(fabricd.graph.simulate.__file__).parent / "machines"


@pytest.mark.parametrize("name", sorted(MACHINES))
def test_a_template_is_what_the_probes_say(name: str, request: pytest.FixtureRequest) -> None:
    file = FOLDER / f"{name}.json"
    actual = template_text(probed(MACHINES[name])[0])
    if request.config.getoption("--update-golden", default=False):
        file.write_text(actual)
    assert actual == file.read_text()
    assert template_text(load_template(name)) == actual


@pytest.mark.parametrize("name", [name for name in machine.names() if name != "empty"])
def test_any_machine_can_be_a_template(name: str) -> None:
    """Nodes differ in all that must be their own, and the rails join all but those whose port is broken."""
    design = Design(template=probed(name)[0], name=name, nodes=5, leaf=2, missing=1, down=1)
    nodes = {one.node_id: one.snapshot for one in simulate(design) if one.snapshot is not None}
    seen = Counter(one for snapshot in nodes.values() for one in unique_facts(snapshot))
    assert [one for one, count in seen.items() if count > 1] == []
    ports = ports_of(design)
    told = {(port.node, port.interface) for network in find_networks(nodes).networks for port in network.ports}
    rails = [(node_id, port.name) for node_id in nodes for port in ports.rails]
    assert len(rails) - len(told.intersection(rails)) == 2


def test_every_template_has_its_machine_and_its_file() -> None:
    assert set(TEMPLATES) == set(MACHINES) == {file.stem for file in FOLDER.iterdir()}
