"""What only root may read, left in files for the unprivileged daemon: ``fabricd facts``.

The folder is root's own, apart from the daemon's runtime directory: the daemon can neither change what lies there nor
lead root elsewhere.
"""

import os
import secrets
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from fabricd.errors import InputError
from fabricd.model.codec import to_json
from fabricd.model.observation import Outcome
from fabricd.probe import acs, ibfabric, lldp
from fabricd.probe.base import ProbeAbsent, ProbeContext, ProbeFailed, ProbeNotRun, ProbeStopped
from fabricd.probe.ibnetdiscover import active_ports, walk
from fabricd.probe.process import Program

FOLDER = Path("/run/fabricd-facts")
_LLDP_SECONDS = 10.0
#: Where root's tools are, also for a shell that looks elsewhere.
_TOOL_FOLDERS = "/usr/sbin:/usr/bin:/sbin:/bin"


#: Reads a source: the file's content, and what of it could not be read.
_Source = Callable[[], tuple[bytes, tuple[str, ...]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """What became of one file."""

    file: Path
    outcome: Outcome
    reason: str = ""


def leave_facts(
    ctx: ProbeContext,
    folder: Path,
    *,
    ib_fabric: bool,
    environment: Mapping[str, str] | None = None,
) -> list[Left]:
    """Write a file for each source. One that cannot be read now keeps its earlier file; one that is not there loses it.

    Args:
        ctx: where to read.
        folder: takes the files; made if need be.
        ib_fabric: walk over the InfiniBand fabrics too.
        environment: of the tools, by default this process's.

    Raises:
        InputError: the folder cannot be written.
    """

    def fabric() -> tuple[bytes, tuple[str, ...]]:
        if not ib_fabric:
            raise ProbeNotRun('ib_fabric is "off"')
        return walk(active_ports(ctx), _tool("ibnetdiscover", "infiniband-diags"), environment)

    sources: Mapping[str, _Source] = {
        acs.LEFT_FACTS: lambda: (to_json(acs.collect(ctx)), ()),
        lldp.LEFT_FACTS: lambda: (_lldp_neighbors(ctx, environment), ()),
        ibfabric.LEFT_FACTS: fabric,
    }
    try:
        if not folder.is_dir():
            folder.mkdir(parents=True)
            folder.chmod(0o755)  # whatever root's umask is: the daemon must read what is in it
        return [_leave(folder / Path(name).name, read) for name, read in sources.items()]
    except OSError as error:
        raise InputError(f"cannot write {folder}: {error.strerror or error}", hint="it needs root") from error


def _leave(file: Path, read: _Source) -> Left:
    try:
        data, notes = read()
    except ProbeStopped as stop:
        if stop.outcome is not Outcome.FAILED:
            file.unlink(missing_ok=True)
        return Left(file=file, outcome=stop.outcome, reason=stop.reason)
    write_whole(file, data)
    return Left(file=file, outcome=Outcome.OK, reason="; ".join(notes))


def write_whole(file: Path, data: bytes) -> None:
    """Write a file that everybody may read, whole or not at all. Follows no link that stands there."""
    fresh = file.with_name(f".{file.name}.{secrets.token_hex(8)}")
    try:
        with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644), "wb") as stream:
            os.fchmod(stream.fileno(), 0o644)
            stream.write(data)
        fresh.replace(file)
    except BaseException:
        fresh.unlink(missing_ok=True)
        raise


def _lldp_neighbors(ctx: ProbeContext, environment: Mapping[str, str] | None) -> bytes:
    if not (ctx.roots.run / "lldpd.socket").exists():
        raise ProbeAbsent("lldpd does not run")
    command = (_tool("lldpcli", "lldpd"), "-f", "json0", "show", "neighbors", "details")
    return Program(command, "lldpcli", environment, silent=False).ask(_LLDP_SECONDS)


def _tool(name: str, package: str) -> str:
    found = shutil.which(name, path=f"{os.environ.get('PATH', '')}:{_TOOL_FOLDERS}")
    if found is None:
        raise ProbeFailed(f"{name} is not installed (package {package})")
    return found
