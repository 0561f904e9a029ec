"""What ships to administrators: the sample configuration and the unit."""

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from fabricd.config import RULES, Config, load
from fabricd.probe.facts import FOLDER

DEPLOY = Path(__file__).parents[2] / "deploy"


def test_the_sample_configuration_is_right_and_holds_every_setting_with_its_default():
    file = DEPLOY / "fabricd.toml"
    assert load(file, environ={}).config == Config()
    text = file.read_text()
    told = set(re.findall(r"^#? ?([a-z_]+) = ", text, re.MULTILINE))
    assert told == set(RULES)
    fixed = {line.split()[0].lstrip("# ") or line.split()[1] for line in text.splitlines() if line.endswith("# *")}
    assert fixed == {key for key, rule in RULES.items() if not rule.reload}
    assert set(tomllib.loads(text)) <= set(RULES)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze (package systemd)")
@pytest.mark.parametrize("name", ["fabricd.service", "fabricd-facts.service", "fabricd-facts.timer"])
def test_the_units_are_such_that_systemd_understands(tmp_path, name):
    program = Path(sys.executable).with_name("fabricd")
    for unit in DEPLOY.glob("fabricd*.*"):
        (tmp_path / unit.name).write_text(unit.read_text().replace("/usr/bin/fabricd", str(program)))
    done = subprocess.run(
        ["systemd-analyze", "verify", str(tmp_path / name)], capture_output=True, text=True, timeout=60, check=False
    )
    complaints = [line for line in done.stderr.splitlines() if "fabricd" in line]
    assert complaints == []


def test_the_units_and_the_program_mean_the_same_folder():
    text = (DEPLOY / "fabricd-facts.service").read_text()
    assert f"RuntimeDirectory={FOLDER.name}\n" in text
    assert FOLDER.parent == Path("/run")
