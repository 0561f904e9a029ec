"""The commands, and how their errors become exit statuses."""

import signal
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from fabricd import __version__, config_load
from fabricd.capture import Replay, read_capture, source_of
from fabricd.cli import capture
from fabricd.cli.cluster_replay import cluster_in, first_in, others_in
from fabricd.cli.options import ConfigFile, ReplayFile, Root, manual
from fabricd.cli.table import print_snapshot
from fabricd.config import RULES, Config
from fabricd.config_load import Loaded
from fabricd.errors import FabricError, InputError
from fabricd.loading import no_collecting
from fabricd.model.cluster import ClusterStatus
from fabricd.model.codec import to_json
from fabricd.model.observation import Outcome
from fabricd.probe.base import ProbeContext
from fabricd.probe.facts import FOLDER, leave_facts
from fabricd.probe.runner import Runner
from fabricd.settings_layers import PREFIX
from fabricd.smallfile import escaped

_PROBE = manual("fabricd probe", "fabricd probe --json > here.json")
_FACTS = manual(
    "sudo fabricd facts",
    "sudo fabricd facts -c new.toml",
    reads="PCI configuration, LLDP frames and InfiniBand subnets",
    status="0 when done, 1 when a part failed, 2 for wrong input",
)
_SERVE = manual(
    "fabricd serve",
    "fabricd serve --port 0 --replay c.jsonl.gz",
    reads="/sys, netlink, NVML, RDMA; the configuration; FABRICD_ and the name of any setting (fabricd check-config "
    "--help), which options override",
    status="0 after SIGTERM, 1 when it cannot listen, 2 for a wrong configuration",
)
_CHECK = manual(
    "fabricd check-config",
    "fabricd check-config new.toml",
    reads="the file, and FABRICD_NAME of each setting",
    status="0 without a fault, 2 with any",
)
_SETTINGS = "\n\n".join(f"{key}: {rule.told}" for key, rule in RULES.items())

