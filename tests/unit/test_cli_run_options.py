"""``fabricctl run`` read plainly, without Typer, and by Typer: the same options, and the same of each command line."""

import subprocess
import sys

import pytest
import typer.main
from hypothesis import given
from hypothesis import strategies as st

from fabric_client.cli import run_command
from fabric_client.cli.run_options import PLAIN, RunOptions, read_plainly
from fabricd.errors import InputError

COMMAND = ["python", "train.py", "-n", "7"]


def command_of_typer():
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    run_command.register(app)
    return typer.main.get_command(app)


def by_typer(words, monkeypatch):
    """Return what Typer makes of a command line that is right."""
    told = []
    monkeypatch.setattr(run_command, "run_here", lambda command, options: told.append((command, options)) or 0)
    command_of_typer().main(list(words), standalone_mode=False)
    return told[0]


def test_each_option_is_declared_alike():
    options = command_of_typer().params
    declared = {name: (one.name, one.is_flag) for one in options for name in one.opts if one.name != "help"}
    assert declared == {name: (one.field, one.kind is bool) for name, one in PLAIN.items()}


@pytest.mark.parametrize(
    ("name", "value"),
    [(name, one.least) for name, one in PLAIN.items() if one.kind in (int, float)]
    + [(name, one.most) for name, one in PLAIN.items() if one.most is not None],
)
def test_both_know_the_same_bounds(name, value, monkeypatch):
    rest = ["--", *COMMAND] if PLAIN[name].field == "ranks" else ["-n", "1", "--", *COMMAND]
    beyond = value - 1 if value == PLAIN[name].least else value + 1
    assert read_plainly([name, str(value), *rest]) == by_typer([name, str(value), *rest], monkeypatch)
    assert read_plainly([name, str(beyond), *rest]) is None
    with pytest.raises(Exception, match=r"range|greater|less"):
        by_typer([name, str(beyond), *rest], monkeypatch)


OPTIONS = {
    "-n": st.integers(1, 4096),
    "--group": st.sampled_from(["a", "run-7", "x=y"]),
    "--nnodes": st.integers(1, 9),
    "--node-rank": st.integers(0, 9),
    "--meet-timeout": st.sampled_from(["0.1", "7", "12.5"]),
    "--timeout": st.sampled_from(["0.1", "600"]),
    "--grace": st.sampled_from(["0", "1.25"]),
}


@given(data=st.data())
def test_both_make_the_same_of_a_command_line(data):
    names = data.draw(st.lists(st.sampled_from(list(OPTIONS)), unique=True))
    words = ["--prefix"] if data.draw(st.booleans()) else []
    for name in {"-n": 0, **dict.fromkeys(names)}:
        value = str(data.draw(OPTIONS[name]))
        joined = name.startswith("--") and data.draw(st.booleans())
        words += [f"{name}={value}"] if joined else [name, value]
    words += ["--", *COMMAND]
    with pytest.MonkeyPatch.context() as monkeypatch:
        assert read_plainly(words) == by_typer(words, monkeypatch)


def test_defaults():
    assert read_plainly(["-n", "2", "--", *COMMAND]) == (COMMAND, RunOptions(ranks=2))


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["--help"],
        ["-n", "2"],
        ["-n", "2", "python"],
        ["-n", "2", "--"],
        ["--", "python"],
        ["-n", "--", "python"],
        ["-n2", "--", "python"],
        ["-n=2", "--", "python"],
        ["-n", "0", "--", "python"],
        ["-n", "4097", "--", "python"],
        ["-n", "2.5", "--", "python"],
        ["-n", "-2", "--", "python"],
        ["-n", "two", "--", "python"],
        ["-n", "2", "--prefix=yes", "--", "python"],
        ["-n", "2", "--timeout", "nan", "--", "python"],
        ["-n", "2", "--timeout", "0.05", "--", "python"],
        ["-n", "2", "--group", "--", "python"],
        ["-n", "2", "--group", "-x", "--", "python"],
        ["-n", "2", "--grase", "1", "--", "python"],
        ["-n", "2", "python", "--", "x"],
    ],
)
def test_what_is_not_plain_is_left_to_typer(words):
    assert read_plainly(words) is None


def test_a_plain_run_loads_nothing_that_reads_options_of_all_kinds():
    code = """
import sys
from fabric_client.cli import main
sys.argv = ["fabricctl", "run", "-n", "1", "--group", "no group", "--", "true"]
try:
    main()
except SystemExit as end:
    sys.stdout.write(f"{end.code} {sorted({'typer', 'pydantic', 'rich', 'numpy'} & set(sys.modules))}")
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert ended.stdout == "2 []"
    assert ended.stderr.startswith("fabricctl: a group cannot be called 'no group' (from --group)")


@pytest.mark.parametrize(("words", "meant"), [(["--rank", "2"], "'--ranks'"), (["-n", "2", "--verbose"], None)])
def test_an_option_that_there_is_not_is_no_command(words, meant, monkeypatch):
    with pytest.raises(InputError, match=r"run has no option.*fabricctl run -n 4 -- python train\.py") as error:
        by_typer([*words, "-n", "2", "--", "true"], monkeypatch)
    assert ("did you mean" in str(error.value)) == (meant is not None)
    assert (meant or "") in str(error.value)
