"""Machines that are odd but whole: ports, links and lanes gone or slow. Plans stay valid, and never below NCCL's."""

import random
import re

from fabricd.errors import InputError
from fabricd.graph.nccl_xml_read import read
from fabricd.plan.collective.machines import machines_of
from fabricd.plan.collective.plan import ring_plan
from fabricd.plan.collective.planner import Planner, Request
from tests.support.nccl_golden import OWN

CHANGES = {
    "speed": ("0", "1000", "25000", "100000", "400000"),
    "link_width": ("0", "1", "4", "8", "16"),
    "count": ("1", "2", "6", "17", "18"),
    "gdr": ("0", "1"),
    "sm": ("70", "80", "90", "100"),
}
INPUTS = 24


def changed(text: str, chance: random.Random) -> str:
    for _ in range(chance.choice((1, 2, 4))):
        name = chance.choice(sorted(CHANGES))
        found = list(re.finditer(rf' {name}="([^"]*)"', text))
        if found:
            place = chance.choice(found)
            text = text[: place.start(1)] + chance.choice(CHANGES[name]) + text[place.end(1) :]
        if chance.random() < 0.3 and (gone := list(re.finditer(r"<(?:net|nvlink) [^>]*/>", text))):
            place = chance.choice(gone)
            text = text[: place.start()] + text[place.end() :]
    return text


def test_odd_machines_have_valid_plans_or_a_plain_error() -> None:
    chance = random.Random(6)
    texts = [path.read_text() for path in sorted(OWN.glob("*.xml"))]
    planned = 0
    for _ in range(INPUTS):
        whole = chance.choice(texts)
        kinds = [read(changed(whole, chance)), read(whole)][: chance.choice((1, 2))]
        nodes = chance.choice((1, 2, 3))
        machines = machines_of([(f"node{at}", kinds[at % len(kinds)]) for at in range(nodes)])
        routes = chance.choice(("engine", "engine", "free"))
        try:
            planner = Planner(
                Request(topologies=machines.topologies, order=machines.order, names=machines.names, routes=routes)
            )
            answer = ring_plan(planner)
        except InputError:
            continue
        planned += 1
        total = answer.bandwidth_bytes_per_second
        assert all(sorted(one.ring) == list(range(len(answer.ranks))) for one in answer.channels)
        assert planner.nccl.ring_bandwidth * 0.999e9 <= total <= answer.bound_bytes_per_second * 1.001
        assert planner.alone or total >= 0.99 * (answer.limit_bytes_per_second or 0)
    assert planned > INPUTS / 2
