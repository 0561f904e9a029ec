"""Examples in the pages of ``docs/``: blocks of ``console`` are run, and what they print is held against the page.

In a block, what follows ``$ `` is a command for bash, up to the next one; a line that ends in a backslash goes on. The
lines after it are what it prints on both streams: ``...`` stands for anything, and white space does not count, so that
pages may break the lines of JSON. The commands of one block run in one shell.
"""

import os
import re
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"
_BLOCK = re.compile(r"^```console\n(.*?)^```$", re.DOTALL | re.MULTILINE)
#: No program here prints it.
_END = "\x1e"
#: Of what was printed, in a failure.
_SHOWN = 1500


@dataclass(frozen=True, slots=True)
class Example:
    """One command of a page."""

    command: str
    printed: str  #: as the page has it


@dataclass(frozen=True, slots=True)
class Block:
    """Commands that run in one shell, one after another."""

    line: int  #: of the page
    examples: tuple[Example, ...]


def blocks(page: Path) -> list[Block]:
    """Return all blocks of a page, in their order."""
    text = page.read_text()
    return [
        Block(text.count("\n", 0, found.start()) + 1, tuple(_examples(found[1].splitlines())))
        for found in _BLOCK.finditer(text)
    ]


def _examples(lines: list[str]) -> Iterator[Example]:
    assert lines[0].startswith("$ "), f"a block does not begin with a command: {lines[0]!r}"
    at = 0
    while at < len(lines):
        command = [lines[at][2:]]
        while command[-1].endswith("\\"):
            at += 1
            command.append(lines[at])
        end = next((one for one in range(at + 1, len(lines)) if lines[one].startswith("$ ")), len(lines))
        yield Example("\n".join(command), "\n".join(lines[at + 1 : end]))
        at = end


def differences(block: Block, folder: Path, environ: Mapping[str, str], changes: Mapping[str, str]) -> list[str]:
    """Run a block, and return in words what it printed otherwise than the page says.

    Args:
        block: what to run.
        folder: where; the same for all blocks of a page.
        environ: added to this process's environment.
        changes: what stands in the page, and what is meant: addresses, above all.
    """
    script = "".join(f"{example.command}\nprintf '\\036'\n" for example in block.examples)
    for shown, meant in changes.items():
        script = script.replace(shown, meant)
    ran = subprocess.run(
        ["bash", "-c", script],
        cwd=folder,
        env={**os.environ, **environ},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60,
        check=False,
    )
    told = ran.stdout
    for shown, meant in changes.items():
        told = told.replace(meant, shown)
    parts = told.split(_END)
    assert len(parts) == len(block.examples) + 1, told
    return [
        f"line {block.line}: $ {example.command}\nprinted:\n{part[:_SHOWN]}\nthe page has:\n{example.printed}"
        for example, part in zip(block.examples, parts, strict=False)
        if not matches(example.printed, part)
    ]


def matches(pattern: str, text: str) -> bool:
    """Say whether a text is what a page shows of it."""
    first, *rest = ("".join(part.split()) for part in pattern.split("..."))
    text = "".join(text.split())
    if not rest:
        return text == first
    if not text.startswith(first):
        return False
    at = len(first)
    for part in rest[:-1]:
        found = text.find(part, at)
        if found < 0:
            return False
        at = found + len(part)
    return text.endswith(rest[-1]) and len(text) - len(rest[-1]) >= at
