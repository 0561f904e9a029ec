"""What ``--help`` says is true: its examples are command lines that the commands take."""

import re
import shlex

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from fabric_client.cli.main import COMMANDS, app
from fabric_client.cli.manual import PAGES


def test_every_command_has_its_page_with_two_examples():
    assert list(PAGES) == list(COMMANDS)
    assert all(len(page.examples) == 2 for page in PAGES.values())


@pytest.mark.parametrize(("command", "example"), [(name, one) for name, page in PAGES.items() for one in page.examples])
def test_examples_are_taken(command, example):
    words = re.sub(r'^eval "\$\((.*)\)"$', r"\1", example).split(" > ")[0].split(" | ")[-1]
    group = get_command(app)
    parts = shlex.split(re.sub(r"^(\w+=\S+ )+", "", words))
    assert parts[:2] == ["fabricctl", command]
    found = group.get_command(group.make_context("fabricctl", [], resilient_parsing=True), command)
    assert found.make_context(command, parts[2:]).params


@pytest.mark.parametrize("command", COMMANDS)
def test_help_tells_examples_sources_and_statuses(command):
    told = CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "100"})
    assert told.exit_code == 0
    for example in PAGES[command].examples:
        assert f"  {example}\n" in told.output
    assert "Exit status: 0 when done" in told.output
    assert "Reads " in told.output


def test_the_whole_tells_where_the_daemon_is_looked_for():
    told = CliRunner().invoke(app, ["--help"]).output
    assert "FABRICD_URL" in told
    assert "Exit status: 0" in told


def test_the_list_of_commands_has_each_on_a_line_of_80_columns():
    told = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "80"}).output
    for name, page in PAGES.items():
        assert f"  {name:15}  {page.summary}\n" in told
