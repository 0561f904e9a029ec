"""Daemons that find each other in a real etcd that speaks TLS and lets in only who shows a certificate."""

import pytest

from tests.support.certificates import Authority
from tests.support.daemon import RunningDaemon, daemon, eventually
from tests.support.etcd import EtcdServer, etcd_server

pytestmark = [pytest.mark.etcd, pytest.mark.timeout(120)]

BACKEND = 'peer_gone_seconds = 5\ncluster_backend = "etcd"\netcd_lease_seconds = 5\n'


@pytest.fixture
def authority(tmp_path):
    (tmp_path / "tls").mkdir()
    return Authority(tmp_path / "tls", "etcd-ca")


@pytest.fixture
def server(tmp_path, authority):
    with etcd_server(tmp_path / "etcd", authority) as running:
        yield running


def config(folder, server: EtcdServer, **settings: object) -> str:
    told = "".join(f'{key} = "{value}"\n' for key, value in settings.items() if value)
    path = folder / "c.toml"
    path.write_text(f'{BACKEND}etcd_endpoints = ["{server.url}"]\n{told}')
    return str(path)


def store(running: RunningDaemon) -> dict[str, str]:
    answer: dict[str, str] = running.get("/v1/cluster?summary=1").json()["store"]
    return answer


def test_daemons_meet_in_an_etcd_that_asks_for_certificates(tmp_path, authority, server):
    pair = authority.issue("fabricd")
    path = config(
        tmp_path,
        server,
        etcd_ca_file=authority.file,
        etcd_certificate_file=pair.certificate_file,
        etcd_key_file=pair.key_file,
    )
    with daemon(tmp_path, "-c", path, name="a") as first, daemon(tmp_path, "-c", path, name="b") as second:
        for one in (first, second):
            names = lambda one=one: {  # noqa: E731 - asked again and again
                node["name"] for node in one.get("/v1/cluster?summary=1").json()["nodes"] if node["state"] == "ok"
            }
            eventually(lambda names=names: names() == {"a", "b"}, 15, told=(first, second))
            assert store(one)["state"] == "ok"


def test_etcd_is_shown_what_peers_are_shown_unless_there_is_more_to_say(tmp_path, authority, server):
    pair = authority.issue("node", "IP:127.0.0.1")
    path = config(
        tmp_path,
        server,
        tls_ca_file=authority.file,
        tls_certificate_file=pair.certificate_file,
        tls_key_file=pair.key_file,
        tls_peer_name="of-the-peers-not-of-etcd",
    )
    with daemon(tmp_path, "-c", path, name="a") as running:
        eventually(lambda: len(server.keys()) == 1, 15, told=[running])


@pytest.mark.parametrize("trusts", [False, True], ids=["unknown CA", "no certificate"])
def test_who_does_not_trust_etcd_or_shows_it_nothing_is_told_why(tmp_path, authority, server, trusts):
    path = config(tmp_path, server, etcd_ca_file=authority.file if trusts else None)
    with daemon(tmp_path, "-c", path, name="a") as running:
        why = ("alert bad certificate", "wants a certificate") if trusts else ("certificate verify failed",)
        reason = lambda: store(running)["reason"].lower().replace("_", " ")  # noqa: E731 - asked again and again
        eventually(lambda: any(words in reason() for words in why), 20, told=[running])
        assert store(running)["state"] != "ok"
        assert running.get("/livez").status_code == 200
    assert server.keys() == []


def test_a_certificate_that_etcd_refuses_may_be_replaced_while_the_daemon_runs(tmp_path, authority, server):
    (tmp_path / "strange").mkdir()
    wrong = Authority(tmp_path / "strange").issue("fabricd")
    path = config(
        tmp_path,
        server,
        etcd_ca_file=authority.file,
        etcd_certificate_file=wrong.certificate_file,
        etcd_key_file=wrong.key_file,
    )
    with daemon(tmp_path, "-c", path, name="a") as running:
        eventually(lambda: store(running)["state"] != "ok", 20, told=[running])
        right = authority.issue("fabricd")
        right.key_file.replace(wrong.key_file)
        right.certificate_file.replace(wrong.certificate_file)
        eventually(lambda: store(running)["state"] == "ok" and len(server.keys()) == 1, 30, told=[running])
