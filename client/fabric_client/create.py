"""``create_communicator``: from who-am-I to a communicator on the best path."""

import atexit
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, cast

from fabric_client.engine.base import Engine
from fabric_client.environment import Identity, asks_for_checks, identify, pmi_is_alive
from fabric_client.joining import Joined, join_group
from fabric_client.membership import Membership
from fabric_client.progress import check_time_to_join, check_timeout
from fabric_client.runner import Runner
from fabricd.errors import InputError, UnavailableError
from fabricd.localview import collect

if TYPE_CHECKING:  # it needs NumPy, and whoever lacks that shall read what to install
    from fabric_client.communicator import Communicator
    from fabric_client.engine.device import Device
    from fabric_client.engine.registry import EngineKind

_AUTO = "auto"  #: of the group interface: the plan says which engine


def create_communicator(
    group: str | None = None,
    rank: int | None = None,
    world_size: int | None = None,
    url: str | None = None,
    *,
    timeout: float = 60.0,
    operation_timeout: float | None = 1800.0,
    secret: str | None = None,
    engine: str | None = None,
    device: "int | Device | None" = None,
    check_calls: bool | None = None,
) -> "Communicator":
    """Join a group, let its daemon plan, and return a communicator on the planned path.

    Every rank of the group calls it; it returns when all have come. What is not given is taken from the
    environment: rank and size as :mod:`fabric_client.environment` says, the daemon as :mod:`fabric_client.locate`
    says, the secret from ``FABRICD_GROUP_SECRET_FILE`` or ``FABRICD_GROUP_SECRET``. Without a secret only processes
    of one user on one host can form a group, over the daemon's Unix socket.

    Under mpiexec or srun, when neither a daemon (``url``, ``FABRICD_URL``) nor a group (``group``,
    ``FABRICD_GROUP``) is named and the launcher's PMI is alive and agrees about rank and size, its MPI is used as it
    is, without plan and daemon.

    The engine is mpi for arrays in memory of hosts, nccl for arrays in memory of GPUs, gloo for hosts that have PyTorch
    and no MPI, or one that another package brings; on all ranks the same. Left out, the plan chooses nccl where every
    rank has a GPU of its own, CuPy and NCCL, else mpi, and ``explain()`` says why.

    MPI starts once in a process. While the first communicator is open, others can be made whose members are all among
    its ranks: for another group the daemon plans anew, but MPI keeps the settings that it started with. They end with
    the first at the latest.

    Blocking; call it from one thread. Ctrl-C is heard. A rank that is lost meanwhile raises RankLostError here.

    Args:
        group: the job's name, the same on every rank and on no other job.
        rank: this process's rank.
        world_size: number of ranks.
        url: the group's daemon: ``http://HOST:PORT``, ``https://...`` or ``unix:/path``.
        timeout: seconds for all ranks to come, and as long again for the engine to start.
        operation_timeout: default deadline of each operation in seconds; None waits for ever.
        secret: the group's secret, the same on every rank.
        engine: "mpi", "nccl", "gloo", or the name of a package's (see :mod:`fabric_client.engine.registry`), the same
            on every rank; None lets the plan choose between the first two.
        device: with ``engine="nccl"``, the rank's GPU by its number among those that this process sees. None takes
            the one that the program has made current, where it is not the first; else the only one; else the one that
            the launcher's variable says (``LOCAL_RANK`` and its like); else by the order of this host's ranks.
        check_calls: compare the ranks' calls before each collective: operation, shape, dtype, operator, root, counts.
            Where they differ every rank raises InputError, which says which rank calls what, and nothing was moved.
            Costs each collective a small exchange of all ranks, which is waited for, with ``async_op`` as well. When
            one rank asks for it, all do it. None: as ``FABRICD_CHECK_CALLS`` says, 1 or 0.

    Returns:
        The communicator; use it as a context manager, or close it on every rank.

    Raises:
        InputError: no rank or size, or ones that cannot be; an address that is none; an engine that there is not.
        UnavailableError: what the engine needs is not installed; the hint is the line to run. Or there is no GPU.
        CommunicatorError: MPI ran here already and has ended, or was started by other code; or some members are not
            among the ranks of this process's first communicator.
        UnreachableError: no daemon answers.
        AccessError: token or secret missing or wrong.
        GroupTimeoutError: ranks are missing; names them.
        GroupConflictError: another process claims this rank, or another size.
        GroupAbortedError, RankLostError: what became of the group meanwhile.
        EngineError: the plan cannot work here, two ranks are on one GPU, or the engine did not start.
        OperationTimeoutError: it did not start in time; says which ranks do not answer.
    """
    kind = None if engine in (None, "mpi", "nccl") else _kind_of(engine)
    if device is not None and engine != "nccl":
        raise InputError("device is for GPUs, and the engine is not nccl", hint='pass engine="nccl", too')
    check_time_to_join(timeout)
    if operation_timeout is not None:
        check_timeout(operation_timeout, "operation_timeout")
    environ = dict(os.environ)
    checks = asks_for_checks(check_calls, environ)
    identity = identify(group, rank, world_size, environ=environ)
    place = ""  # in an MPI that runs here
    if kind is not None:
        kind.check()
    elif engine == "nccl":
        from fabric_client.engine.nccl_start import load_binding

        load_binding()  # or refuse, before anybody is made to wait
    elif engine == "mpi" or not _only_nccl():
        _check_installed()
        from fabric_client.engine.mpi_start import check_not_running, check_usable
        from fabric_client.world import current_world

        world = current_world()
        if world is None:
            check_usable()
        if _launcher_serves(identity, url, environ):
            return _on_launcher(identity, timeout, operation_timeout, checks)
        if world is None:
            check_not_running()
        else:
            place = world.own_place
    wanted = (engine or _AUTO) if kind is None else kind.plan
    joined = join_group(
        identity, wanted, url=url, secret=secret, timeout=timeout, environ=environ, world=place, check_calls=checks
    )
    if kind is not None:
        return _start_kind(str(engine), kind, joined, timeout, operation_timeout)
    if joined.answer.plan.engine == "nccl":
        return _start_nccl(joined, device, timeout, operation_timeout)
    return _start(joined, timeout, operation_timeout)


