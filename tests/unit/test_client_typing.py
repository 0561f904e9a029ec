"""What a user's type checker says: what comes back has the type of what went in. mypy --strict reads a script."""

import subprocess
import sys
from pathlib import Path

_ROOT = Path(__file__).parents[2]

_SCRIPT = '''
from typing import Any, assert_type

import numpy as np
from numpy.typing import NDArray

from fabric_client import Communicator, ReduceOp, Verification, Work, create_communicator


class Tensor:
    """As other libraries have it."""

    shape: tuple[int, ...]
    dtype: str

    def __len__(self) -> int:
        return 0


def train(gradient: NDArray[np.float32], tensor: Tensor, flag: bool) -> None:
    with create_communicator() as comm:
        assert_type(comm, Communicator)
        assert_type(comm.all_reduce(gradient), NDArray[np.float32])
        assert_type(comm.all_reduce(gradient, "sum", out=gradient), NDArray[np.float32])
        assert_type(comm.all_reduce(tensor, ReduceOp.MAX), Tensor)
        assert_type(comm.all_reduce(gradient, async_op=True), Work[NDArray[np.float32]])
        assert_type(comm.all_reduce(gradient, async_op=True).wait(10), NDArray[np.float32])
        assert_type(comm.all_reduce(gradient, async_op=flag), Any)
        assert_type(comm.all_reduce(bytearray(4)), Any)
        assert_type(comm.all_gather(np.zeros(3)), NDArray[np.float64])  # of one axis more
        assert_type(comm.all_gather(tensor), Tensor)
        assert_type(comm.all_gather_v(tensor, counts=[1], async_op=True), Work[Tensor])
        assert_type(comm.reduce_scatter(gradient), NDArray[np.float32])
        assert_type(comm.reduce_scatter_v(tensor, [1, 2]), Tensor)
        assert_type(comm.all_to_all(gradient), NDArray[np.float32])
        assert_type(comm.all_to_all_v(tensor, [1, 2], async_op=True), Work[Tensor])
        assert_type(comm.reduce(gradient, root=1), NDArray[np.float32] | None)  # None beside the root
        assert_type(comm.gather(gradient), NDArray[np.float32] | None)
        assert_type(comm.gather_v(tensor, 0), Tensor | None)
        assert_type(comm.gather(tensor, async_op=True).result(), Tensor | None)
        assert_type(comm.scatter(gradient, 0), NDArray[np.float32])
        assert_type(comm.scatter(None, 0, out=gradient), NDArray[np.float32])
        assert_type(comm.scatter_v(tensor, [1, 2]), Tensor)
        assert_type(comm.broadcast(tensor), Tensor)
        assert_type(comm.broadcast(bytearray(4), async_op=True), Work[bytearray])
        assert_type(comm.recv(gradient, 1), NDArray[np.float32])
        assert_type(comm.sendrecv(tensor, 1, gradient, 1), NDArray[np.float32])
        assert_type(comm.send(tensor, 1, async_op=True), Work[None])
        comm.barrier()
        assert_type(comm.barrier(async_op=True), Work[None])
        assert_type(comm.split(0), Communicator | None)
        assert_type(comm.dup(), Communicator)
        assert_type(comm.verify(), Verification)
        assert_type(comm.stale, tuple[str, ...])
'''

_WRONG = """
from fabric_client import create_communicator

create_communicator(engine=3)
comm = create_communicator()
comm.all_reduce([1, 2], oop="sum")
comm.gather(bytearray(1), root="0")
comm.barrier(async_op=True).wait().real
"""


def _mypy(tmp_path, source):
    script = tmp_path / "user.py"
    script.write_text(source)
    options = ["--strict", "--config-file=", f"--cache-dir={tmp_path / 'cache'}", "--follow-imports=silent"]
    return subprocess.run(
        [sys.executable, "-m", "mypy", *options, str(script)],
        env={"MYPYPATH": f"{_ROOT}:{_ROOT}/client", "PATH": ""},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_a_users_script_in_strict_mode(tmp_path):
    done = _mypy(tmp_path, _SCRIPT)
    assert done.returncode == 0, done.stdout + done.stderr


def test_what_cannot_be_is_found_before_it_runs(tmp_path):
    done = _mypy(tmp_path, _WRONG)
    found = {line.split(":")[1] for line in done.stdout.splitlines() if "error:" in line}
    assert found == {"4", "6", "7", "8"}, done.stdout
