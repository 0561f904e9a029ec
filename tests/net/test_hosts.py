"""The namespaced hosts of ``demo.hosts``: isolated, joined, shaped where no host sees it, and gone afterwards."""

import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from demo.hosts import Host, NetworkSpec, make_hosts
from fabricd.errors import InputError, UnavailableError

FAST = NetworkSpec("fast", "10.1.0.0/24")
SLOW = NetworkSpec("slow", "10.2.0.0/24", interfaces=("tun_a", "zz9"), bits_per_second=100_000_000)
NAMESPACES = ("net", "ipc", "pid", "mnt", "uts")

needs_root = pytest.mark.root


def identities(host: Host) -> dict[str, str]:
    """Each namespace's identity, as a program on the host sees it."""
    command = ["readlink", *(f"/proc/self/ns/{kind}" for kind in NAMESPACES)]
    return dict(zip(NAMESPACES, host.run(command).stdout.split(), strict=True))


def seconds_to_send(hosts: list[Host], network: str, size: int) -> float:
    """Time from the connection to the last byte's arrival, hosts[0] to hosts[1]."""

    def listen() -> socket.socket:
        return socket.create_server((hosts[1].link(network).address, 0))

    with hosts[1].namespaces.inside(listen) as listener:
        address = listener.getsockname()
        with hosts[0].namespaces.inside(lambda: socket.create_connection(address, timeout=20)) as sender:
            receiver, _ = listener.accept()
            with receiver:
                receiver.settimeout(20)
                start = time.monotonic()
                sender.setblocking(False)
                sent = received = 0
                payload = bytes(1 << 16)
                while received < size:
                    with suppress(BlockingIOError):
                        sent += sender.send(payload[: size - sent]) if sent < size else 0
                    received += len(receiver.recv(1 << 18)) if received < sent else 0
                return time.monotonic() - start


def wait_until(condition, seconds: float = 5.0) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def alive_in(namespace: str) -> list[int]:
    """Processes in a network namespace, seen from outside; the dead have left it."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it may end meanwhile
            if str((entry / "ns/net").readlink()) == namespace:
                found.append(int(entry.name))
    return found


@needs_root
def test_hosts_share_no_namespace_memory_or_name():
    mine = {kind: str(Path(f"/proc/self/ns/{kind}").readlink()) for kind in NAMESPACES}
    with make_hosts(2, [FAST]) as hosts:
        first, second = map(identities, hosts)
        for kind in NAMESPACES:
            assert len({mine[kind], first[kind], second[kind]}) == 3, kind
        hosts[0].run(["sh", "-c", "echo here > /dev/shm/h5; echo here > /run/h5"])
        assert hosts[0].run(["cat", "/dev/shm/h5"]).stdout == "here\n"
        for path in ("/dev/shm/h5", "/run/h5"):
            assert hosts[1].run(["sh", "-c", f"test -e {path} && echo yes || echo no"]).stdout == "no\n"
            assert not Path(path).exists()
        assert [host.run(["uname", "-n"]).stdout.strip() for host in hosts] == ["h0", "h1"]
        if Path("/etc/hosts").exists():
            assert hosts[0].run(["getent", "hosts", "h1"]).stdout.split() == ["10.1.0.2", "h1"]


@needs_root
def test_programs_of_a_host_share_memory_and_processes():
    with make_hosts(1, []) as [host]:
        sleeper = host.popen(["sleep", "60"], env={"WHO": "sleeper"})
        assert wait_until(lambda: b"WHO=sleeper" in host.namespaces.inside(environments))
        assert identities(host) == identities(host)
        sleeper.send_signal(signal.SIGTERM)
        assert sleeper.wait(5) == -signal.SIGTERM


def environments() -> bytes:
    """Environments of all processes that /proc shows."""
    return b"".join(path.read_bytes() for path in Path("/proc").glob("[0-9]*/environ"))


@needs_root
def test_an_orphan_is_reaped():
    with make_hosts(1, []) as [host]:
        host.run(["sh", "-c", "sleep 0.05 & exit 0"])
        states = "cat /proc/[0-9]*/stat | grep -c '(sleep)' || true"
        assert wait_until(lambda: host.run(["sh", "-c", states]).stdout.strip() == "0")


@needs_root
def test_a_shaped_network_is_slow_and_looks_like_the_other():
    with make_hosts(2, [FAST, SLOW]) as hosts:
        assert [host.link("slow").interface for host in hosts] == ["tun_a", "zz9"]
        for host in hosts:
            speeds = [
                host.namespaces.inside(
                    lambda name=link.interface: Path(f"/sys/class/net/{name}/speed").read_text().strip()
                )
                for link in host.links.values()
            ]
            assert speeds == ["10000", "10000"]
            assert "tbf" not in host.run(["tc", "qdisc"]).stdout
        size = 4_000_000
        at_least = (size - 256_000) * 8 / 100e6 / 2  # the bucket is full at first; half, for the bursts of the clock
        assert seconds_to_send(hosts, "slow", size) > at_least
        assert seconds_to_send(hosts, "fast", size) < at_least


@needs_root
def test_counters_tell_where_the_bytes_went():
    size = 1_000_000
    with make_hosts(2, [FAST, SLOW]) as hosts:
        seconds_to_send(hosts, "fast", size)
        assert hosts[0].link("fast").counters().sent_bytes >= size
        assert hosts[1].link("fast").counters().received_bytes >= size
        assert hosts[0].link("slow").counters().sent_bytes < size / 10


@needs_root
def test_a_pulled_cable_takes_the_carrier_and_gives_it_back():
    def carrier(host: Host) -> str:
        return host.namespaces.inside(lambda: Path("/sys/class/net/fast/carrier").read_text().strip())

    with make_hosts(2, [FAST]) as hosts:
        assert wait_until(lambda: carrier(hosts[0]) == "1")
        hosts[0].link("fast").pull()
        assert wait_until(lambda: carrier(hosts[0]) == "0")
        assert carrier(hosts[1]) == "1"
        hosts[0].link("fast").plug()
        assert wait_until(lambda: carrier(hosts[0]) == "1")


@needs_root
def test_interfaces_may_have_names_that_are_words_of_the_ip_command():
    names = ("dev", "up")
    with make_hosts(2, [NetworkSpec("odd", "10.9.0.0/29", interfaces=names)]) as hosts:
        assert tuple(host.link("odd").interface for host in hosts) == names


@needs_root
def test_everything_ends_with_the_block_also_what_ignores_signals():
    interfaces = sorted(Path("/sys/class/net").iterdir())
    with make_hosts(2, [FAST]) as hosts:
        namespace = identities(hosts[0])["net"]
        stubborn = hosts[0].popen(["sh", "-c", "trap '' TERM INT HUP; sleep 60 & wait"])
        assert len(alive_in(namespace)) >= 2
    assert alive_in(namespace) == []
    assert stubborn.returncode == -signal.SIGKILL
    assert sorted(Path("/sys/class/net").iterdir()) == interfaces


@needs_root
def test_an_error_in_the_block_comes_out_and_everything_is_gone():
    seen = []

    def work() -> None:
        with make_hosts(1, [FAST]) as [host]:
            seen.append(identities(host)["net"])
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        work()
    assert alive_in(seen[0]) == []


MAKER = """
import sys, time
from demo.hosts import NetworkSpec, make_hosts
with make_hosts(2, [NetworkSpec("fast", "10.1.0.0/24")]) as hosts:
    hosts[1].popen(["sleep", "60"])
    print(hosts[1].run(["readlink", "/proc/self/ns/net"]).stdout.strip(), flush=True)
    time.sleep(60)