app = typer.Typer(
    name="fabricd",
    help="Discovers how this node is wired, publishes the map, and answers which path is best.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
capture.register(app)


def run() -> int:
    """Run the command line and return its exit status; errors go to standard error, without a traceback."""
    try:
        app()
    except FabricError as error:
        lines = map(escaped, str(error).split("\n"))  # names in it may come from anywhere
        sys.stderr.write("fabricd: " + "\n".join(lines) + "\n")
        return error.exit_status
    except OSError as error:  # of standard output: a full disk, a terminal that went away
        sys.stderr.write(f"fabricd: {error}\n")
        return 1
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(bool(end.code))
    return 0


@app.callback(invoke_without_command=True)
def _version(
    version: Annotated[bool, typer.Option("--version", help="Print the version and stop.", is_eager=True)] = False,
) -> None:
    if version:
        typer.echo(f"fabricd {__version__}")
        raise typer.Exit


@app.command(epilog=_SERVE, short_help="Run the daemon until SIGTERM")
def serve(
    config_file: ConfigFile = None,
    host: Annotated[str | None, typer.Option(help="Address to listen at.")] = None,
    port: Annotated[int | None, typer.Option(help="TCP port; 0 takes any.")] = None,
    socket: Annotated[str | None, typer.Option(help='Unix socket; "" for none.')] = None,
    node_id: Annotated[str | None, typer.Option(help="Identity of this node, instead of the machine's.")] = None,
    name: Annotated[str | None, typer.Option(help="Display name of this node, instead of its host name.")] = None,
    token_file: Annotated[str | None, typer.Option(help="Bearer token, needed beyond loopback.")] = None,
    peer: Annotated[list[str] | None, typer.Option(help="URL of another node's daemon; may be repeated.")] = None,
    log_level: Annotated[str | None, typer.Option(help="debug, info, warning or error.")] = None,
    root: Root = None,
    replay: ReplayFile = None,
    ready_file: Annotated[Path | None, typer.Option(help="Takes one JSON line when the daemon answers.")] = None,
    ready_fd: Annotated[int | None, typer.Option(help="Open descriptor for the same line.", min=3)] = None,
) -> None:
    """Run the daemon until SIGTERM; SIGHUP reads the configuration again."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until it means to reload, it must not end what only begins
    options: dict[str, Any] = {
        "host": host,
        "port": port,
        "socket": _absolute(socket),
        "node_id": node_id,
        "name": name,
        "token_file": _absolute(token_file),
        "peers": peer or None,
        "log_level": log_level,
    }

    def load() -> Loaded:
        return config_load.load(config_file, options=options)

    loaded = load()
    with no_collecting():
        from fabricd import daemon  # only this command pays for the web framework, and only when it can run

    cluster = cluster_in(replay) if replay is not None else None
    launch = daemon.Launch(
        source=_source(root, replay, loaded.config, cluster),
        others=others_in(cluster) if cluster else (),
        reload=load,
        live=root is None and replay is None,
        ready_file=ready_file,
        ready_descriptor=ready_fd,
    )
    daemon.run(loaded, launch)


@app.command(epilog=_PROBE, short_help="Look at this machine once and print what is there")
def probe(
    json: Annotated[bool, typer.Option("--json", help="Print the snapshot as JSON.")] = False,
    root: Root = None,
    replay: ReplayFile = None,
) -> None:
    """Look at this machine once and print what is there."""
    snapshot = _source(root, replay).refresh()
    if json:
        sys.stdout.write(to_json(snapshot).decode() + "\n")
    else:
        print_snapshot(snapshot)


@app.command(epilog=_FACTS, short_help="As root, leave what only root may read for the daemon")
def facts(
    folder: Annotated[Path, typer.Argument(help="Takes the files; the daemon looks in the default.")] = FOLDER,
    config_file: ConfigFile = None,
) -> None:
    """As root, leave what only root may read (ACS of PCI bridges, LLDP, InfiniBand switches) for the daemon."""
    ib_fabric = config_load.load(config_file).config.ib_fabric == "on"
    left = leave_facts(ProbeContext(), folder, ib_fabric=ib_fabric)
    for one in left:
        typer.echo(f"{one.file}: {one.outcome}" + (f", {one.reason}" if one.reason else ""))
    if any(one.outcome is Outcome.FAILED for one in left):
        raise typer.Exit(1)


@app.command(
    epilog=f"{_CHECK}\n\nSettings, as in the file; in the environment as {PREFIX}NAME:\n\n{_SETTINGS}",
    short_help="List every fault of a configuration at once",
)
def check_config(
    file: Annotated[Path | None, typer.Argument(help=f"By default {config_load.DEFAULT_FILE} if it exists.")] = None,
) -> None:
    """List every fault of a configuration (file and environment) at once; status 2 if there is any."""
    loaded = config_load.load(file)
    for told in loaded.warnings:
        typer.echo(f"warning: {told}", err=True)
    if loaded.credentials.not_after is not None:
        typer.echo(f"{loaded.config.tls_certificate_file}: valid until {loaded.credentials.not_after:%Y-%m-%d}")
    typer.echo(f"{loaded.file or 'no file, only defaults and environment'}: no fault")


def _source(
    root: Path | None, replay: Path | None, settings: Config | None = None, cluster: ClusterStatus | None = None
) -> Runner | Replay:
    """Return what looks at the machine: its probes, or a replay, which of a cluster is its first node."""
    settings = settings or Config()
    node_id, name = settings.node_id, settings.name
    if replay is not None:
        if root is not None:
            raise InputError("--root and --replay exclude each other")
        cluster = cluster or cluster_in(replay)
        if cluster is None:
            return source_of(read_capture(replay), node_id=node_id, name=name)
        return Replay(first_in(cluster), node_id=node_id, name=name)
    context, probes = capture.context(root, settings), capture.probes_of(settings)
    return Runner(context, probes=probes, node_id=node_id, name=name)


def _absolute(path: str | None) -> str | None:
    """Return the path as seen from the present directory; "" stays, for it means none."""
    return str(Path(path).absolute()) if path else path
