"""The manual pages: all that --help says, in words that roff takes for no request."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from fabric_client.cli.main import COMMANDS

PROGRAM = Path(__file__).parents[2] / "deploy/manpages.py"
REQUESTS = {".TH", ".SH", ".SS", ".PP", ".TP", ".B", ".nf", ".fi"}


@pytest.fixture(scope="module")
def pages(tmp_path_factory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("man")
    subprocess.run([sys.executable, str(PROGRAM), str(folder)], check=True, timeout=60)
    return {path.name: path.read_text() for path in folder.iterdir()}


def test_there_is_a_page_of_each_program_with_all_its_commands(pages):
    assert set(pages) == {"fabricctl.1", "fabricd.8"}
    told = re.findall(r"^\.SS fabricctl (\S+)", pages["fabricctl.1"], re.MULTILINE)
    assert [name.replace("\\", "") for name in told] == list(COMMANDS)
    assert ".SS fabricd serve" in pages["fabricd.8"]
    assert r"fabricctl run \-n 4 \-\- python train.py" in pages["fabricctl.1"]  # an example, on a line of its own
    assert "FABRICD_TOKEN_FILE" in pages["fabricctl.1"]


def test_no_text_is_a_request_and_every_hyphen_can_be_copied(pages):
    for text in pages.values():
        for line in text.splitlines()[1:]:
            assert not line.startswith("'")
            assert not line.startswith(".") or line.split()[0] in REQUESTS, line
            assert not re.search(r"(?<!\\)-", line), line
