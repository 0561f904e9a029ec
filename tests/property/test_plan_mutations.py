"""Machines that are odd but whole: drawn at random, or with ports, links and lanes gone or slow.

Plans stay valid, never below NCCL's, and as good as proved; predictions are figures, within their interval.
"""

import math
import random
import re
from dataclasses import replace

import pytest

from fabricd.errors import InputError
from fabricd.graph.nccl_xml_read import read
from fabricd.model.collective import CollectivePlan
from fabricd.plan.collective.fabric import Fabric
from fabricd.plan.collective.machines import machines_of
from fabricd.plan.collective.plan import ring_plan
from fabricd.plan.collective.planner import Planner, Request
from tests.support.link_flow import demands_of, routable
from tests.support.nccl_golden import OWN
from tests.support.random_machine import random_machine

CHANGES = {
    "speed": ("0", "1000", "25000", "100000", "400000"),
    "link_width": ("0", "1", "4", "8", "16"),
    "count": ("1", "2", "6", "17", "18"),
    "gdr": ("0", "1"),
    "sm": ("70", "80", "90", "100"),
}
INPUTS = 24
#: Seeds of machines that NCCL's search, which every plan holds itself against, does not take long on.
DRAWN = (0, 1, 2, 3, 6, 8, 10, 11, 13, 14, 15, 16, 18, 19, 20, 22)


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
            planner = Planner(replace(Request.of(machines), routes=routes))
            answer = ring_plan(planner)
        except InputError:
            continue
        planned += 1
        check(planner, answer, least=0.99)
    assert planned > INPUTS / 2


def check(planner: Planner, answer: CollectivePlan, *, least: float) -> None:
    """Check what holds of every plan of rings; ``least`` is how much of the certified limit."""
    total = answer.bandwidth_bytes_per_second
    assert all(sorted(one.ring) == list(range(len(answer.ranks))) for one in answer.channels)
    assert planner.nccl.ring_bandwidth * 0.999e9 <= total <= answer.bound_bytes_per_second * 1.001
    assert planner.alone or total >= least * (answer.limit_bytes_per_second or 0)
    for predicted in (answer.predicted, *(one.predicted for one in answer.alternatives)):
        if predicted is None:
            continue
        busbw = predicted.busbw_bytes_per_second
        low, high = predicted.busbw_low_bytes_per_second, predicted.busbw_high_bytes_per_second
        assert 0 < predicted.time_seconds < math.inf
        assert (0 if low is None else low) <= busbw * 1.0001 <= (busbw if high is None else high) * 1.001


@pytest.mark.parametrize("seed", DRAWN)
def test_machines_drawn_at_random(seed: int) -> None:
    chance = random.Random(seed)
    topology, nodes = read(random_machine(seed)), chance.choice((1, 1, 2, 3))
    names = [f"node{at}" for at in range(nodes)] if nodes > 1 else ()
    asked = Request(
        topologies=[topology],
        order=[0] * nodes,
        names=names,
        collective=chance.choice(("all_reduce", "all_gather", "broadcast")),
        size=chance.choice((1, 1 << 20, 1 << 33)),
    )
    try:
        planner = Planner(asked)
        answer = ring_plan(planner)
    except InputError as error:
        if not re.search("no network port|has no way back", error.message):
            raise
        return
    check(planner, answer, least=0.995)
    if planner.alone or len(planner.nccl.members) > nodes:  # NCCL splits a machine whose parts meet by their ports
        return
    links = links_of(planner.parts[0].fabric)
    gpus = len(answer.ranks) // nodes
    equal = planner.equal_channels
    assert sum(one.bandwidth_bytes_per_second for one in equal) >= 0.91 * answer.bandwidth_bytes_per_second
    assert len(equal) <= 32
    for channels in (answer.channels, equal):
        assert routable(links, demands_of(channels, gpus, nodes=nodes))


def links_of(fabric: Fabric) -> dict[str, list[dict[str, object]]]:
    """Return a machine's links in the form of the golden files."""
    labels = {gpu.position: f"GPU:{gpu.rank}" for gpu in fabric.gpus}
    labels |= {net.position: f"NET:{net.dev}" for net in fabric.nets}
    ends = [[labels.get(end.position, str(end.position)) for end in (one.source, one.target)] for one in fabric.links]
    return {
        "links": [
            {"src": src, "dst": dst, "bw": link.bandwidth} for (src, dst), link in zip(ends, fabric.links, strict=True)
        ]
    }
