"""The NCCL engine on real GPUs: the contract of collectives, bandwidth, and a rank that is killed.

    python -m tests.device.nccl              # one host: starts a daemon, and a rank for each GPU
    srun python -m tests.device.nccl         # several hosts: where RANK is set (torchrun, or fabricctl run -n N), or
                                             # SLURM_PROCID, this process is a rank of the group that FABRICD_URL serves

Needs the extras [daemon,cuda12,test-engines] and the repository. Prints a line for each part, and ends with 1 when one
is wrong. Without a GPU it says "not run" and ends with 77. This project's tests have no GPU, so they never ran it; the
same contract runs there on a library that moves host memory, see tests/nccl_shim.

Bandwidth is reckoned as nccl-tests does it (doc/PERFORMANCE.md): of an all_reduce of S bytes that takes t seconds on n
ranks, the bus bandwidth is S / t * 2 * (n - 1) / n. Beside it stands what CuPy's binding reaches without this client.
"""

import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from fabric_client import Communicator, RankLostError, UnavailableError, create_communicator
from tests.contract.rank_collectives import Contract
from tests.contract.subject import Subject
from tests.support.daemon import daemon
from tests.support.ranks import new_group, ranks

NOT_RUN = 77
_SIZES = (1 << 10, 1 << 20, 1 << 24, 1 << 28)
_TURNS, _WARM_UP = 20, 5


def subject() -> Subject:
    """CuPy's arrays, for the contract."""
    import cupy

    return Subject(
        name="cuda",
        create=lambda: create_communicator(engine="nccl"),
        numeric="?bBiIlLqQefdFD",
        moved=("H", "h"),
        put=cupy.array,
        get=lambda value: cupy.asnumpy(value) if isinstance(value, cupy.ndarray) else value,
        is_array=lambda value: isinstance(value, cupy.ndarray),
        tags=False,
        wide16=False,
        crosses=False,
    )


def contract(comm: Communicator) -> bool:
    """Check every collective against NumPy."""
    cells = Contract(comm, subject())
    with np.errstate(over="ignore"):
        cells.run()
    tell(comm, f"contract: {cells.cells} cells, {len(cells.wrong)} wrong {cells.wrong[:5]}")
    return not cells.wrong


def bandwidth(comm: Communicator) -> bool:
    """Print the bus bandwidth of all_reduce by size, through this client and beside it."""
    import cupy

    handle = comm._runner.engine.comm._raw  # type: ignore[attr-defined]  # the comparison needs the binding itself
    for size in _SIZES:
        array = cupy.zeros(size // 4, cupy.float32)
        stream = cupy.cuda.get_current_stream()

        def bare(array: Any = array, stream: Any = stream) -> None:
            handle.allReduce(array.data.ptr, array.data.ptr, array.size, 7, 0, stream.ptr)  # float32, sum

        own = seconds_of(lambda array=array: comm.all_reduce(array, out=array, async_op=True), comm)
        beside = seconds_of(bare, comm)
        factor = 2 * (comm.size - 1) / comm.size
        tell(
            comm,
            f"all_reduce of {size:>9} B: busbw {size / own * factor / 1e9:8.2f} GB/s, {own * 1e6:8.1f} us; "
            f"by the binding alone {size / beside * factor / 1e9:8.2f} GB/s; ratio {beside / own:.2f}",
        )
    return True


def seconds_of(start: Callable[[], Any], comm: Communicator) -> float:
    """Return the time that each of many operations takes, one behind the other in the current stream."""
    import cupy

    for _ in range(_WARM_UP):
        start()
    cupy.cuda.get_current_stream().synchronize()
    comm.barrier()
    began = time.perf_counter()
    for _ in range(_TURNS):
        start()
    cupy.cuda.get_current_stream().synchronize()
    return (time.perf_counter() - began) / _TURNS


def killed(comm: Communicator) -> bool:
    """The last rank is killed while the others wait for it; they must hear of it, and their streams be free."""
    import cupy

    if comm.size == 1:
        tell(comm, "killed rank: not run, there is one rank")
        return True
    if comm.rank == comm.size - 1:
        time.sleep(1.0)
        os.kill(os.getpid(), signal.SIGKILL)
    began = time.monotonic()
    try:
        comm.all_reduce(cupy.ones(1000), timeout=60)
    except RankLostError as error:
        cupy.cuda.get_current_stream().synchronize()
        tell(comm, f"killed rank: after {time.monotonic() - began:.1f} s: {error}")
        return True
    tell(comm, "killed rank: nobody noticed")
    return False


def tell(comm: Communicator, line: str) -> None:
    """Print a line, once a job."""
    if comm.rank == 0:
        print(line, flush=True)


def run_rank() -> int:
    """Run all parts as one rank."""
    comm = create_communicator(engine="nccl")
    tell(comm, comm.explain())
    parts = [contract(comm), bandwidth(comm), killed(comm)]
    return 0 if all(parts) else 1


def run_host(gpus: int) -> int:
    """Run a rank for each GPU of this host; the last one is killed at the end, as it should be."""
    with (
        tempfile.TemporaryDirectory() as name,
        daemon(Path(name)) as running,
        ranks(Path(name), gpus, ["-m", "tests.device.nccl"], new_group(running.url)) as job,
    ):
        ended = job.wait(900)
    print(ended[0].out)
    wrong = [one for one in ended if one.status not in (0, -signal.SIGKILL)]
    for one in wrong:
        print(f"rank {one.rank} ended with {one.status}:\n{one.err}")
    return 1 if wrong else 0


def main() -> int:
    """Say "not run", or run."""
    try:
        from fabric_client.engine.cuda import count_devices
        from fabric_client.engine.nccl_start import load_binding

        load_binding()
        gpus = count_devices()
    except (ImportError, UnavailableError) as error:
        print(f"not run: {error}")
        return NOT_RUN
    return run_rank() if {"RANK", "SLURM_PROCID"} & set(os.environ) else run_host(gpus)


if __name__ == "__main__":
    sys.exit(main())
