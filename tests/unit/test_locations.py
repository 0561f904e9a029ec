"""Where daemon and client meet, and what a secret's file must be."""

import os
import socket
from pathlib import Path

import pytest

from fabricd import locations
from fabricd.errors import AccessError, InputError
from tests.support.rights import as_nobody, open_folder


@pytest.mark.parametrize(
    ("environ", "uid", "path"),
    [
        ({}, 0, "/run/fabricd/fabricd.sock"),
        ({"XDG_RUNTIME_DIR": "/run/user/0"}, 0, "/run/fabricd/fabricd.sock"),
        ({"XDG_RUNTIME_DIR": "/run/user/5", "HOME": "/home/u"}, 5, "/run/user/5/fabricd/fabricd.sock"),
        ({"HOME": "/home/u"}, 5, "/home/u/.local/state/fabricd/fabricd.sock"),
        ({"RUNTIME_DIRECTORY": "/run/one:/run/two"}, 5, "/run/one/fabricd.sock"),
        ({"FABRICD_SOCKET": "/x/y", "RUNTIME_DIRECTORY": "/run/one"}, 0, "/x/y"),
    ],
)
def test_where_a_daemon_listens(monkeypatch, environ, uid, path):
    monkeypatch.setattr(os, "geteuid", lambda: uid)
    assert locations.socket_path(environ) == Path(path)


def test_a_user_without_a_home_and_without_an_entry_in_passwd(monkeypatch, tmp_path):
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(os, "geteuid", lambda: 54321)
    monkeypatch.setattr(Path, "home", no_home)
    monkeypatch.setattr(locations, "SYSTEM_DIRECTORY", tmp_path)  # a daemon may run here
    assert locations.socket_path({}) == Path("/run/user/54321/fabricd/fabricd.sock")
    assert locations.find_socket({}) is None


def test_a_folder_that_this_user_may_not_enter_has_no_daemon(monkeypatch):
    """Like the home that su and sudo leave in the environment."""
    with open_folder() as folder:
        monkeypatch.setattr(locations, "SYSTEM_DIRECTORY", folder)  # a daemon may run here
        (folder / "home").mkdir(mode=0o700)
        environ = {"RUNTIME_DIRECTORY": str(folder / "home/user")}
        assert as_nobody(lambda: locations.find_socket(environ)) is None


def test_a_client_finds_its_users_daemon_before_the_systems(monkeypatch, tmp_path):
    monkeypatch.setattr(os, "geteuid", lambda: 5)
    monkeypatch.setattr(locations, "SYSTEM_DIRECTORY", tmp_path / "system")
    environ = {"XDG_RUNTIME_DIR": str(tmp_path / "own")}
    assert locations.find_socket(environ) is None
    (tmp_path / "system").mkdir()
    (tmp_path / "own/fabricd").mkdir(parents=True)
    with socket.socket(socket.AF_UNIX) as system, socket.socket(socket.AF_UNIX) as own:
        system.bind(str(tmp_path / "system/fabricd.sock"))
        assert locations.find_socket(environ) == tmp_path / "system/fabricd.sock"
        own.bind(str(tmp_path / "own/fabricd/fabricd.sock"))
        assert locations.find_socket(environ) == tmp_path / "own/fabricd/fabricd.sock"
        # Named, it is that one or an error, which who asks it meets.
        assert locations.find_socket({**environ, "FABRICD_SOCKET": "/nonexistent"}) == Path("/nonexistent")


def secret(folder: Path, content: str, mode: int = 0o600) -> Path:
    path = folder / "secret"
    path.write_text(content)
    path.chmod(mode)
    return path


@pytest.mark.parametrize("mode", [0o600, 0o400, 0o440, 0o640])
def test_a_secret_that_only_owner_and_group_read(tmp_path, mode):
    assert locations.read_secret_file(secret(tmp_path, " abc\n", mode), "X") == "abc"


@pytest.mark.parametrize("mode", [0o644, 0o604, 0o620, 0o602, 0o601])
def test_a_secret_that_others_reach(tmp_path, mode):
    with pytest.raises(AccessError, match="open to others"):
        locations.read_secret_file(secret(tmp_path, "abc", mode), "X")


def test_a_secret_that_is_not_there(tmp_path):
    with pytest.raises(AccessError, match="file of X"):
        locations.read_secret_file(tmp_path / "none", "X")


@pytest.mark.parametrize("content", ["", "\n", "a b", "\u00e9", "\0", "x" * 4097])
def test_what_no_header_can_carry(tmp_path, content):
    with pytest.raises(InputError) as caught:
        locations.read_secret_file(secret(tmp_path, content), "X")
    assert not content.strip() or content.strip() not in str(caught.value)
