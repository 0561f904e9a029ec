"""Every fuzz target on valid inputs, on what once broke it, and on some hundred changes of either."""

import random

import pytest

from tests.fuzz.json_values import changed
from tests.fuzz.target import NAMES, ROOT, findings, load

#: Of each target; ``make fuzz`` draws millions, guided by what they reach.
CHANGES = 40


@pytest.mark.parametrize("name", NAMES)
def test_valid_inputs_and_findings(name):
    target = load(name)
    for data in (*target.seeds(), *(path.read_bytes() for path in findings(name))):
        target.check(data)


@pytest.mark.parametrize("name", NAMES)
def test_changes(name):
    target, chance = load(name), random.Random(name)
    seeds = target.seeds()
    for _ in range(CHANGES):
        data = chance.choice(seeds)
        told = changed(data, chance) if target.json else None
        target.check(told or _damaged(data, target.words, chance))


def _damaged(data: bytes, words, chance: random.Random) -> bytes:
    for _ in range(chance.choice((1, 2, 5))):
        at, until = sorted(chance.randrange(len(data) + 1) for _ in range(2))
        piece = chance.choice((b"", bytes([chance.randrange(256)]), data[at:until], *(word.encode() for word in words)))
        data = data[:at] + piece + data[chance.choice((at, at + 1, until)) :]
    return data[: 1 << 16]


def test_every_target_is_listed():
    assert {path.stem for path in (ROOT / "tests/fuzz/targets").glob("*.py")} == set(NAMES)


def test_findings_belong_to_a_target():
    assert {path.name for path in (ROOT / "tests/fuzz/seeds").iterdir()} <= set(NAMES)
