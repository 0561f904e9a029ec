"""JAX's processes on the best path.

::

    import jax
    import fabric_client.jax

    with fabric_client.jax.initialize() as group:  # rank, size and daemon from the usual environment
        print(group.explain())
        ...  # jax.devices() are those of all ranks

JAX moves the data, by Gloo between CPUs and NCCL between GPUs; the daemon chooses the network and the ranks meet there.
Left alone, JAX's coordinator listens on all addresses, and its Gloo takes the one that the host's own name stands for.
"""

import ctypes
import importlib.util
import ipaddress
import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fabric_client.endpoints import checked_endpoint
from fabric_client.environment import identify
from fabric_client.framework import Current, FrameworkGroup
from fabric_client.joining import join_group
from fabric_client.progress import check_time_to_join
from fabricd.errors import CommunicatorError, InputError, UnavailableError
from fabricd.install import install_line

_COORDINATOR = "jax-coordinator"
_CUDA_PLUGINS = ("jax_cuda12_plugin", "jax_cuda13_plugin")
#: JAX's own, for all ranks to come to its end.
_CLOSE_SECONDS = 300.0
_current = Current("call fabric_client.jax.initialize() first")


def initialize(
    *,
    engine: str | None = None,
    group: str | None = None,
    rank: int | None = None,
    world_size: int | None = None,
    url: str | None = None,
    secret: str | None = None,
    planned_order: bool = False,
    timeout: float = 60.0,
    **options: Any,
) -> FrameworkGroup:
    """Join a group, let its daemon plan, and make JAX one system of all ranks on the planned path.

    Takes the place of ``jax.distributed.initialize``, and like it comes before any computation. Every rank of the job
    calls it once. What is not given is found as by :func:`fabric_client.create_communicator`.

    Args:
        engine: ``"gloo"`` for CPUs, ``"nccl"`` for GPUs; the same on all ranks. None takes NCCL where JAX has a CUDA
            plugin, this process a GPU, and ``JAX_PLATFORMS`` allows it. MPI, which JAX has too, is refused.
        group: the job's name, the same on every rank and on no other job.
        rank: this process's rank, which becomes JAX's process id.
        world_size: number of ranks.
        url: the group's daemon.
        secret: the group's secret, the same on every rank.
        planned_order: number the ranks as the plan finds best: those of a host together, hosts so that a ring crosses
            few switches. Then RANK in the environment is not the rank any more; ``launcher_rank`` of the group is.
        timeout: seconds for all ranks to come, and as long again for JAX to connect them.
        options: more of JAX's own, e.g. ``local_device_ids``, by default one GPU for each of a host's ranks, or
            ``heartbeat_timeout_seconds``.

    Returns:
        The group; use it as a context manager, or close it on every rank.

    Raises:
        InputError: no rank or size, or ones that cannot be; an engine that there is not.
        UnavailableError: JAX is not installed, or of a version that lets nobody choose an address; or it is to use MPI.
        CommunicatorError: JAX has been initialised already.
        UnreachableError, AccessError, GroupError: as by ``create_communicator``.
        EngineError: the plan cannot work here.
    """
    check_time_to_join(timeout)
    if engine not in (None, "gloo", "nccl", "mpi"):
        raise InputError(f"no plans are made for engine {engine!r}", hint="gloo, nccl")
    _check_usable()
    _check_not_mpi(engine)
    identity = identify(group, rank, world_size)
    chosen = engine or _default_engine()
    joined = join_group(identity, "gloo" if chosen == "gloo" else "nccl+gloo", url=url, secret=secret, timeout=timeout)
    made = FrameworkGroup(
        joined,
        f"JAX by {chosen}",
        planned_order=planned_order,
        close_seconds=_CLOSE_SECONDS,
        ignored={"GLOO_SOCKET_IFNAME"},
    )
    made.start(lambda: _begin(made, timeout, options), _end)
    _current.group = made
    return made


def explain() -> str:
    """Return what was planned for this process's group, why, and what is in force.

    Raises:
        CommunicatorError: there is none.
    """
    return current().explain()


def current() -> FrameworkGroup:
    """Return this process's group.

    Raises:
        CommunicatorError: there is none.
    """
    return _current.get()


def shutdown() -> None:
    """End this process's group together with the other ranks; see :meth:`FrameworkGroup.close`."""
    current().close()


def _check_usable() -> None:
    if importlib.util.find_spec("jax") is None:
        raise UnavailableError("JAX is not installed", hint=install_line("jax"))
    import jax
    from jax._src import xla_bridge

    if jax.distributed.is_initialized() or xla_bridge.backends_are_initialized():
        raise CommunicatorError(
            "JAX has been initialised in this process already",
            hint="call this before any computation and before jax.devices(), and once in a process",
        )


