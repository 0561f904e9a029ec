"""Lists of static peers: entries, a file, names; and what happens when one of them cannot be read."""

import asyncio
import socket

import pytest

from fabricd.cluster import peer_list
from fabricd.cluster.peer_list import PeerList
from fabricd.daemon.advertise import advertised_url
from tests.unit.test_config import read


def look(peers: PeerList) -> tuple[str, ...]:
    asyncio.run(peers.look())
    return peers.urls


def test_entries_file_and_names_make_one_list(tmp_path):
    file = tmp_path / "peers"
    file.write_text("# ours\nhttp://b:1  # the second\n\ndns://localhost:7\nhttp://a:1\n")
    peers = PeerList(entries=("http://a:1", "dns://127.0.0.1:7"), file=file)
    assert peers.changes
    urls = look(peers)
    assert urls[:3] == ("http://a:1", "http://127.0.0.1:7", "http://b:1")
    assert set(urls[3:]) <= {"http://[::1]:7"}
    assert peers.faults == ()
    assert not PeerList(entries=("http://a:1",)).changes


def test_a_source_that_fails_counts_with_what_it_held(tmp_path, monkeypatch):
    file = tmp_path / "peers"
    file.write_text("http://b:1\n")
    peers = PeerList(entries=("dns://localhost:7",), file=file)
    before = look(peers)
    assert "http://b:1" in before
    file.write_text("http://c:1\nnonsense\n")

    def down(*_args, **_how):
        raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")

    monkeypatch.setattr(peer_list.socket, "getaddrinfo", down)
    assert look(peers) == before
    assert len(peers.faults) == 2
    assert "line 2" in peers.faults[0]
    assert "dns://localhost:7: [Errno" in peers.faults[1]
    file.unlink()
    assert look(peers) == before
    assert "peers_file" in peers.faults[0]


@pytest.mark.parametrize("content", [b"\xff\xfe\n", b"http://a:1\0\n", b"ftp://x\n", b"http://" + b"x" * 300 + b"?\n"])
def test_a_file_of_nonsense_is_told_with_its_line(tmp_path, content):
    file = tmp_path / "peers"
    file.write_bytes(content)
    peers = PeerList(file=file)
    assert look(peers) == ()
    assert "line 1" in peers.faults[0]


def test_a_list_that_grew_too_long_stays_as_it_was(tmp_path):
    file = tmp_path / "peers"
    file.write_text("http://a:1\n")
    peers = PeerList(file=file)
    look(peers)
    file.write_text("".join(f"http://h{number}:1\n" for number in range(65)))
    assert look(peers) == ("http://a:1",)
    assert "65 peers are more than 64; the list stays as it was: choose 3 to 5 of them as map_nodes" in peers.faults[0]
    peers.equal = False
    assert len(look(peers)) == 65
    assert peers.faults == ()


@pytest.mark.parametrize(
    ("settings", "url"),
    [
        ({"advertise_url": "http://me:9"}, "http://me:9"),
        ({"host": "192.0.2.7"}, "http://192.0.2.7:7"),
        ({"host": "2001:db8::7"}, "http://[2001:db8::7]:7"),
        ({"host": "127.0.0.1", "etcd_endpoints": ["http://127.0.0.1:2379"]}, "http://127.0.0.1:7"),
        ({"host": "0.0.0.0", "etcd_endpoints": ["http://127.0.0.1:2379"]}, ""),
        ({"host": "0.0.0.0", "etcd_endpoints": ["http://no.such.host.invalid:2379"]}, ""),
    ],
)
def test_where_others_ask_this_daemon(settings, url, tmp_path):
    token = tmp_path / "token"
    token.write_text("secret")
    token.chmod(0o600)
    assert advertised_url(read(token_file=str(token), **settings).config, 7) == url