def _kind_of(engine: object) -> "EngineKind":
    from fabric_client.engine.registry import engine_names, find_engine

    if not isinstance(engine, str):
        raise InputError(f"engine {engine!r:.60} is not a name", hint=f"valid: {', '.join(engine_names())}, or None")
    return find_engine(engine)


def _start_kind(
    name: str, kind: "EngineKind", joined: Joined, timeout: float, operation_timeout: float | None
) -> "Communicator":
    """Start an engine of the registry in a complete group."""
    from fabric_client.engine.registry import start_engine

    try:
        engine = start_engine(name, kind, joined, timeout=timeout)
    except BaseException as error:
        joined.membership.give_up(f"rank {joined.identity.rank} could not start {name}", error)
        raise
    return _of_group(engine, joined, operation_timeout)


def _start(joined: Joined, timeout: float, operation_timeout: float | None) -> "Communicator":
    """Start MPI in a complete group; or find its members in the MPI that runs already."""
    identity, answer, membership = joined.identity, joined.answer, joined.membership
    try:
        _check_installed()
        from fabric_client.engine.mpi_start import PlannedStart
        from fabric_client.world import World, check_together, current_world, runner_within, set_world

        world = current_world()
        places = check_together(world, joined)
        if world is not None:
            runner = runner_within(world, places, joined, timeout=timeout, operation_timeout=operation_timeout)
            return _communicator(runner, identity, joined, checks=answer.plan.check_calls)
        start = PlannedStart(
            answer,
            joined.view,
            fence=lambda number, keys, seconds: joined.rendezvous.fence(number, keys, timeout=seconds),
            check=membership.failure,
            before_start=membership.before_start,
            on_abort=membership.abort,
        )
        engine = start.run(timeout=timeout, environ=os.environ)
    except BaseException as error:
        membership.give_up(f"rank {identity.rank} could not start MPI", error)
        raise
    runner = _run(
        engine, membership, identity, operation_timeout, start.undelivered, ranks_on_host=_ranks_beside(joined)
    )
    set_world(World(runner, engine, answer.kvsname))
    return _communicator(runner, identity, joined, checks=answer.plan.check_calls)


