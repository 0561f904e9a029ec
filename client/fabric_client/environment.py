"""Who this process is in its job: from arguments, else from the variables that launchers set.

Order of the sources, the innermost launcher first, because an outer one's variables are inherited:

1. arguments of ``create_communicator``;
2. ``RANK`` and ``WORLD_SIZE`` (torchrun, ``fabricctl run``, Kubernetes operators, a shell);
3. ``OMPI_COMM_WORLD_RANK`` and ``OMPI_COMM_WORLD_SIZE`` (Open MPI's mpirun);
4. ``PMI_RANK`` and ``PMI_SIZE`` while the process manager behind them answers (mpiexec, srun with PMI);
5. ``SLURM_PROCID`` and ``SLURM_STEP_NUM_TASKS`` or ``SLURM_NTASKS``. They come behind the others because a batch
   script's own ``SLURM_PROCID=0`` reaches everything that mpirun or torchrun starts in it;
6. ``PMI_RANK`` and ``PMI_SIZE`` although nothing answers there.

Rank and size always come from the same source, never one from each.
"""

import os
import re
import select
import socket
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from fabricd.errors import InputError
from fabricd.model.wire import GROUP_NAME

_PAIRS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("RANK", ("WORLD_SIZE",)),
    ("OMPI_COMM_WORLD_RANK", ("OMPI_COMM_WORLD_SIZE",)),
    ("PMI_RANK", ("PMI_SIZE",)),
    ("SLURM_PROCID", ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS")),
)
_OUTSIDE_NAME = re.compile(r"[^A-Za-z0-9._:@+=-]+")
_CHECK_CALLS = "FABRICD_CHECK_CALLS"
_YES_OR_NO = {"": False, "0": False, "1": True}
_PORT_PROBE_SECONDS = 1.0  # a process manager's port is on this host or one hop away


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """One rank of one job."""

    group: str
    rank: int
    size: int
    incarnation: int  #: restart count: a higher one fences a lower one
    source: str  #: where rank and size were found, e.g. "RANK and WORLD_SIZE"
    group_source: str
    group_asked: bool  #: the group was named by argument or FABRICD_GROUP, not derived
    all_local: bool  #: the launcher says that every rank is on this host


def identify(
    group: str | None = None,
    rank: int | None = None,
    world_size: int | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    pmi_alive: Callable[[Mapping[str, str]], bool] | None = None,
) -> Identity:
    """Return who this process is.

    Args:
        group: the job's name; None derives it from the environment.
        rank: this process's rank; None takes it from the environment.
        world_size: number of ranks; None takes it from the environment.
        environ: the environment, by default this process's.
        pmi_alive: tells whether the process manager named by ``PMI_*`` answers.

    Raises:
        InputError: no rank or size, or ones that cannot be; says what was found where.
    """
    environ = os.environ if environ is None else environ
    found_rank, found_size, source = _rank_and_size(rank, world_size, environ, pmi_alive or pmi_is_alive)
    if found_size < 1 or not 0 <= found_rank < found_size:
        raise InputError(
            f"rank {found_rank} of {found_size} cannot be (from {source})",
            hint=f"ranks count from 0 to world_size - 1; {_what_is_set(environ)}",
        )
    name, group_source = _group_name(group, environ)
    check_group_name(name, group_source)
    return Identity(
        group=name,
        rank=found_rank,
        size=found_size,
        incarnation=_incarnation(environ),
        source=source,
        group_source=group_source,
        group_asked=group is not None or bool(environ.get("FABRICD_GROUP")),
        all_local=found_size == 1 or environ.get("LOCAL_WORLD_SIZE") == str(found_size),
    )


def asks_for_checks(wanted: bool | None, environ: Mapping[str, str]) -> bool:
    """Tell whether this rank's program wants its calls compared.

    Args:
        wanted: what it says; None leaves it to the environment.
        environ: the environment.

    Raises:
        InputError: the environment says neither yes nor no.
    """
    if wanted is not None:
        return bool(wanted)
    value = environ.get(_CHECK_CALLS, "")
    if value not in _YES_OR_NO:
        raise InputError(f"{_CHECK_CALLS}={value[:40]!r} is neither yes nor no", hint="valid: 1, 0")
    return _YES_OR_NO[value]


def check_group_name(name: str, source: str) -> None:
    """Refuse a name that no group can have.

    Raises:
        InputError: says where the name came from, and what names are made of.
    """
    if not re.fullmatch(GROUP_NAME, name):
        raise InputError(f"a group cannot be called {name[:80]!r} (from {source})", hint=f"pattern: {GROUP_NAME}")


