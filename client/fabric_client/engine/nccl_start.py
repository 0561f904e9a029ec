"""Starting the NCCL engine from a plan: the rank's GPU, the settings, the id, the communicator."""

import json
import os
import time
from collections.abc import Callable, Mapping
from typing import Any

from fabric_client.blocking import BlockingCall
from fabric_client.engine.device import Device
from fabric_client.engine.nccl import NcclEngine
from fabric_client.engine.nccl_comm import NcclComm, Watchdog
from fabric_client.engine.nccl_errors import map_error
from fabric_client.engine.nccl_log import logging_networks
from fabric_client.engine.settings import choose_settings
from fabric_client.joining import Joined
from fabric_client.progress import wait_for
from fabricd.errors import (
    EngineError,
    FabricError,
    GroupAbortedError,
    GroupConflictError,
    GroupTimeoutError,
    RankLostError,
    UnavailableError,
    UnreachableError,
)
from fabricd.install import install_line
from fabricd.model.plan import GroupPlan
from fabricd.units import format_ranges

_ID_BYTES = 128  #: NCCL_UNIQUE_ID_BYTES; source: nccl.h
_ID_KEY = "nccl/id"
_RANK_KEY = "nccl/rank/{}"
#: Fences of the group's daemon: the first brings the id and everybody's GPU, the second is the farewell.
_FIRST_FENCE, _FAREWELL_FENCE = 0, 1
#: After so long without an answer the daemon counts as gone; ranks that have not come yet are waited for.
_FAREWELL_SECONDS = 5.0


def load_binding() -> Any:
    """Return CuPy's binding of NCCL.

    Raises:
        UnavailableError: CuPy or NCCL is not installed; the hint is the line to run.
    """
    import warnings

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that NCCL is missing is said below
            from cupy.cuda import nccl
    except ImportError as error:
        raise UnavailableError(f"the NCCL engine needs CuPy: {error}", hint=install_line("cuda12")) from error
    if not nccl.available:
        raise UnavailableError(
            "the NCCL engine needs NCCL, and CuPy finds no libnccl.so.2",
            hint=f"{install_line('cuda12')}; or name its folder in LD_LIBRARY_PATH",
        )
    return nccl


def start_nccl(
    joined: Joined, device: int | Device | None, *, timeout: float, operation_timeout: float | None
) -> NcclEngine:
    """Start NCCL in a complete group and return the engine.

    NCCL reads its variables when it needs them, once in a process: what the plan sets stays in the environment.

    Args:
        joined: the group.
        device: this rank's GPU, by its number among those that this process sees; None finds it out.
        timeout: seconds for all of it.
        operation_timeout: seconds that a call to NCCL may take afterwards.

    Raises:
        UnavailableError: no CuPy, NCCL or GPU.
        InputError: a GPU that is not there.
        EngineError: settings that cannot work here, two ranks on one GPU, or NCCL did not start.
        FabricError: what became of the group meanwhile.
    """
    deadline = time.monotonic() + timeout
    rank, plan = joined.answer.rank, joined.answer.plan
    binding = load_binding()
    gpu = _device(device, plan, rank)
    chosen, notes = choose_settings(joined.part.settings, joined.view, os.environ)
    os.environ.update(chosen)
    with logging_networks(os.environ) as log:
        raw = _connect(joined, binding, gpu, deadline)
        failure = joined.membership.failure
        comm = NcclComm(binding, raw, gpu, Watchdog(failure, call_limit=operation_timeout))
        lines = (f"NCCL {_version(binding)} through CuPy, on {gpu.name}", *notes)
        engine = NcclEngine(comm, rank, plan.size, farewell=_farewell_of(joined), log=log, lines=lines)
        try:
            left = max(1.0, deadline - time.monotonic())
            wait_for(engine.barrier(), lambda: failure("the start of NCCL"), timeout=left, what="the start of NCCL")
        except BaseException:
            engine.abandon()
            raise
    return engine


def _connect(joined: Joined, binding: Any, gpu: Device, deadline: float) -> Any:
    """Return NCCL's communicator of all ranks."""
    rank, plan = joined.answer.rank, joined.answer.plan
    unique = _meet(joined, binding, gpu, deadline)

    def initialise() -> Any:
        gpu.use()
        return binding.NcclCommunicator(plan.size, unique, rank)

    call: BlockingCall[Any] = BlockingCall(initialise, "ncclCommInitRankConfig")
    try:
        return call.wait(lambda: joined.membership.failure("the start of NCCL"), deadline=deadline)
    except (binding.NcclError, KeyError) as error:
        raise map_error(error, "the start of NCCL") from error