def _check_not_mpi(engine: str | None) -> None:
    """Refuse JAX's collectives over MPI, also where JAX's own setting asks for them and would be passed over.

    They start MPI by themselves, and through a library that JAX's packages lack: without it they end the process.
    """
    import jax

    setting = getattr(jax.config, "jax_cpu_collectives_implementation", None)
    if engine == "mpi" or (engine is None and setting == "mpi"):
        raise UnavailableError(
            "JAX's collectives over MPI start MPI by themselves, not on this plan, and need a wrapper library of "
            "MPItrampoline's, which no Python package brings",
            hint='engine="gloo" does the same over the planned network; with such a library in MPITRAMPOLINE_LIB start '
            "the ranks by mpiexec, with the settings of `fabricctl env`, and call jax.distributed.initialize()",
        )


def _default_engine() -> str:
    platforms = os.environ.get("JAX_PLATFORMS", "")
    allowed = not platforms or bool({"cuda", "gpu"} & set(platforms.split(",")))
    plugin = any(importlib.util.find_spec(name) is not None for name in _CUDA_PLUGINS)
    return "nccl" if allowed and plugin and Path("/dev/nvidiactl").exists() else "gloo"


def _begin(made: FrameworkGroup, timeout: float, options: dict[str, Any]) -> None:
    import jax

    address = made.own_address()
    _use_address(address)
    reserved = _reserve(address) if made.rank == 0 else None
    try:
        told = None if reserved is None else f"{address} {reserved.getsockname()[1]}"
        host, port = checked_endpoint(made.meet(_COORDINATOR, told, timeout=timeout), what="JAX's coordinator")
        made.spared.add(port)
        endpoint = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        jax.distributed.initialize(
            coordinator_address=endpoint,
            coordinator_bind_address=endpoint,
            num_processes=made.size,
            process_id=made.rank,
            cluster_detection_method="deactivate",
            initialization_timeout=max(1, int(timeout)),
            **_own_gpu(made, os.environ) | options,
        )
    finally:
        if reserved is not None:
            reserved.close()
    made.lines.append(f"coordinator: at {endpoint}, and on no other address; Gloo of this process uses {address}")


def _own_gpu(made: FrameworkGroup, environ: Mapping[str, str]) -> dict[str, Any]:
    """Return which of a host's GPUs is a rank's: the one of its number there, unless its launcher shows it just one."""
    plan, mine = made.joined.answer.plan, made.joined.part
    beside = [part.rank for part in plan.ranks if part.node == mine.node]
    if plan.engine == "gloo" or len(beside) == 1 or len(environ.get("CUDA_VISIBLE_DEVICES", ",").split(",")) == 1:
        return {}
    return {"local_device_ids": [beside.index(mine.rank)]}


def _end(peacefully: bool) -> None:
    """End JAX's system; after a failure leave it for good, also when the process ends: it would wait for the lost."""
    import jax

    if peacefully:
        jax.distributed.shutdown()
    else:
        _forget()


def _forget() -> None:
    """Have JAX not end its system when the process does, which would take its heartbeat's 100 s and then abort."""
    from jax._src import distributed

    state = distributed.global_state
    for name in ("preemption_sync_manager", "client", "service"):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(getattr(state, name, None)))  # no destructor, ever
        setattr(state, name, None)


def _reserve(address: str) -> socket.socket:
    """Return a socket that holds a free port of an address for the coordinator, which may share it."""
    family = socket.AF_INET6 if ipaddress.ip_address(address).version == 6 else socket.AF_INET
    held = socket.socket(family)
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)  # as gRPC does
    held.bind((address, 0))
    return held


def _use_address(address: str) -> None:
    """Have JAX's Gloo use an address. JAX has no setting for that, but takes another maker of its CPU client.

    Raises:
        UnavailableError: this version of JAX is made otherwise.
    """
    import jax
    import jax.extend.backend

    try:
        from jax._src import distributed, xla_bridge
        from jaxlib import _jax

        make_collectives, make_client = _jax.make_gloo_tcp_collectives, xla_bridge.make_cpu_client
    except (ImportError, AttributeError) as error:
        raise UnavailableError(
            f"JAX {jax.__version__} lets nobody choose the address of its Gloo", hint="JAX 0.10 does"
        ) from error

    def client() -> Any:
        collectives = make_collectives(distributed_client=distributed.global_state.client, hostname=address)
        return make_client(collectives=collectives)

    jax.extend.backend.register_backend_factory("cpu", client, priority=0, fail_quietly=False)
