"""TLS contexts made of files, and how long a certificate lasts."""

import ssl
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fabricd.config_load import load
from fabricd.credentials import expiry, read_credentials
from fabricd.errors import ConfigError, FabricError, InputError
from fabricd.scopes import names_in_certificate
from fabricd.tls import KeyPair, client_context, not_after, server_context
from tests.support.certificates import Authority


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("ca"))


def handshake(server: ssl.SSLContext, client: ssl.SSLContext, name: str) -> tuple[ssl.SSLObject, ssl.SSLObject]:
    """Return both ends of a connection in memory."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = (
        server.wrap_bio(to_server, to_client, server_side=True),
        client.wrap_bio(to_client, to_server, server_hostname=name),
    )
    for _ in range(4):
        for end in reversed(ends):
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
    return ends


def told(folder: Path, **options) -> list[str]:
    try:
        load(environ={}, options=options, default_file=folder / "none")
    except ConfigError as error:
        return list(error.faults)
    return []


def test_the_end_is_the_one_that_openssl_tells(authority):
    for days in (1, 90, 9000, 20_000):  # the last one ends after 2049, where the form of times changes
        pair = authority.issue("node", days=days)
        shown = subprocess.run(
            ["openssl", "x509", "-in", pair.certificate_file, "-noout", "-enddate"],
            check=True, capture_output=True, text=True,
        ).stdout  # fmt: skip
        end = datetime.strptime(shown.strip(), "notAfter=%b %d %H:%M:%S %Y GMT").replace(tzinfo=UTC)
        assert not_after(pair.certificate_file) == end


@given(st.data())
def test_what_is_no_certificate_is_told_whatever_it_is(authority, data):
    path = authority.folder / "bad.crt"
    der = bytearray(ssl.PEM_cert_to_DER_cert(authority.file.read_text()))
    for _ in range(data.draw(st.integers(1, 4))):
        der[data.draw(st.integers(0, len(der) - 1))] = data.draw(st.integers(0, 255))
    path.write_text(ssl.DER_cert_to_PEM_cert(bytes(der[: data.draw(st.integers(0, len(der)))])))
    try:
        end = not_after(path)
    except InputError:
        return
    assert end.tzinfo is UTC


def test_both_ends_verify_each_other_and_the_name(authority):
    node = authority.issue("node", "DNS:node.test", "URI:spiffe://x/node")
    client = authority.issue("client")
    server = server_context(node, authority.file)
    ours, theirs = handshake(server, client_context(authority.file, client), "node.test")
    assert theirs.version() == "TLSv1.3"
    assert names_in_certificate(ours.getpeercert()) == ("client",)
    assert names_in_certificate(theirs.getpeercert()) == ("node.test", "spiffe://x/node")
    ours, _ = handshake(server, client_context(authority.file), "node.test")
    assert not ours.getpeercert()  # nobody must show one
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        handshake(server, client_context(authority.file), "other.test")
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(server, client_context(None), "node.test")


def test_a_certificate_of_another_authority_opens_nothing(authority, tmp_path):
    server = server_context(authority.issue("node", "DNS:node.test"), authority.file)
    stranger = Authority(tmp_path).issue("client")
    with pytest.raises(ssl.SSLError):
        handshake(server, client_context(authority.file, stranger), "node.test")


def test_every_fault_of_the_files_is_told_and_no_key_is_shown(authority, tmp_path):
    pair, other = authority.issue("node"), authority.issue("other")
    mixed = {"tls_certificate_file": str(pair.certificate_file), "tls_key_file": str(other.key_file)}
    assert "not the key of" in told(tmp_path, **mixed)[0]
    assert "no certificate in it" in told(tmp_path, **{**mixed, "tls_certificate_file": str(pair.key_file)})[0]
    assert "cannot read" in told(tmp_path, **{**mixed, "tls_certificate_file": "/none.crt"})[0]
    assert "belong together" in told(tmp_path, tls_key_file=str(pair.key_file))[0]
    assert "needs TLS" in told(tmp_path, tls_client_ca_file=str(authority.file))[0]
    fine = {"tls_certificate_file": str(pair.certificate_file), "tls_key_file": str(pair.key_file)}
    assert told(tmp_path, **fine) == []
    assert "lets nobody in" in told(tmp_path, **fine, tls_client_ca_file=str(authority.file))[0]
    assert "not PEM certificates of CAs" in told(tmp_path, **fine, tls_ca_file=str(pair.key_file))[0]
    pair.key_file.chmod(0o644)
    assert "chmod 600" in told(tmp_path, **fine)[0]


def test_a_key_with_a_passphrase_asks_nobody(authority, tmp_path):
    pair = authority.issue("node")
    locked = tmp_path / "locked.key"
    command = ["openssl", "ec", "-in", pair.key_file, "-out", locked, "-aes256", "-passout", "pass:abcdef"]
    subprocess.run(command, check=True, capture_output=True)
    locked.chmod(0o600)
    with pytest.raises(FabricError, match="passphrase"):
        server_context(KeyPair(certificate_file=pair.certificate_file, key_file=locked), None)


def test_an_end_that_is_near_is_told(authority, tmp_path):
    pair = authority.issue("node", days=90)
    fine = {"tls_certificate_file": str(pair.certificate_file), "tls_key_file": str(pair.key_file)}
    loaded = load(environ={}, options=fine, default_file=tmp_path / "none")
    assert loaded.warnings == ()
    now = datetime.now(UTC)
    (soon,) = expiry(loaded.config, loaded.credentials, now + timedelta(days=80))
    assert "ends in 9 days" in soon
    (late,) = expiry(loaded.config, loaded.credentials, now + timedelta(days=91))
    assert "ended at" in late


def test_beyond_loopback_without_tls_is_warned_of(tmp_path):
    token = tmp_path / "token"
    token.write_text("a-secret-token-of-a-cluster")
    token.chmod(0o600)
    loaded = load(environ={}, options={"host": "0.0.0.0", "token_file": str(token)}, default_file=tmp_path / "none")
    assert "beyond loopback without TLS" in loaded.warnings[0]


def test_peers_see_no_difference_until_a_file_has_another_content(authority, tmp_path):
    pair = authority.issue("node")
    fine = {"tls_certificate_file": str(pair.certificate_file), "tls_key_file": str(pair.key_file)}
    config = load(environ={}, options=fine, default_file=tmp_path / "none").config
    first = read_credentials(config, [])
    pair.certificate_file.touch()
    again = read_credentials(config, [])
    assert first.peers == again.peers
    assert first.signature != again.signature
    authority.issue("node")
    assert read_credentials(config, []).peers != first.peers
