"""Every command line of ours in the pages: the command is there, and so are its options."""

import re
import shlex
from pathlib import Path

import pytest
from typer.main import get_command

from fabric_client.cli.main import app as fabricctl
from fabricd.cli.main import app as fabricd

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
_LINE = re.compile(r"(?:`|^ {4,}|^\$ |\$\()(?:sudo )?((fabricctl|fabricd) ([a-z][a-z-]+)[^`\n)]*)", re.MULTILINE)
_REST = re.compile(r"\s#\s|\s\||\s>|\s&|;")
_OPTION = re.compile(r"--[a-z][a-z-]+|-[a-z]\b")


def _known(program: str, name: str) -> set[str] | None:
    """Return the options of a command, None when there is none of that name."""
    group = get_command({"fabricctl": fabricctl, "fabricd": fabricd}[program])
    command = group.get_command(group.make_context(program, [], resilient_parsing=True), name)
    return None if command is None else {one for option in command.params for one in option.opts} | {"--help"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_and_options_are_there(page):
    for found in _LINE.finditer(page.read_text().replace("\\\n", " ")):
        line, program, name = found.groups()
        known = _known(program, name)
        assert known is not None, line
        words = shlex.split(_REST.split(line)[0])
        own = words[: words.index("--")] if "--" in words else words
        used = {option[0] for word in own if (option := _OPTION.match(word))}
        assert used <= known, line


def test_there_are_command_lines():
    assert sum(len(_LINE.findall(page.read_text())) for page in PAGES) > 80
