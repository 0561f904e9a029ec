"""Where the daemon is, and which secrets are shown to it."""

import socket

import pytest

from fabric_client.connection import Connection
from fabric_client.locate import find_daemon, find_group_secret, find_tls, find_token, parse_address
from fabricd import locations
from fabricd.errors import AccessError, InputError, UnreachableError


@pytest.fixture
def nowhere(tmp_path, monkeypatch):
    """An environment in which this host has no daemon."""
    monkeypatch.setattr(locations, "SYSTEM_DIRECTORY", tmp_path / "system")  # one may run here
    return {"HOME": str(tmp_path)}


@pytest.fixture
def somewhere(tmp_path):
    """An environment in which a Unix socket is there."""
    path = tmp_path / "d.sock"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        yield {"FABRICD_SOCKET": str(path)}


def found(environ, url=None, **options):
    address = find_daemon(url, environ=environ, **options)
    return str(address), address.source


def test_the_order(somewhere, nowhere):
    unix = f"unix:{somewhere['FABRICD_SOCKET']}"
    everything = somewhere | {"FABRICD_URL": "http://a:1", "MASTER_ADDR": "10.0.0.1"}
    assert found(everything, "http://b:2") == ("http://b:2", "an argument")
    assert found(everything) == ("http://a:1", "FABRICD_URL")
    assert found(somewhere | {"MASTER_ADDR": "10.0.0.1"}) == ("http://10.0.0.1:7470", "MASTER_ADDR")
    assert found(somewhere | {"MASTER_ADDR": "fd00::1"}) == ("http://[fd00::1]:7470", "MASTER_ADDR")
    assert found(somewhere) == (unix, "FABRICD_SOCKET")
    assert found(nowhere) == ("http://127.0.0.1:7470", "the default address")


def test_one_host_meets_at_its_own_daemon(somewhere):
    unix = (f"unix:{somewhere['FABRICD_SOCKET']}", "FABRICD_SOCKET")
    assert found(somewhere | {"MASTER_ADDR": "127.0.0.1"}) == unix
    assert found(somewhere | {"MASTER_ADDR": "localhost"}) == unix
    assert found(somewhere | {"MASTER_ADDR": "node1"}, all_local=True) == unix


@pytest.mark.parametrize(
    ("text", "url", "path", "local"),
    [
        ("http://node1:7470", "http://node1:7470", None, False),
        ("http://node1", "http://node1:7470", None, False),
        ("https://node1/fabric", "https://node1/fabric", None, False),
        ("http://[::1]:9/", "http://[::1]:9", None, True),
        ("http://127.0.0.1", "http://127.0.0.1:7470", None, True),
        ("unix:/run/f.sock", "http://fabricd", "/run/f.sock", True),
        ("unix:///run/f.sock", "http://fabricd", "/run/f.sock", True),
    ],
)
def test_addresses(text, url, path, local):
    address = parse_address(text)
    assert (address.url, address.socket, address.is_local) == (url, path, local)


@pytest.mark.parametrize(
    "text", ["", "node1:7470", "ftp://a", "http://", "http://a:x", "http://a:99999", "http://u:p@a", "unix:f.sock"]
)
def test_what_is_no_address_is_refused_with_its_source(text):
    with pytest.raises(InputError, match="from FABRICD_URL"):
        parse_address(text, source="FABRICD_URL")


def test_secrets_come_from_argument_file_or_variable(tmp_path):
    path = tmp_path / "secret"
    path.write_text("from-the-file-0123456789\n")
    path.chmod(0o600)
    environ = {"FABRICD_GROUP_SECRET_FILE": str(path), "FABRICD_GROUP_SECRET": "from-the-variable"}
    assert find_group_secret("given", environ=environ) == "given"
    assert find_group_secret(environ=environ) == "from-the-file-0123456789"
    assert find_group_secret(environ={"FABRICD_GROUP_SECRET": "from-the-variable"}) == "from-the-variable"
    assert find_group_secret(environ={}) is None
    assert find_token({"FABRICD_TOKEN_FILE": str(path)}) == "from-the-file-0123456789"
    assert find_token({}) is None


def test_a_secret_that_others_can_read_is_refused_and_never_shown(tmp_path):
    path = tmp_path / "secret"
    path.write_text("hush-hush-hush-hush\n")
    path.chmod(0o644)
    with pytest.raises(AccessError) as error:
        find_group_secret(environ={"FABRICD_GROUP_SECRET_FILE": str(path)})
    assert "chmod 600" in str(error.value)
    assert "hush" not in str(error.value)
    with pytest.raises(InputError) as faulty:
        find_group_secret("hush\nhush")
    assert "hush" not in str(faulty.value)
    with pytest.raises(AccessError):
        find_token({"FABRICD_TOKEN_FILE": str(tmp_path / "none")})


@pytest.mark.parametrize(
    ("text", "meant"), [("node1:7470", "http://node1:7470"), ("10.0.0.1", "http://10.0.0.1"), ("ftp://a", None)]
)
def test_an_address_that_lacks_only_its_scheme_is_told_whole(text, meant):
    with pytest.raises(InputError) as error:
        parse_address(text)
    assert (f"did you mean {meant}?" in str(error.value)) == (meant is not None)


def test_a_socket_that_is_named_and_not_there_is_asked_and_not_passed_over(tmp_path):
    connection = Connection(find_daemon(environ={"FABRICD_SOCKET": str(tmp_path / "none.sock")}))
    with pytest.raises(UnreachableError, match=r"none\.sock: No such file.*came from FABRICD_SOCKET"):
        connection.request("GET", "/livez")


def test_without_any_name_the_error_says_what_to_start_or_to_set(nowhere):
    address = find_daemon(environ=nowhere)
    assert "fabricd serve" in address.advice
    assert "FABRICD_URL=http://HOST:7470" in address.advice


def test_the_socket_of_this_host_is_found_by_itself(nowhere):
    path = locations.socket_path(nowhere)
    path.parent.mkdir(parents=True)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        assert found(nowhere) == (f"unix:{path}", "this host's Unix socket")


def test_a_file_of_tls_that_does_not_do_is_told_with_its_variable(tmp_path):
    with pytest.raises(
        AccessError, match=r"cannot read /none/ca\.crt: No such file.* \(set: FABRICD_CA_FILE=/none/ca\.crt\)"
    ):
        find_tls({"FABRICD_CA_FILE": "/none/ca.crt"})
    (tmp_path / "ca.crt").write_text("no certificate")
    with pytest.raises(InputError, match="FABRICD_CA_FILE="):
        find_tls({"FABRICD_CA_FILE": str(tmp_path / "ca.crt")})
    with pytest.raises(InputError, match="FABRICD_CERTIFICATE_FILE and FABRICD_KEY_FILE belong together"):
        find_tls({"FABRICD_KEY_FILE": "/none.key"})


def test_a_ca_makes_addresses_that_are_found_https(nowhere):
    ca = {"FABRICD_CA_FILE": "/ca.crt", **nowhere}
    assert find_daemon(environ={**ca, "MASTER_ADDR": "10.0.0.1"}).url == "https://10.0.0.1:7470"
    assert find_daemon(environ=ca).url == "https://127.0.0.1:7470"
    assert find_daemon("http://n:1", environ=ca).url == "http://n:1"
