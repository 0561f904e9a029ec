"""A real etcd on loopback, which tests start, kill and start again."""

import base64
import os
import re
import shutil
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx

from tests.support.certificates import Authority

PREFIX = "/fabricd/"
#: How long tests go on killing; read before the session removes the variables that daemons would read.
KILL_SECONDS = float(os.environ.get("FABRICD_KILL_SECONDS", "7"))


def etcd_program() -> str | None:
    """Return the path of etcd: this machine's, or the one beside this Python."""
    return shutil.which("etcd") or shutil.which("etcd", path=Path(sys.executable).parent)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


class EtcdServer:
    """One etcd with its own data directory; it keeps its ports over restarts.

    Args:
        folder: takes data and log.
        address: where it listens.
        start: starts it, here or on a host.
        name: in a cluster of several.
        authority: vouches for etcd and for its clients, which must show a certificate; None: without TLS.
    """

    def __init__(
        self,
        folder: Path,
        *,
        address: str = "127.0.0.1",
        start: Callable[..., subprocess.Popen] = subprocess.Popen,
        name: str = "default",
        authority: Authority | None = None,
    ) -> None:
        self._folder = folder
        self._start = start
        self._name = name
        self._lives = 0
        self.process: subprocess.Popen | None = None
        self.url, self._peer_url = (f"http://{address}:{free_port()}" for _ in range(2))
        self.initial_cluster = f"{name}={self._peer_url}"
        self._secure: list[str] = []
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        if authority is not None:
            self.url = self.url.replace("http:", "https:")
            pair = authority.issue(f"etcd-{name}", f"IP:{address}")
            self._secure += ["--client-cert-auth", "--trusted-ca-file", str(authority.file)]
            self._secure += ["--cert-file", str(pair.certificate_file), "--key-file", str(pair.key_file)]
            tls = authority.client(pair)
        self._options = {"trust_env": False, "timeout": 10, "verify": tls}

    def start(self) -> None:
        self.launch()
        self.wait_ready()

    def launch(self) -> None:
        program = etcd_program()
        assert program is not None
        with (self._folder / "etcd.log").open("ab") as log:
            self.process = self._start(
                [
                    program,
                    *("--name", self._name, "--data-dir", str(self._folder / f"{self._name}{self._lives}")),
                    *("--listen-client-urls", self.url, "--advertise-client-urls", self.url),
                    *("--listen-peer-urls", self._peer_url, "--initial-advertise-peer-urls", self._peer_url),
                    *("--initial-cluster", self.initial_cluster),
                    *("--heartbeat-interval", "50", "--election-timeout", "500"),
                    *self._secure,
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def wait_ready(self, seconds: float = 15.0) -> None:
        deadline = time.monotonic() + seconds
        while True:
            with suppress(httpx.TransportError):
                if httpx.get(self.url + "/health", **self._options).json().get("health") == "true":
                    return
            assert self.process is not None
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError("etcd does not get ready:\n" + (self._folder / "etcd.log").read_text()[-3000:])
            time.sleep(0.05)

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def lose_data(self) -> None:
        """Start it next time with nothing."""
        self._lives += 1

    def call(self, path: str, **body: object) -> dict:
        answer = httpx.post(f"{self.url}/v3/{path}", json=body, **self._options)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def keys(self) -> list[str]:
        """Keys of the daemons' records."""
        ends = {"key": PREFIX + "nodes/", "range_end": PREFIX + "nodes0"}
        found = self.call("kv/range", keys_only=True, **{name: b64(value) for name, value in ends.items()})
        return [base64.b64decode(kv["key"]).decode() for kv in found.get("kvs", [])]

    def leads(self) -> bool:
        status = self.call("maintenance/status")
        return status.get("leader") == status["header"]["member_id"]

    def leases(self) -> int:
        return len(self.call("lease/leases").get("leases", []))

    def watchers(self) -> int:
        text = httpx.get(self.url + "/metrics", **self._options).text
        found = re.search(r"^etcd_debugging_mvcc_watcher_total (\d+)", text, re.MULTILINE)
        assert found
        return int(found[1])

    def compact(self) -> None:
        """Forget all history."""
        revision = self.call("kv/range", key=b64("x"))["header"]["revision"]
        self.call("kv/compaction", revision=revision, physical=True)


def b64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


@contextmanager
def etcd_server(folder: Path, authority: Authority | None = None) -> Iterator[EtcdServer]:
    """Run one; it is killed at the end, for it has nothing to lose."""
    folder.mkdir(parents=True, exist_ok=True)
    server = EtcdServer(folder, authority=authority)
    server.start()
    try:
        yield server
    finally:
        server.kill()


@contextmanager
def etcd_cluster(folder: Path, members: int = 3) -> Iterator[list[EtcdServer]]:
    """Run several that are one cluster."""
    folder.mkdir(parents=True, exist_ok=True)
    servers = [EtcdServer(folder, name=f"m{number}") for number in range(members)]
    whole = ",".join(server.initial_cluster for server in servers)
    try:
        for server in servers:
            server.initial_cluster = whole
            server.launch()
        for server in servers:
            server.wait_ready()
        yield servers
    finally:
        for server in servers:
            server.kill()
