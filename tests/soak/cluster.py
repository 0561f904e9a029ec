"""The cluster under soak: daemons on hosts that are namespaces, all on one network, and what can be done to them."""

import os
import resource
import secrets
import signal
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import psutil

from demo.daemons import Daemon, program
from demo.hosts import Host, NetworkSpec, make_hosts
from tests.support.wall_clock import WallClock

NETWORK = NetworkSpec("net", "10.77.0.0/24")
PORT = 7470
#: For http over Unix sockets: reading this system's CAs for every client costs more than the questions.
_NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)

#: What the daemons may do. Small enough for a crowd to exceed, and so that a plan or a look is never far away.
CONFIG = """\
max_connections = 6000
max_long_polls = 5000
max_requests = 128
probe_interval_seconds = 20
peer_gone_seconds = 30
runtime_dir = "{state}"
{more}
"""


@dataclass
class Node:
    """A host with its daemon."""

    host: Host
    folder: Path
    clock: WallClock
    arguments: Sequence[str]
    daemon: Daemon | None = None
    held: list[socket.socket] = field(default_factory=list)  #: a crowd's connections from this host

    @property
    def name(self) -> str:
        return self.host.name

    @property
    def unix(self) -> str:
        return str(self.folder / f"{self.name}.sock")

    @property
    def config(self) -> Path:
        return self.folder / f"{self.name}.toml"

    @property
    def state(self) -> Path:
        return self.folder / f"{self.name}.d"

    @property
    def address(self) -> tuple[str, int]:
        """Where other hosts reach its daemon."""
        return self.host.link(NETWORK.name).address, PORT

    @property
    def process(self) -> psutil.Process:
        assert self.daemon is not None
        return psutil.Process(self.daemon.process.pid)

    @property
    def log(self) -> str:
        return (self.folder / f"{self.name}.log").read_text(errors="replace")

    def start(self) -> None:
        """Start the daemon, and let it get ready."""
        self.begin()
        assert self.daemon is not None
        self.daemon.wait_ready(60)

    def begin(self) -> None:
        (self.folder / f"{self.name}.ready").unlink(missing_ok=True)
        self.daemon = Daemon(
            self.name,
            self.folder,
            ["--config", str(self.config), *self.arguments],
            start=lambda command, output: self.host.popen(
                command, stdout=output, stderr=output, env=self.clock.environment
            ),
        )

    def client(self, seconds: float = 10.0) -> httpx.Client:
        """Return a client of its Unix socket."""
        transport = httpx.HTTPTransport(uds=self.unix, verify=_NO_TLS)
        return httpx.Client(transport=transport, base_url="http://fabricd", timeout=seconds, trust_env=False)

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def limit(self, which: int, soft: int | None) -> None:
        """Set a limit of the running daemon; None: as far as it may."""
        pid = self.process.pid
        hard = resource.prlimit(pid, which)[1]
        resource.prlimit(pid, which, (hard if soft is None else soft, hard))

    def connect(self, to: "Node", count: int, said: bytes) -> list[socket.socket]:
        """Open connections from this host to a daemon, say something on each, and keep them until ``hang_up``."""

        def open_all() -> list[socket.socket]:
            return [socket.create_connection(to.address, timeout=20) for _ in range(count)]

        self._drop_refused()
        found = self.host.namespaces.inside(open_all)
        self.held += found
        for one in found:
            one.settimeout(5)
            try:
                one.sendall(said)
            except OSError:
                continue  # refused already
        return found

    def _drop_refused(self) -> None:
        """Let go of the connections that the daemon has ended: a busy machine takes minutes to open thousands."""
        kept = []
        for one in self.held:
            one.setblocking(False)
            try:
                ended = one.recv(1, socket.MSG_PEEK) == b""
            except BlockingIOError:
                ended = False
            except OSError:
                ended = True
            if ended:
                one.close()
            else:
                kept.append(one)
        self.held = kept

    def hang_up(self) -> None:
        for one in self.held:
            one.close()
        self.held.clear()


