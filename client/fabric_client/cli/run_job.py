"""What ``fabricctl run`` does: a daemon, a secret and a place to meet for a job's ranks, and the ranks of this host."""

import contextlib
import os
import signal
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from fabric_client.cli.job_place import Meeting, alone
from fabric_client.cli.launcher import Job, end_on_signals, run_job
from fabric_client.cli.own_daemon import daemon_for_job
from fabric_client.cli.run_options import RunOptions
from fabricd.errors import FabricError
from fabricd.localview import collect


def run_here(command: Sequence[str], options: RunOptions) -> int:
    """Run this host's ranks of a job to their end; return the exit status."""
    several = options.nnodes > 1
    with _environment_of_hosts(options.group) if several else job_environment(options.group) as environ:
        meeting = _meet(options.nnodes, options.node_rank, options.ranks, environ, options.meet_timeout)
        environ |= {setting.name: setting.value for setting in meeting.settings}
        job = Job(
            command=command,
            ranks=options.ranks,
            environ=environ,
            prefix=options.prefix,
            timeout=options.timeout,
            grace=options.grace,
            place=meeting.place,
            on_failure=partial(_tell_end, environ),
            afterwards=partial(_clear_up, environ),
        )
        return _run_together(job, meeting)


def _tell_end(environ: Mapping[str, str], rank: int, how: str) -> bool:
    from fabric_client.cli.job_group import tell_end  # most jobs have no use for it

    return tell_end(environ, rank, how)


def _clear_up(environ: Mapping[str, str]) -> None:
    from fabric_client.cli.job_group import clear_up

    clear_up(environ)


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
        from fabric_client.environment import check_group_name  # loads what members say to a daemon

        check_group_name(group, "--group")  # here, and not in each rank
    end_on_signals()
    with daemon_for_job() as url, tempfile.TemporaryDirectory(prefix="fabricctl-") as name:
        path = Path(name) / "secret"
        path.touch(mode=0o600)
        path.write_text(os.urandom(32).hex() + "\n", encoding="ascii")
        environ = {key: value for key, value in os.environ.items() if key != "FABRICD_GROUP_SECRET"}
        yield {
            **environ,
            "FABRICD_URL": url,
            "FABRICD_GROUP": group or f"run-{os.urandom(8).hex()}",
            "FABRICD_GROUP_SECRET_FILE": str(path),
            "FABRICD_INCARNATION": "0",
        }
