"""Wall clocks that jump by hours and days: with TLS, whose certificates go by them, and with leases, which do not."""

import os
import subprocess
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack

import pytest

from tests.support.certificates import Authority
from tests.support.daemon import RunningDaemon, daemon, eventually
from tests.support.etcd import etcd_server, free_port
from tests.support.wall_clock import WallClock

HOUR = 3600.0
DAY = 24 * HOUR


def by(clock: WallClock) -> Callable[..., subprocess.Popen[str]]:
    """Return what starts a daemon that goes by a clock."""

    def start(command, output):
        environment = {**os.environ, **clock.environment}
        return subprocess.Popen(command, stdout=output, stderr=output, text=True, env=environment)

    return start


def nodes(running: RunningDaemon) -> list[tuple[str, str]]:
    with running.unix() as client:
        assert client.get("/livez").text == "alive\n"
        told = client.get("/v1/cluster?summary=1").json()["nodes"]
    return [(one["state"], one["reason"]) for one in told]


def test_a_clock_that_is_wrong_ends_no_tls_connection_and_new_ones_say_why_until_it_is_right(tmp_path):
    authority = Authority(tmp_path)
    lines = [f'tls_certificate_file = "{tmp_path}/{{0}}.crt"', f'tls_key_file = "{tmp_path}/{{0}}.key"']
    for name in ("a", "b"):
        authority.issue(name, "IP:127.0.0.1")
        text = "\n".join([*lines, f'tls_ca_file = "{authority.file}"', ""])
        (tmp_path / f"{name}.toml").write_text(text.format(name))
    clock, port = WallClock(tmp_path / "clock"), free_port()

    def first() -> AbstractContextManager[RunningDaemon]:
        return daemon(tmp_path, "-c", str(tmp_path / "a.toml"), "--port", str(port), name="a")

    with ExitStack() as stack:
        other = stack.enter_context(first())
        told = ["-c", str(tmp_path / "b.toml"), "--peer", other.url]
        running = stack.enter_context(daemon(tmp_path, *told, name="b", start=by(clock)))
        well = [("ok", ""), ("ok", "")]
        eventually(lambda: nodes(running) == well, told=[running])
        for seconds in (-5 * HOUR, 400 * DAY, 0.0):
            clock.set(seconds)
            assert nodes(running) == well
        clock.set(-5 * HOUR)
        other.stop()
        stack.enter_context(first())
        eventually(lambda: "not yet valid" in nodes(running)[1][1], 15, told=[running])
        clock.set(0.0)
        eventually(lambda: nodes(running) == well, 15, told=[running])


@pytest.mark.etcd
def test_leases_and_who_follows_them_do_not_go_by_the_wall_clock(tmp_path):
    clock = WallClock(tmp_path / "clock")
    with etcd_server(tmp_path / "etcd") as server, ExitStack() as stack:
        config = tmp_path / "c.toml"
        config.write_text(
            'peer_gone_seconds = 5\n[cluster]\nbackend = "etcd"\n'
            f'[etcd]\nendpoints = ["{server.url}"]\nlease_seconds = 5\n'
        )
        right = stack.enter_context(daemon(tmp_path, "-c", str(config), name="a"))
        wrong = stack.enter_context(daemon(tmp_path, "-c", str(config), name="b", start=by(clock)))
        well = [("ok", ""), ("ok", "")]
        eventually(lambda: nodes(right) == nodes(wrong) == well, 10, told=[right, wrong])
        for seconds in (-5 * HOUR, 400 * DAY, -3.0):
            clock.set(seconds)
            until = time.monotonic() + 1.5
            while time.monotonic() < until:
                assert nodes(right) == nodes(wrong) == well
                time.sleep(0.2)
        assert " warning " not in wrong.log