def _start_nccl(
    joined: Joined, device: "int | Device | None", timeout: float, operation_timeout: float | None
) -> "Communicator":
    """Start NCCL in a complete group."""
    identity, membership = joined.identity, joined.membership
    try:
        from fabric_client.engine.nccl_start import start_nccl

        engine = start_nccl(joined, device, timeout=timeout, operation_timeout=operation_timeout)
    except BaseException as error:
        membership.give_up(f"rank {identity.rank} could not start NCCL", error)
        raise
    return _of_group(engine, joined, operation_timeout)


def _ranks_beside(joined: Joined) -> int:
    """Return how many ranks are on this one's host."""
    return sum(part.host_index == joined.part.host_index for part in joined.answer.plan.ranks)


def _of_group(engine: Engine, joined: Joined, timeout: float | None) -> "Communicator":
    """Return the communicator of an engine that has started in a group."""
    runner = _run(engine, joined.membership, joined.identity, timeout, ranks_on_host=_ranks_beside(joined))
    return _communicator(runner, joined.identity, joined, checks=joined.answer.plan.check_calls)


def _run(
    engine: Engine,
    membership: Membership | None,
    identity: Identity,
    timeout: float | None,
    undelivered: Callable[[], int] = lambda: 0,
    *,
    ranks_on_host: int,
) -> Runner:
    runner = Runner(engine, membership, identity.group, timeout=timeout, ranks_on_host=ranks_on_host)
    atexit.register(runner.end_of_process, undelivered)
    return runner


def _communicator(runner: Runner, identity: Identity, joined: Joined | None, *, checks: bool) -> "Communicator":
    if checks:
        from fabric_client.checks import CheckedCommunicator

        return CheckedCommunicator(runner, identity, joined)
    from fabric_client.communicator import Communicator

    return Communicator(runner, identity, joined)


def _check_installed() -> None:
    import importlib.util

    missing = [name for name in ("mpi4py", "numpy") if importlib.util.find_spec(name) is None]
    if missing:
        from fabricd.install import install_line

        torch = "numpy" not in missing and importlib.util.find_spec("torch") is not None
        raise UnavailableError(
            f"the MPI engine needs {' and '.join(missing)}, which this Python does not have",
            hint=install_line("mpi") + ('; or pass engine="gloo", for PyTorch is here' if torch else ""),
        )


def _only_nccl() -> bool:
    """Tell whether this process has what NCCL needs, and not what MPI needs."""
    import importlib.util

    found = {name: importlib.util.find_spec(name) is not None for name in ("mpi4py", "cupy")}
    return found["cupy"] and not found["mpi4py"] and bool(collect().gpu_uuids)


def _launcher_serves(identity: Identity, url: str | None, environ: Mapping[str, str]) -> bool:
    """Tell whether an MPI that is there already is this very group, and nobody asked for a daemon."""
    if url is not None or environ.get("FABRICD_URL") or identity.group_asked:
        return False
    from fabric_client.engine.mpi_start import running_mpi

    running = running_mpi()
    if running is not None and running == (identity.rank, identity.size):
        return True
    claimed = (environ.get("PMI_RANK"), environ.get("PMI_SIZE"))
    return running is None and claimed == (str(identity.rank), str(identity.size)) and pmi_is_alive(environ)


def _on_launcher(identity: Identity, timeout: float, operation_timeout: float | None, checks: bool) -> "Communicator":
    from fabric_client.engine.mpi_start import on_running_mpi
    from fabric_client.world import World, current_world, set_world

    world = current_world()
    if world is not None:
        made = world.runner.derive("dup", 0, identity.rank, timeout, group=identity.group)
        runner = cast("Runner", made)  # one color: nobody is left out
    else:
        engine, ranks_on_host = on_running_mpi(timeout=timeout)
        runner = _run(engine, None, identity, operation_timeout, ranks_on_host=ranks_on_host)
        set_world(World(runner, engine, ""))
    from fabric_client.checks import asked_by_any

    return _communicator(runner, identity, None, checks=asked_by_any(runner, checks, timeout))
