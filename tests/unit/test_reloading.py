"""Configuration and credentials whose files do not answer, as those of a file server that is gone."""

import asyncio
import os
import threading
from pathlib import Path

import pytest

from fabricd.api.services import Services
from fabricd.cluster.nodes import NodeMap
from fabricd.config import Config
from fabricd.config_load import Loaded, load
from fabricd.credentials import Credentials
from fabricd.daemon import reloading
from fabricd.daemon.notify import Notifier
from fabricd.daemon.reloading import Reloader
from fabricd.errors import ConfigError


@pytest.fixture
def token(tmp_path: Path) -> Path:
    """Return a token's file."""
    return _written(tmp_path / "token", "a" * 40)


def _written(path: Path, token: str) -> Path:
    path.write_text(token)
    path.chmod(0o600)
    return path


def reloader(loaded: Loaded, token: Path) -> tuple[Reloader, Services]:
    services = Services(config=loaded.config, nodes=NodeMap(), credentials=loaded.credentials)

    def read() -> Loaded:
        return load(environ={}, options={"token_file": str(token)}, default_file=token.with_name("none"))

    return Reloader(services, read, lambda: None, Notifier()), services


def test_a_file_that_does_not_answer_holds_up_no_later_reload(token, monkeypatch):
    monkeypatch.setattr(reloading, "READ_SECONDS", 0.05)

    async def scenario() -> str | None:
        one, services = reloader(Loaded(config=Config()), token)
        token.unlink()
        os.mkfifo(token, 0o600)  # opened, it waits for who writes
        with pytest.raises(ConfigError, match="does not answer within"):
            await one.reload()
        hanging = token.rename(token.with_name("hanging"))
        _written(token, "b" * 40)
        await one.reload()
        os.close(os.open(hanging, os.O_WRONLY))  # lets the thread go
        return services.credentials.token

    assert asyncio.run(scenario()) == "b" * 40


def test_who_looks_for_changes_tells_of_files_that_do_not_answer_and_goes_on(token, monkeypatch):
    monkeypatch.setattr(reloading, "READ_SECONDS", 0.05)
    monkeypatch.setattr(reloading, "LOOK_SECONDS", 0.02)
    answers = threading.Event()

    def signature(_config: Config) -> tuple[object, ...]:
        answers.wait(10)
        return ("as it was",)

    async def scenario() -> None:
        one, services = reloader(Loaded(config=Config(), credentials=Credentials(signature=("as it was",))), token)
        told: asyncio.Queue[tuple[str, ...]] = asyncio.Queue()
        monkeypatch.setattr(reloading, "files_signature", signature)
        monkeypatch.setattr(services.nodes, "set_faults", lambda source, faults: told.put_nowait(faults))
        looking = asyncio.create_task(one.follow_files())
        assert await told.get() == ()  # no certificate ends soon
        assert "does not answer within" in (await told.get())[0]
        answers.set()
        async with asyncio.timeout(10):
            while await told.get():
                pass
        assert not looking.done()
        looking.cancel()

    asyncio.run(scenario())


def test_files_that_changed_and_did_not_answer_are_read_once_they_do(token, monkeypatch):
    monkeypatch.setattr(reloading, "READ_SECONDS", 0.05)
    monkeypatch.setattr(reloading, "LOOK_SECONDS", 0.02)
    answers, read = threading.Event(), reloading.read_credentials

    def reads_late(config: Config, faults: list[str]) -> Credentials:
        answers.wait(10)
        return read(config, faults)

    async def scenario() -> str | None:
        config = Config(token_file=token)
        one, services = reloader(Loaded(config=config, credentials=read(config, [])), token)
        told: asyncio.Queue[tuple[str, ...]] = asyncio.Queue()
        monkeypatch.setattr(reloading, "read_credentials", reads_late)
        monkeypatch.setattr(services.nodes, "set_faults", lambda source, faults: told.put_nowait((source, *faults)))
        _written(token, "c" * 41)
        looking = asyncio.create_task(one.follow_files())
        async with asyncio.timeout(10):
            while "does not answer" not in (await told.get())[-1]:
                pass
            answers.set()
            while await told.get() != ("files",):
                pass
        looking.cancel()
        return services.credentials.token

    assert asyncio.run(scenario()) == "c" * 41