"""


@needs_root
@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_everything_ends_with_the_process_that_made_it(sent):
    with subprocess.Popen([sys.executable, "-c", MAKER], stdout=-1, stderr=-1, text=True) as maker:
        namespace = maker.stdout.readline().strip()
        assert len(alive_in(namespace)) >= 2
        maker.send_signal(sent)
        maker.wait(5)
        assert wait_until(lambda: not alive_in(namespace))


@needs_root
def test_a_program_that_fails_says_so_with_its_words():
    with make_hosts(1, []) as [host]:
        with pytest.raises(subprocess.CalledProcessError) as caught:
            host.run(["sh", "-c", "echo sorry >&2; exit 3"])
        assert caught.value.returncode == 3
        assert "sorry" in "".join(caught.value.__notes__)
        with pytest.raises(subprocess.TimeoutExpired):
            host.run(["sleep", "30"], timeout=0.1)
        with pytest.raises(FileNotFoundError):
            host.run(["no-such-program"])


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (NetworkSpec("a-name-too-long-for-it", "10.1.0.0/24"), "1 to 15 characters"),
        (NetworkSpec("a/b", "10.1.0.0/24"), "1 to 15 characters"),
        (NetworkSpec("n", "10.1.0.0/24", interfaces=("only",)), "1 interfaces for 2 hosts"),
        (NetworkSpec("n", "10.1.0.0/31"), "no room for 2 hosts"),
    ],
)
def test_specs_that_do_not_fit_are_refused_before_anything_is_made(spec, words):
    with pytest.raises(InputError, match=words), make_hosts(2, [spec]):
        pytest.fail("made hosts of it")


@needs_root
def test_what_the_kernel_refuses_is_said_and_leaves_nothing():
    before = children()
    twice = [NetworkSpec("x", "10.1.0.0/24", ("same",)), NetworkSpec("y", "10.2.0.0/24", ("same",))]
    with pytest.raises(UnavailableError, match="ip: "), make_hosts(1, twice):
        pytest.fail("two interfaces of one name in one host")
    assert children() == before


def children() -> set[str]:
    """This process's children. Source: proc(5), the fourth field of /proc/<pid>/stat."""
    found = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it may end meanwhile
            if int(stat.read_text().rsplit(")", 1)[1].split()[1]) == os.getpid():
                found.add(stat.parent.name)
    return found
