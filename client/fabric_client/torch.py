"""PyTorch's process groups on the best path.

::

    import torch.distributed as dist
    import fabric_client.torch

    with fabric_client.torch.init_process_group() as group:  # rank, size and daemon from the usual environment
        print(group.explain())
        dist.all_reduce(tensor)

PyTorch moves the data, by Gloo or NCCL; the daemon chooses the network and the ranks meet there: rank 0's store listens
on its address of that network alone, and the others learn it from the daemon, over their authenticated connections.
"""

import importlib.util
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from fabric_client.environment import identify
from fabric_client.framework import Current, FrameworkGroup
from fabric_client.joining import join_group
from fabric_client.progress import check_time_to_join
from fabricd.errors import CommunicatorError, InputError, UnavailableError
from fabricd.install import install_line

if TYPE_CHECKING:
    from torch.distributed import TCPStore

_STORE = "torch-store"
#: A rank that ends early takes its store along, if it is rank 0; PyTorch itself waits for nobody.
_CLOSE_SECONDS = 10.0
_current = Current("call fabric_client.torch.init_process_group() first")


def init_process_group(
    backend: str | None = None,
    *,
    group: str | None = None,
    rank: int | None = None,
    world_size: int | None = None,
    url: str | None = None,
    secret: str | None = None,
    planned_order: bool = False,
    timeout: float = 60.0,
    operation_timeout: float | None = None,
    **options: Any,
) -> FrameworkGroup:
    """Join a group, let its daemon plan, and make PyTorch's default process group on the planned path.

    Takes the place of ``torch.distributed.init_process_group``; everything else of ``torch.distributed`` is used as
    ever, also ``new_group``. Every rank of the job calls it once. What is not given is found as by
    :func:`fabric_client.create_communicator`.

    Args:
        backend: ``"gloo"``, ``"nccl"``, or both by device as PyTorch writes it, ``"cpu:gloo,cuda:nccl"``. None takes
            both where this process has a GPU and PyTorch has NCCL, else Gloo. All ranks need the same.
        group: the job's name, the same on every rank and on no other job.
        rank: this process's rank.
        world_size: number of ranks.
        url: the group's daemon.
        secret: the group's secret, the same on every rank.
        planned_order: number the ranks as the plan finds best: those of a host together, hosts so that a ring crosses
            few switches. Then RANK in the environment is not the rank any more; ``launcher_rank`` of the group is.
        timeout: seconds for all ranks to come, and as long again for PyTorch to connect them.
        operation_timeout: of each collective, in seconds; None takes PyTorch's.
        options: more of PyTorch's own, e.g. ``device_id``.

    Returns:
        The group; use it as a context manager, or close it on every rank.

    Raises:
        InputError: no rank or size, or ones that cannot be; a backend that there is not.
        UnavailableError: PyTorch is not installed, or lacks the backend; the hint says what to do.
        CommunicatorError: this process has a process group already.
        UnreachableError, AccessError, GroupError: as by ``create_communicator``.
        EngineError: the plan cannot work here.
    """
    check_time_to_join(timeout)
    engine, name = _engine(backend)
    identity = identify(group, rank, world_size)
    joined = join_group(identity, engine, url=url, secret=secret, timeout=timeout)
    made = FrameworkGroup(joined, f"PyTorch by {name}", planned_order=planned_order, close_seconds=_CLOSE_SECONDS)
    made.start(lambda: _begin(made, name, timeout, operation_timeout, options), _end)
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


def destroy_process_group() -> None:
    """End this process's group together with the other ranks; see :meth:`FrameworkGroup.close`."""
    current().close()


def _engine(backend: str | None) -> tuple[str, str]:
    """Return the engine to plan for, and the backend in PyTorch's words.

    Raises:
        UnavailableError: not installed.
        InputError: no such backend.
        CommunicatorError: there is a process group.
    """
    if importlib.util.find_spec("torch") is None:
        raise UnavailableError("PyTorch is not installed", hint=install_line("torch"))
    import torch
    import torch.distributed as dist

    if not dist.is_available():
        raise UnavailableError("this PyTorch was built without torch.distributed", hint="install another build")
    if dist.is_initialized():
        raise CommunicatorError(
            "this process has a default process group already", hint="destroy it before, or start a new process"
        )
    if backend is None:
        both = torch.cuda.is_available() and dist.is_nccl_available()
        backend = "cpu:gloo,cuda:nccl" if both else "gloo"
    wanted = {part.rpartition(":")[2] for part in backend.split(",")}
    unknown = sorted(wanted - {"gloo", "nccl"})
    if unknown:
        raise InputError(f"no plans are made for backend {unknown[0][:40]!r}", hint="gloo, nccl, cpu:gloo,cuda:nccl")
    if "nccl" in wanted and not dist.is_nccl_available():
        raise UnavailableError("this PyTorch was built without NCCL", hint="use backend 'gloo', or a build for CUDA")
    return ("nccl+gloo" if "nccl" in wanted else "gloo"), backend


def _begin(
    made: FrameworkGroup, backend: str, timeout: float, operation_timeout: float | None, options: dict[str, Any]
) -> None:
    import torch.distributed as dist

    store = _store(made, timeout)
    limit = {} if operation_timeout is None else {"timeout": timedelta(seconds=operation_timeout)}
    dist.init_process_group(backend, store=store, rank=made.rank, world_size=made.size, **limit, **options)


def _end(peacefully: bool) -> None:
    """End PyTorch's groups; after a failure they are left, for those with work under way would wait for it."""
    import torch.distributed as dist

    if peacefully and dist.is_initialized():
        dist.destroy_process_group()


def _store(made: FrameworkGroup, timeout: float) -> "TCPStore":
    """Return the store by which PyTorch's backends connect; tell where it is."""
    from fabric_client.torch_store import connect_store

    def meet(told: str | None) -> str:
        return made.meet(_STORE, told, timeout=timeout)

    store, host, port = connect_store(made.own_address(), made.rank, made.size, meet, timeout=timeout)
    made.spared.add(port)
    made.lines.append(f"store: on {host} port {port}, where rank 0 listens on no other address")
    return store
