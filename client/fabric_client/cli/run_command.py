"""``fabricctl run``: ranks on this host, alone or with those of other hosts, through a group."""

import contextlib
import os
import secrets
import signal
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated

import typer

from fabric_client.cli.job_place import MAX_RANKS, HostRankOption, Meeting, MeetOption, alone
from fabric_client.cli.launcher import Job, end_on_signals, run_job
from fabric_client.cli.own_daemon import daemon_for_job
from fabric_client.environment import check_group_name
from fabricd.errors import FabricError, InputError
from fabricd.localview import collect

RanksOption = Annotated[int, typer.Option("-n", "--ranks", min=1, max=MAX_RANKS, help="How many ranks.")]
GroupOption = Annotated[str | None, typer.Option("--group", help="The group's name; by default a random one.")]
HostsOption = Annotated[
    int, typer.Option("--nnodes", min=1, max=65536, help="On how many hosts; the same command runs on each.")
]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(
        name="run", context_settings={"allow_extra_args": True, "ignore_unknown_options": True}, no_args_is_help=True
    )(run)


def run(
    context: typer.Context,
    ranks: RanksOption,
    group: GroupOption = None,
    nnodes: HostsOption = 1,
    node_rank: HostRankOption = 0,
    meet_timeout: MeetOption = 60.0,
    timeout: Annotated[float | None, typer.Option(min=0.1, help="End the job after so many seconds.")] = None,
    grace: Annotated[
        float, typer.Option(min=0.0, help="Seconds that the other ranks have to end when one has failed.")
    ] = 10.0,
    prefix: Annotated[bool, typer.Option("--prefix", help="Put [rank] before every line of output.")] = False,
) -> None:
    """Run a command as N ranks on this host, or on each of several.

    For example: fabricctl run -n 4 -- python train.py

    Each rank finds RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT as under torchrun, and the settings that
    Gloo and NCCL need on the planned network; create_communicator() needs no arguments. Signals are passed on. The exit
    status is that of the first rank that failed. Without a running daemon one is started for the job's own time.

    On several hosts, run it on each with --nnodes and its own --node-rank; FABRICD_URL, --group and
    FABRICD_GROUP_SECRET_FILE are the same on all. The daemon measures the networks between them and plans; the ranks
    meet on the network that it chose. When one host's ranks fail, those of the others are ended.
    """
    command = context.args
    if not command:
        raise InputError("no command to run", hint="fabricctl run -n 4 -- python train.py")
    with job_environment(group) if nnodes == 1 else _environment_of_hosts(group) as environ:
        meeting = _meet(nnodes, node_rank, ranks, environ, meet_timeout)
        environ |= {setting.name: setting.value for setting in meeting.settings}
        job = Job(
            command=command,
            ranks=ranks,
            environ=environ,
            prefix=prefix,
            timeout=timeout,
            grace=grace,
            place=meeting.place,
        )
        status = _run_together(job, meeting)
    raise typer.Exit(status)


def _meet(hosts: int, host_rank: int, ranks: int, environ: Mapping[str, str], timeout: float) -> Meeting:
    """Return what all hosts know when they have met; on one host a daemon is asked for the sake of its GPUs alone."""
    view = collect()
    if hosts == 1 and not view.gpu_uuids:
        return alone(ranks, view, environ)
    try:
        from fabric_client.cli.meeting import meet  # loads what joins a group

        return meet(hosts, host_rank, ranks, environ, timeout=timeout)
    except FabricError as error:
        if hosts > 1:
            raise
        sys.stderr.write(f"fabricctl: no settings for NCCL: {error}\n")
        return alone(ranks, view, environ)


def _run_together(job: Job, meeting: Meeting) -> int:
    """Run this host's ranks; end them when another host's fail, and the others' when they fail."""

    def end(error: FabricError) -> None:
        sys.stderr.write(f"fabricctl: {error}\n")
        sys.stderr.flush()
        os.kill(os.getpid(), signal.SIGTERM)  # as a user would; this is another thread

    status = 1
    try:
        meeting.on_failure(end)
        status = run_job(job)
    finally:
        meeting.leave(f"its ranks on host {meeting.place.host_rank} ended with status {status}" if status else "")
    return status


@contextlib.contextmanager
def _environment_of_hosts(group: str | None) -> Iterator[dict[str, str]]:
    """Yield this process's environment, from which all hosts know the job, its daemon and its secret."""
    end_on_signals()
    yield {**os.environ, **({"FABRICD_GROUP": group} if group else {})}


@contextlib.contextmanager
def job_environment(group: str | None) -> Iterator[dict[str, str]]:
    """Yield an environment in which ranks find their daemon, their group and its secret.

    The secret is new for each job and lies in a file that only this user can read.

    Raises:
        InputError: no group can have that name.
        FabricError: no daemon, and none can be started.
    """
    if group is not None:
        check_group_name(group, "--group")  # here, and not in each rank
    end_on_signals()
    with daemon_for_job() as url, tempfile.TemporaryDirectory(prefix="fabricctl-") as name:
        path = Path(name) / "secret"
        path.touch(mode=0o600)
        path.write_text(secrets.token_hex(32) + "\n", encoding="ascii")
        environ = {key: value for key, value in os.environ.items() if key != "FABRICD_GROUP_SECRET"}
        yield {
            **environ,
            "FABRICD_URL": url,
            "FABRICD_GROUP": group or f"run-{secrets.token_hex(8)}",
            "FABRICD_GROUP_SECRET_FILE": str(path),
            "FABRICD_INCARNATION": "0",
        }