def _rank_and_size(
    rank: int | None, size: int | None, environ: Mapping[str, str], pmi_alive: Callable[[Mapping[str, str]], bool]
) -> tuple[int, int, str]:
    if rank is not None and size is not None:
        return rank, size, "arguments"
    pair = _first_pair(environ, pmi_alive)
    if pair is None:
        missing = "rank and world_size" if rank is None and size is None else "rank" if rank is None else "world_size"
        raise InputError(
            f"no {missing}: neither argument nor environment gives it",
            hint=f"pass {missing}, or start the ranks with `fabricctl run -n N -- ...`; {_what_is_set(environ)}",
        )
    rank_name, size_name = pair
    source = f"{rank_name} and {size_name}"
    if rank is not None or size is not None:
        source += ", and arguments"
    return (
        _integer(environ, rank_name) if rank is None else rank,
        _integer(environ, size_name) if size is None else size,
        source,
    )


def _first_pair(environ: Mapping[str, str], pmi_alive: Callable[[Mapping[str, str]], bool]) -> tuple[str, str] | None:
    stale_pmi: tuple[str, str] | None = None
    for rank_name, size_names in _PAIRS:
        size_name = next((name for name in size_names if environ.get(name)), None)
        if not environ.get(rank_name) or size_name is None:
            continue
        if rank_name == "PMI_RANK" and not pmi_alive(environ):
            stale_pmi = (rank_name, size_name)
            continue
        return rank_name, size_name
    return stale_pmi


def _integer(environ: Mapping[str, str], name: str) -> int:
    text = environ[name]
    if not re.fullmatch(r"[0-9]{1,9}", text):
        raise InputError(f"{name}={text[:40]!r} is not a number", hint="expected 0, 1, 2, ...")
    return int(text)


def _what_is_set(environ: Mapping[str, str]) -> str:
    names = [name for rank_name, size_names in _PAIRS for name in (rank_name, *size_names)]
    found = [f"{name}={environ[name][:40]}" for name in names if name in environ]
    return "set here: " + " ".join(found) if found else "none of " + ", ".join(names) + " is set"


def _group_name(group: str | None, environ: Mapping[str, str]) -> tuple[str, str]:
    """Return the job's name and where it was found."""
    if group is not None:
        return group, "argument"
    if environ.get("FABRICD_GROUP"):
        return environ["FABRICD_GROUP"], "FABRICD_GROUP"
    run_id = environ.get("TORCHELASTIC_RUN_ID", "")
    if run_id not in ("", "none"):  # "none" is torchrun's default and names no job
        return _clean(f"torch-{run_id}"), "TORCHELASTIC_RUN_ID"
    if environ.get("SLURM_JOB_ID"):
        step = environ.get("SLURM_STEP_ID", "batch")
        return _clean(f"slurm-{environ['SLURM_JOB_ID']}.{step}"), "SLURM_JOB_ID and SLURM_STEP_ID"
    if environ.get("PMIX_NAMESPACE"):
        return _clean(f"pmix-{environ['PMIX_NAMESPACE']}"), "PMIX_NAMESPACE"
    if environ.get("MASTER_ADDR") and environ.get("MASTER_PORT"):
        return _clean(f"master-{environ['MASTER_ADDR']}-{environ['MASTER_PORT']}"), "MASTER_ADDR and MASTER_PORT"
    return "default", "nothing in the environment names the job"


def _clean(text: str) -> str:
    return _OUTSIDE_NAME.sub("-", text)[:128]


def _incarnation(environ: Mapping[str, str]) -> int:
    """Return the restart count; a requeued Slurm job outranks the restarts that torchrun did before it."""
    if environ.get("FABRICD_INCARNATION"):
        return _integer(environ, "FABRICD_INCARNATION")
    elastic = _integer(environ, "TORCHELASTIC_RESTART_COUNT") if environ.get("TORCHELASTIC_RESTART_COUNT") else 0
    requeued = _integer(environ, "SLURM_RESTART_COUNT") if environ.get("SLURM_RESTART_COUNT") else 0
    return requeued * 1_000_000 + elastic


def pmi_is_alive(environ: Mapping[str, str]) -> bool:
    """Tell whether the process manager that ``PMI_FD`` or ``PMI_PORT`` names is there.

    Variables outlive their launcher: a program started by torchrun under mpiexec inherits ``PMI_FD=7``, but not the
    open descriptor 7.
    """
    if environ.get("PMI_FD"):
        return _socket_is_connected(environ["PMI_FD"])
    host, _, port = environ.get("PMI_PORT", "").rpartition(":")
    if not host or not port.isdigit():
        return False
    try:
        socket.create_connection((host, int(port)), timeout=_PORT_PROBE_SECONDS).close()
    except (OSError, OverflowError):
        return False
    return True


def _socket_is_connected(text: str) -> bool:
    if not re.fullmatch(r"[0-9]{1,6}", text):
        return False
    number = int(text)
    try:
        if not stat.S_ISSOCK(os.fstat(number).st_mode):
            return False
        poller = select.poll()
        poller.register(number, select.POLLIN | select.POLLHUP | select.POLLERR)
        events = poller.poll(0)
    except OSError:
        return False
    return not any(flags & (select.POLLHUP | select.POLLERR | select.POLLNVAL) for _, flags in events)
