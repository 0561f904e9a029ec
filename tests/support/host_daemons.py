"""A daemon on each of several hosts that are namespaces of this machine."""

import itertools
import secrets
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from demo.daemons import Daemon, wait_for_peers
from demo.hosts import Host, NetworkSpec, make_hosts

PORT = 7470


class SecretFiles:
    """The token of a cluster's daemons and the secret of its groups, in files of a folder."""

    def __init__(self, folder: Path) -> None:
        self.token, self.secret = folder / "token", folder / "secret"
        for path in (self.token, self.secret):
            path.touch(mode=0o600)
            path.write_text(secrets.token_hex(32))

    def variables(self) -> dict[str, str]:
        """What a rank's environment has of them."""
        return {"FABRICD_GROUP_SECRET_FILE": str(self.secret), "FABRICD_TOKEN_FILE": str(self.token)}


def host_daemon(folder: Path, host: Host, files: SecretFiles, urls: Sequence[str], config: str = "") -> Daemon:
    """Start a host's daemon, which knows those at the URLs."""
    options = ["--host", "::", "--port", str(PORT), "--node-id", host.name, "--name", host.name]
    options += ["--token-file", str(files.token), *(word for url in urls for word in ("--peer", url))]
    if config:
        (folder / f"{host.name}.toml").write_text(config)
        options += ["--config", str(folder / f"{host.name}.toml")]
    (folder / f"{host.name}.ready").unlink(missing_ok=True)  # of one that was killed
    return Daemon(
        host.name, folder, options, start=lambda command, output: host.popen(command, stdout=output, stderr=output)
    )


@contextmanager
def daemons(
    folder: Path, hosts: Sequence[Host], urls: Sequence[str], configs: Sequence[str] = ()
) -> Iterator[dict[str, str]]:
    """Run a daemon on each host, each knowing all; yield the environment of ranks, whose group is at the first URL."""
    files = SecretFiles(folder)
    with ExitStack() as stack:
        started = [
            stack.enter_context(host_daemon(folder, host, files, urls, config))
            for host, config in itertools.zip_longest(hosts, configs, fillvalue="")
        ]
        for daemon in started:
            daemon.wait_ready()
        yield {"FABRICD_URL": urls[0], "FABRICD_GROUP": "networks", **files.variables()}


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