def _device(device: int | Device | None, plan: GroupPlan, rank: int) -> Device:
    if device is not None and not isinstance(device, int):
        device.use()
        return device
    from fabric_client.engine.cuda import open_device

    hosts = {part.rank: part.host_index for part in plan.ranks}
    beside = [other for other in sorted(hosts) if hosts[other] == hosts[rank]]
    return open_device(device, os.environ, beside.index(rank))


def _meet(joined: Joined, binding: Any, gpu: Device, deadline: float) -> bytes:
    """Tell the other ranks who this one is, and return the id of the communicator that the first one drew.

    Raises:
        EngineError: two ranks on one GPU, or of different versions of NCCL; each rank raises the same.
        GroupError: what became of the group.
    """
    answer, view = joined.answer, joined.view
    host = view.boot_id or view.hostname
    mine = {"host": host, "name": view.hostname, "gpu": gpu.identity, "nccl": _version(binding)}
    keys = {_RANK_KEY.format(answer.rank): json.dumps(mine)}
    if answer.rank == 0:
        try:
            keys[_ID_KEY] = binding.get_unique_id().hex()
        except (binding.NcclError, KeyError) as error:
            raise map_error(error, "ncclGetUniqueId") from error
    told = joined.rendezvous.fence(_FIRST_FENCE, keys, timeout=max(1.0, deadline - time.monotonic()))
    try:
        ranks = [json.loads(told[_RANK_KEY.format(rank)]) for rank in range(answer.size)]
        unique = bytes.fromhex(told[_ID_KEY])
        check_ranks(ranks)
    except (KeyError, ValueError, TypeError) as error:
        raise EngineError("the ranks told each other something else: are they of one version?") from error
    if len(unique) != _ID_BYTES:
        raise EngineError(f"rank 0 told an NCCL id of {len(unique)} bytes, not {_ID_BYTES}")
    return unique


def check_ranks(ranks: list[Mapping[str, str]]) -> None:
    """Refuse what NCCL would hang on, or answer with a code.

    Args:
        ranks: of each rank: "host", the host's "name", "gpu", version of "nccl".

    Raises:
        EngineError: names the ranks.
    """
    owners: dict[tuple[str, str], list[int]] = {}
    versions: dict[str, list[int]] = {}
    for rank, one in enumerate(ranks):
        owners.setdefault((one["host"], one["gpu"]), []).append(rank)
        versions.setdefault(one["nccl"], []).append(rank)
    for (_, gpu), found in owners.items():
        if len(found) > 1:
            name = ranks[found[0]]["name"]
            raise EngineError(
                f"ranks {format_ranges(found)} are all on one GPU, {gpu} of {name}",
                hint="start one rank for each GPU; LOCAL_RANK or CUDA_VISIBLE_DEVICES says which is whose",
                details={"ranks": found},
            )
    if len(versions) > 1:
        told = "; ".join(f"{version} at rank {format_ranges(found)}" for version, found in versions.items())
        raise EngineError(f"the ranks have different versions of NCCL: {told}", hint="install the same everywhere")


class _Farewell:
    """The group's last fence; see :class:`fabric_client.pending.Pending`."""

    def __init__(self, call: BlockingCall[object]) -> None:
        self._call = call

    def test(self) -> bool:
        """See the protocol."""
        if not self._call.ended():
            return False
        try:
            self._call.result()
        except (RankLostError, GroupAbortedError, GroupConflictError):
            raise
        except FabricError:
            return True  # the daemon is away: NCCL ends well without it
        return True


def _farewell_of(joined: Joined) -> Callable[[], _Farewell]:
    return lambda: _Farewell(BlockingCall(lambda: _meet_again(joined), "farewell fence"))


def _meet_again(joined: Joined) -> None:
    """Return when every rank has come, or nobody is there to tell."""
    while True:
        try:
            joined.rendezvous.fence(_FAREWELL_FENCE, {}, timeout=_FAREWELL_SECONDS)
        except GroupTimeoutError as error:
            if isinstance(error.__cause__, UnreachableError):
                return
        else:
            return


def _version(binding: Any) -> str:
    """Return e.g. ``"2.30.4"``. Source: NCCL 2.30, nccl.h, NCCL_VERSION."""
    code = int(binding.get_version())
    major, rest = divmod(code, 10000 if code >= 10000 else 1000)
    return f"{major}.{rest // 100}.{rest % 100}"
