"""Damaged topology files: whatever the damage, an answer or an error that says where. Never a crash or a hang."""

import random
import re

from fabricd.errors import InputError
from fabricd.graph.nccl_xml import parse, render
from fabricd.graph.nccl_xml_read import read
from fabricd.paths.nccl.domain import searched_paths
from fabricd.paths.nccl.view import NcclView
from tests.support.nccl_golden import OWN

VALUES = (
    "", "0", "-1", "1", "255", "999999", "0x7fffffff", "-2147483648", "1e9", "nan", "0000:11:00.0", "fffffff:ffff:ff",
    "0x030200", "0x060400", "0x068000", "0x068001", "0x020000", "arm64", "ppc64", "é", "<", "&amp;", "0" * 300,
)  # fmt: skip
TAGS = ("pci", "gpu", "nic", "net", "cpu", "nvlink", "c2c", "pcilink", "system", "x")
INPUTS = 1200


def damaged(text: str, chance: random.Random) -> str:
    for _ in range(chance.choice((1, 1, 2, 3, 6, 20))):
        kind = chance.randrange(6)
        if kind == 0 and (found := list(re.finditer(r'="([^"]*)"', text))):
            place = chance.choice(found)
            value = chance.choice((chance.choice(VALUES), chance.choice(found)[1]))
            text = text[: place.start(1)] + value + text[place.end(1) :]
        elif kind == 1 and (found := list(re.finditer(r' \w+="[^"]*"', text))):
            place = chance.choice(found)
            text = text[: place.start()] + text[place.end() :]
        elif kind == 2:
            lines = text.split("\n")
            lines.insert(chance.randrange(len(lines)), lines.pop(chance.randrange(len(lines))))
            text = "\n".join(lines)
        elif kind == 3 and (found := list(re.finditer(r"<pci\b[^>]*[^/]>.*?</pci>", text, re.DOTALL))):
            place = chance.choice(found)
            text = text[: place.start()] + chance.choice(found)[0] + text[place.start() :]
        elif kind == 4 and (found := list(re.finditer(r"(?<=<)\w+", text))):
            place = chance.choice(found)
            text = text[: place.start()] + chance.choice(TAGS) + text[place.end() :]
        elif kind == 5 and chance.random() < 0.3:
            text = text[: chance.randrange(len(text) + 1)]
    return text


def test_damage_ends_in_an_answer_or_a_plain_error() -> None:
    chance = random.Random(20)
    texts = [path.read_text() for path in sorted(OWN.glob("*.xml"))]
    answered, messages = 0, []
    for _ in range(INPUTS):
        text = damaged(chance.choice(texts), chance)
        try:
            root = parse(text).root
            assert parse(render(root)).root == root
            topology = read(text)
            view = NcclView(topology)
            view.paths()
            if view.table.system.gpus:
                searched_paths(topology)
        except InputError as error:
            messages.append(error.message)
        else:
            answered += 1
    assert answered > INPUTS / 10
    assert len(messages) > INPUTS / 10
    assert [message for message in messages if not re.search(r"line \d+|the link |no GPU", message)] == []
