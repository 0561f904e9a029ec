"""Several real daemons that know each other."""

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.support.daemon import RunningDaemon, daemon
from tests.support.etcd import free_port


@contextmanager
def cluster(tmp_path: Path, *, maps: int = 2, agents: int = 2) -> Iterator[list[RunningDaemon]]:
    """Map nodes m0, m1 that follow everybody, and agents a0, a1 that know the map nodes."""
    ports = [free_port() for _ in range(maps + agents)]
    urls = [f"http://127.0.0.1:{port}" for port in ports]
    config = tmp_path / "c.toml"
    config.write_text(f"peers = {json.dumps(urls)}\nmap_nodes = {json.dumps(urls[:maps])}\npeer_gone_seconds = 5\n")
    agent_config = tmp_path / "a.toml"
    agent_config.write_text(config.read_text() + 'role = "agent"\n')
    with ExitStack() as stack:
        running = []
        for number, port in enumerate(ports):
            agent = number >= maps
            name = f"a{number - maps}" if agent else f"m{number}"
            arguments = ["-c", str(agent_config if agent else config), "--port", str(port)]
            running.append(stack.enter_context(daemon(tmp_path, *arguments, name=name)))
        yield running


def peer_arguments(tmp_path: Path, count: int = 2) -> list[list[str]]:
    """Return the arguments of daemons that are peers of each other, not started yet."""
    ports = [free_port() for _ in range(count)]
    config = tmp_path / "c.toml"
    config.write_text(f"peers = {json.dumps([f'http://127.0.0.1:{port}' for port in ports])}\n")
    return [["-c", str(config), "--port", str(port)] for port in ports]
