"""The file of tokens and certificates, and what they open."""

import hashlib
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fabricd.config_load import load
from fabricd.errors import AccessError, ConfigError, InputError
from fabricd.scopes import ALL_SCOPES, Grants, Scope, grant_of_token, names_in_certificate, read_grants

TOKEN = "a-token-that-is-long-enough"


def access(folder, text: str, mode: int = 0o600):
    path = folder / "access"
    path.write_text(text)
    path.chmod(mode)
    return path


def test_lines_are_names_scopes_and_what_is_shown(tmp_path):
    digest = hashlib.sha256(b"of-the-second").hexdigest()
    text = (
        f"# who may\n\n one read {TOKEN} # for people\ntwo\tplan,join sha256:{digest}\nthree admin certificate:a.b#c\n"
    )
    grants = Grants(lines=read_grants(access(tmp_path, text), "access_file"))
    one, two = grants.of_token(TOKEN.encode()), grants.of_token(b"of-the-second")
    assert (one.name, one.scopes) == ("one", {Scope.READ})
    assert (two.name, two.scopes) == ("two", {Scope.PLAN, Scope.JOIN})
    assert grants.of_token(digest.encode()) is None  # the hash is not the token
    assert grants.of_certificate(["x", "a.b#c"]).name == "three"
    assert grants.of_certificate([]) is None
    assert grants.of_token(b"") is None
    assert TOKEN not in repr(grants)
    assert TOKEN not in repr(grants.lines)


def test_every_wrong_line_is_told_and_no_token_is_shown(tmp_path):
    text = (
        f"a reed {TOKEN}-1\n"
        "b read\n"
        f"-c read {TOKEN}-2\n"
        "d read short\n"
        "e read sha256:12\n"
        f"f read,,plan {TOKEN}-3\n"
        f"g read {TOKEN}-é\n"
        "h read certificate:\n"
    )
    with pytest.raises(InputError) as caught:
        read_grants(access(tmp_path, text), "access_file")
    message = caught.value.message
    for number in range(1, 9):
        assert f"line {number}:" in message
    assert "'reed' is no scope; there are read, plan, join, measure, admin" in message
    assert TOKEN not in message


@pytest.mark.parametrize("mode", [0o644, 0o620, 0o604])
def test_a_file_that_others_can_read_is_refused(tmp_path, mode):
    with pytest.raises(AccessError, match="chmod 600"):
        read_grants(access(tmp_path, f"a read {TOKEN}", mode), "access_file")


def test_one_token_in_two_lines_is_a_fault(tmp_path):
    with pytest.raises(InputError, match="same token"):
        read_grants(access(tmp_path, f"a read {TOKEN}\nb admin {TOKEN}\n"), "access_file")


def test_too_many_lines_are_refused(tmp_path):
    with pytest.raises(InputError, match="1000 lines"):
        read_grants(access(tmp_path, "#\n" * 1001), "access_file")


def test_certificates_in_the_file_need_an_authority(tmp_path):
    path = access(tmp_path, "a read certificate:a.test\n")
    with pytest.raises(ConfigError, match="tls_client_ca_file does not say which CA"):
        load(environ={}, options={"access_file": str(path)}, default_file=tmp_path / "none")


def test_an_access_file_is_enough_beyond_loopback(tmp_path):
    path = access(tmp_path, f"a read {TOKEN}\n")
    loaded = load(environ={}, options={"access_file": str(path), "host": "0.0.0.0"}, default_file=tmp_path / "none")
    assert (loaded.credentials.token, len(loaded.credentials.grants.lines)) == (None, 1)


def test_the_one_token_of_a_cluster_opens_everything():
    assert Grants(lines=(grant_of_token(TOKEN),)).of_token(TOKEN.encode()).scopes == ALL_SCOPES


def test_the_common_name_counts_only_where_it_is_the_only_one():
    subject = ((("organizationName", "o"),), (("commonName", "cn"),))
    assert names_in_certificate({"subject": subject}) == ("cn",)
    both = {"subject": subject, "subjectAltName": (("DNS", "d"), ("IP Address", "1.2.3.4"), ("URI", "u"))}
    assert names_in_certificate(both) == ("d", "u")
    assert names_in_certificate({}) == ()


@given(st.text(string.printable, max_size=200))
def test_any_text_is_lines_or_a_fault(tmp_path_factory, text):
    path = access(tmp_path_factory.mktemp("any"), text)
    try:
        lines = read_grants(path, "access_file")
    except InputError:
        return
    assert all(line.scopes and bool(line.digest) != bool(line.certificate) for line in lines)