@dataclass
class Cluster:
    """Three hosts: two that follow each other, and one that is a cluster from a file."""

    steady: Node  #: is never ended: its memory and descriptors are looked at
    other: Node  #: is killed and stopped, and its cable pulled
    replay: Node
    token: str

    @property
    def nodes(self) -> tuple[Node, ...]:
        return (self.steady, self.other, self.replay)

    def why_not_well(self) -> str:
        """Return what is not as it was at the beginning; "" when all is well."""
        for node in self.nodes:
            with node.client() as client:
                try:
                    ready = client.get("/readyz")
                    if (ready.status_code, ready.text) != (200, "ready\n"):
                        return f"{node.name} /readyz {ready.status_code} {ready.text.strip()}"
                    if node is self.replay:
                        continue
                    states = [one["state"] for one in client.get("/v1/cluster?summary=1").json()["nodes"]]
                    if states != ["ok", "ok"]:
                        return f"{node.name} sees {states}"
                    path = client.get("/v1/paths", params={"src": self.steady.name, "dst": self.other.name})
                    if path.status_code != 200:
                        return f"{node.name} /v1/paths {path.status_code} {path.text[:200]}"
                except (httpx.TransportError, KeyError, ValueError) as error:
                    return f"{node.name} {type(error).__name__}: {error}"
        return ""

    def wait_well(self, seconds: float) -> float:
        """Wait until all is well; return how long that took.

        Raises:
            TimeoutError: says what is not.
        """
        begun = time.monotonic()
        while why := self.why_not_well():
            if time.monotonic() - begun > seconds:
                raise TimeoutError(why)
            time.sleep(0.1)
        return time.monotonic() - begun


@contextmanager
def running(folder: Path) -> Iterator[Cluster]:
    """Run the cluster; everything is gone afterwards, but for what is in the folder.

    Args:
        folder: takes sockets, logs and configurations.
    """
    cluster_file = folder / "cluster.jsonl"
    simulate = [program("fabricctl"), "simulate", "--template", "h100", "--nodes", "3", "--leaf", "2"]
    subprocess.run([*simulate, "--out", str(cluster_file)], check=True, capture_output=True)
    token = secrets.token_hex(32)
    token_file = folder / "token"
    token_file.touch(mode=0o600)
    token_file.write_text(token)
    # A crowd needs as many at this end, too.
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with ExitStack() as stack:
        hosts = stack.enter_context(make_hosts(3, [NETWORK], prefix="s"))
        nodes = [_node(folder, host, hosts, token_file, cluster_file) for host in hosts]
        for node in nodes:
            stack.callback(_end, node)
            node.begin()
        for node in nodes:
            assert node.daemon is not None
            node.daemon.wait_ready(60)
        steady, other, replay = nodes
        cluster = Cluster(steady, other, replay, token)
        cluster.wait_well(60)
        yield cluster


def _node(folder: Path, host: Host, hosts: Sequence[Host], token_file: Path, cluster_file: Path) -> Node:
    clock = WallClock(folder / f"{host.name}.clock")
    options = ["--socket", str(folder / f"{host.name}.sock"), "--node-id", host.name, "--name", host.name]
    peers: list[str] = []
    if host is hosts[2]:
        options = ["--socket", str(folder / f"{host.name}.sock"), "--replay", str(cluster_file)]
    else:
        peers = [f"http://{one.link(NETWORK.name).address}:{PORT}" for one in hosts[:2] if one is not host]
    node = Node(host, folder, clock, options)
    more = [f'host = "{host.link(NETWORK.name).address}"', f"port = {PORT}", f'token_file = "{token_file}"']
    more += [f"peers = {peers}".replace("'", '"')]
    node.config.write_text(CONFIG.format(state=node.state, more="\n".join(more)))
    node.state.mkdir()
    host.run(["mount", "-t", "tmpfs", "-o", "size=1m,mode=0700", "tmpfs", str(node.state)])
    return node


def _end(node: Node) -> None:
    node.hang_up()
    if node.daemon is not None and node.daemon.process.poll() is None:
        os.kill(node.daemon.process.pid, signal.SIGCONT)
        node.daemon.__exit__(None, None, None)
