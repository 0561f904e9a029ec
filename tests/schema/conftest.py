"""One daemon for all tests of the API description: it stands for a small cluster."""

from collections.abc import Iterator

import pytest
from typer.testing import CliRunner

from fabric_client.cli.main import app
from tests.support.daemon import RunningDaemon, daemon


@pytest.fixture(scope="session")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningDaemon]:
    folder = tmp_path_factory.mktemp("schema")
    options = ["--template", "h100", "--nodes", "3", "--leaf", "2", "--out", str(folder / "c.jsonl")]
    made = CliRunner().invoke(app, ["simulate", *options])
    assert made.exit_code == 0, made.output
    with daemon(folder, "--replay", str(folder / "c.jsonl"), "--name", "h100-0000") as one:
        yield one
