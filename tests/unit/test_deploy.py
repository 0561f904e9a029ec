"""What ships to administrators: the sample configuration and the unit."""

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from fabricd.config import RULES, Config
from fabricd.config_load import load
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
        (tmp_path / unit.name).write_text(unit.read_text().replace("/opt/fabricd/current/bin/fabricd", str(program)))
    done = subprocess.run(
        ["systemd-analyze", "verify", str(tmp_path / name)], capture_output=True, text=True, timeout=60, check=False
    )
    complaints = [line for line in done.stderr.splitlines() if "fabricd" in line]
    assert complaints == []


def test_the_units_and_the_program_mean_the_same_folder():
    text = (DEPLOY / "fabricd-facts.service").read_text()
    assert f"RuntimeDirectory={FOLDER.name}\n" in text
    assert FOLDER.parent == Path("/run")


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze (package systemd)")
@pytest.mark.parametrize(("name", "tenths"), [("fabricd.service", 20), ("fabricd-facts.service", 25)])
def test_the_units_are_shut_in_as_far_as_they_promise(name, tenths):
    command = ["systemd-analyze", "security", "--offline=true", "--no-pager", f"--threshold={tenths}"]
    done = subprocess.run([*command, str(DEPLOY / name)], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout[-400:] + done.stderr


def test_bash_completes_commands_and_options():
    program = Path(sys.executable).with_name("fabricctl")
    script = f"""
    PATH={program.parent}:$PATH
    eval "$(_FABRICCTL_COMPLETE=source_bash fabricctl)"
    COMP_WORDS=(fabricctl pl) COMP_CWORD=1; _fabricctl_completion fabricctl; echo "${{COMPREPLY[@]}}"
    COMP_WORDS=(fabricctl paths --ex) COMP_CWORD=2; _fabricctl_completion fabricctl; echo "${{COMPREPLY[@]}}"
    """
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines() == ["plan plan-diff", "--explain"]
