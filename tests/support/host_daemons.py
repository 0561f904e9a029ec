"""A daemon on each of several hosts that are namespaces of this machine."""

import itertools
import secrets
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from demo.daemons import Daemon, wait_for_peers
from demo.hosts import Host, NetworkSpec, make_hosts

PORT = 7470


@contextmanager
def daemons(
    folder: Path, hosts: Sequence[Host], urls: Sequence[str], configs: Sequence[str] = ()
) -> Iterator[dict[str, str]]:
    """Run a daemon on each host, each knowing all; yield the environment of ranks, whose group is at the first URL."""
    files = {}
    for name in ("token", "secret"):
        files[name] = folder / name
        files[name].touch(mode=0o600)
        files[name].write_text(secrets.token_hex(32))
    peers = [word for url in urls for word in ("--peer", url)]
    with ExitStack() as stack:
        started = []
        for host, config in itertools.zip_longest(hosts, configs, fillvalue=""):
            options = ["--host", "::", "--port", str(PORT), "--node-id", host.name, "--name", host.name]
            options += ["--token-file", str(files["token"]), *peers]
            if config:
                (folder / f"{host.name}.toml").write_text(config)
                options += ["--config", str(folder / f"{host.name}.toml")]

            def start(command, output, host=host):
                return host.popen(command, stdout=output, stderr=output)

            started.append(stack.enter_context(Daemon(host.name, folder, options, start=start)))
        for daemon in started:
            daemon.wait_ready()
        yield {
            "FABRICD_URL": urls[0],
            "FABRICD_GROUP": "networks",
            "FABRICD_GROUP_SECRET_FILE": str(files["secret"]),
            "FABRICD_TOKEN_FILE": str(files["token"]),
        }


@contextmanager
def hosts_with_daemons(
    folder: Path, networks: Sequence[NetworkSpec], control: str
) -> Iterator[tuple[list[Host], dict[str, str]]]:
    """Make two hosts, their daemons joined by the network ``control``; yield hosts and the environment of ranks."""
    with ExitStack() as stack:
        hosts = stack.enter_context(make_hosts(2, networks))
        urls = [f"http://{host.link(control).address}:{PORT}" for host in hosts]
        environment = stack.enter_context(daemons(folder, hosts, urls))
        for host in hosts:
            wait_for_peers(host, len(hosts))
        yield hosts, environment
