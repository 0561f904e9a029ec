"""``fabricd capture``: this machine in a file."""

from pathlib import Path
from typing import Annotated

import typer

from fabricd.capture import read_capture, redacted, take, write_capture
from fabricd.cli.options import ConfigFile, ReplayFile, Root, manual
from fabricd.config import Config
from fabricd.config_load import load
from fabricd.errors import ConfigError, InputError
from fabricd.locations import read_secret_file
from fabricd.probe.base import Probe, ProbeContext, Roots
from fabricd.probe.registry import configured_probes


def capture(
    file: Annotated[Path, typer.Argument(help="Takes the capture; must not exist.")],
    raw: Annotated[bool, typer.Option("--raw", help="Keep names, addresses and ids as they are.")] = False,
    key: Annotated[
        Path | None,
        typer.Option(help="File with a secret: captures made with one key replace the same thing alike."),
    ] = None,
    config_file: ConfigFile = None,
    root: Root = None,
    replay: ReplayFile = None,
) -> None:
    """Write what this machine shows into a file, without what identifies it, to be looked at elsewhere (--replay).

    The file is text: the files and answers that the probes read, and what they make of them. With --replay it is made
    from another capture.
    """
    if raw and key is not None:
        raise InputError("--raw and --key exclude each other")
    if replay is not None and root is not None:
        raise InputError("--root and --replay exclude each other")
    secret = None if key is None else read_secret_file(key, "--key").encode()
    if replay is not None:
        whole = read_capture(replay)
    else:
        settings = _settings(config_file)
        whole = take(context(root, settings), probes=probes_of(settings))
    write_capture(file, whole if raw else redacted(whole, key=secret))
    kept = "as they are" if raw else "replaced; look through it before you pass it on"
    typer.echo(f"{file}: names, addresses and ids are {kept}")


def _settings(file: Path | None) -> Config:
    """Return the configuration; a capture needs none, and who takes it may not be allowed to read the daemon's."""
    try:
        return load(file).config
    except ConfigError as error:
        if file is not None:
            raise
        typer.echo(f"without the configuration, which has faults: {'; '.join(error.faults)}", err=True)
        return Config()


def context(root: Path | None, settings: Config) -> ProbeContext:
    """Return what probes are given for this host, or for the machine whose files lie below a folder.

    Raises:
        InputError: it is no folder.
    """
    if root is not None and not root.is_dir():
        raise InputError(f"no directory: {root}")
    roots = Roots() if root is None else Roots.under(root.absolute())
    return ProbeContext(roots=roots, this_host=root is None, topology_files=settings.topology_files)


def probes_of(settings: Config) -> tuple[Probe, ...]:
    """Return the probes that a configuration asks for."""
    return configured_probes(
        networks=settings.network,
        placement_files=settings.placement_files,
        instance_metadata=settings.instance_metadata == "on",
        names=[word for word in (settings.name, settings.node_id) if word],
    )


def register(app: typer.Typer) -> None:
    """Add the command."""
    examples = ("fabricd capture here.txt", "fabricd capture --key key --root /host there.txt")
    summary = "Write what this machine shows into a file, anonymously"
    app.command(epilog=manual(*examples), short_help=summary)(capture)
