"""The contract of collectives, over real MPI ranks that met through a real daemon."""

import json

import numpy as np
import pytest

from fabric_client.ops import ReduceOp
from tests.contract.expected import combined, data, differs
from tests.contract.subject import SUBJECTS
from tests.support.ranks import new_group, ranks

pytestmark = pytest.mark.mpi


@pytest.mark.timeout(240)
@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_every_collective_type_operator_root_and_shape(cells_of, size):
    assert cells_of("mpi", size) > 7500


def test_the_contract_itself_sees_a_wrong_result():
    for dtype in SUBJECTS["mpi"].numeric:
        arrays = [data(rank, (3, 5), dtype) for rank in range(3)]
        assert (arrays[0] != arrays[1]).any()
        op = ReduceOp.MAX if dtype in "?" else ReduceOp.SUM
        expected, allowed = combined(arrays, op)
        good = expected.astype(dtype)
        assert differs(good, expected, allowed, (3, 5), dtype) == ""
        bad = good.copy()
        bad[1, 2] = not bad[1, 2] if dtype == "?" else bad[1, 2] + 1
        assert differs(bad, expected, allowed, (3, 5), dtype) == "1 of 15 elements wrong"
        assert "instead of" in differs(good[:2], expected, allowed, (3, 5), dtype)
        assert "instead of" in differs(None, expected, allowed, (3, 5), dtype)
    nan = np.full((3, 5), np.nan)
    assert differs(nan, np.zeros((3, 5)), np.full((3, 5), 1e-9), (3, 5), "f8") == "15 of 15 elements wrong"


def test_wrong_arguments_are_refused_before_anything_is_sent(tmp_path, url):
    code = """
import json, numpy as np
from fabric_client import InputError, create_communicator

comm = create_communicator()
calls = {
    "shape": lambda: comm.all_reduce(np.ones(3), out=np.ones(4)),
    "dtype": lambda: comm.all_reduce(np.ones(3), out=np.ones(3, "f4")),
    "order": lambda: comm.all_reduce(np.ones((2, 2)), out=np.ones((2, 4))[:, ::2]),
    "list": lambda: comm.all_reduce([1, 2]),
    "op": lambda: comm.all_reduce(np.ones(3), "add"),
    "average": lambda: comm.all_reduce(np.ones(3, int), "average"),
    "byte order": lambda: comm.all_reduce(np.ones(3, ">f8")),
    "object": lambda: comm.broadcast(np.array([None])),
    "axis": lambda: comm.reduce_scatter(np.ones(3)),
    "blocks": lambda: comm.all_to_all(np.ones((5, 2))),
    "root": lambda: comm.broadcast(np.ones(3), root=2),
    "negative root": lambda: comm.reduce(np.ones(3), root=-1),
    "root of a wrong type": lambda: comm.broadcast(np.ones(3), root=0.0),
    "several roots": lambda: comm.broadcast(np.ones(3), root=np.array([0, 1])),
    "op of a wrong type": lambda: comm.all_reduce(np.ones(3), ["sum"]),
    "dest of a wrong type": lambda: comm.send(np.ones(3), "1"),
    "tag of a wrong type": lambda: comm.recv(np.ones(3), 1 - comm.rank, tag=None),
    "self": lambda: comm.send(np.ones(3), comm.rank),
    "dest": lambda: comm.send(np.ones(3), 7),
    "tag": lambda: comm.recv(np.ones(3), 1 - comm.rank, tag=-1),
    "rows": lambda: comm.all_gather_v(np.float64(3)),
    "own count": lambda: comm.all_gather_v(np.ones(3), counts=[2, 2]),
    "counts": lambda: comm.all_gather_v(np.ones(3), counts=[3]),
    "negative counts": lambda: comm.reduce_scatter_v(np.ones(3), [4, -1]),
    "counts of all": lambda: comm.reduce_scatter_v(np.ones(3), [1, 1]),
    "send counts": lambda: comm.all_to_all_v(np.ones(3), [1.0, 2.0]),
    "no out": lambda: comm.scatter(np.ones((2, 2)), root=1 - comm.rank),
    "no counts": lambda: comm.scatter_v(np.ones(2), root=comm.rank),
    "blocks of the root": lambda: comm.scatter(np.ones(3), root=comm.rank),
    "color": lambda: comm.split(-1),
    "key": lambda: comm.split(0, None),
    "twice": lambda: comm.subgroup([0, 0]),
    "nobody": lambda: comm.subgroup([]),
    "nothing of that rank": lambda: comm.subgroup([2]),
    "one rank, not a list of them": lambda: comm.subgroup(0),
    "timeout": lambda: comm.barrier(timeout="a"),
    "timeout of one in the background": lambda: comm.all_reduce(np.ones(3), timeout="a", async_op=True),
    "timeout of a split": lambda: comm.dup(timeout=[]),
    "timeout of the end": lambda: comm.close(timeout="a"),
    "timeout of a new plan": lambda: comm.rebuild(timeout="a"),
    "asynchronous": lambda: comm.all_reduce("text", async_op=True),
    "on a GPU": lambda: comm.all_reduce(type("Gpu", (), {"__cuda_array_interface__": {}})()),
    "frozen": lambda: comm.recv(np.broadcast_to(np.ones(1), (3,)), 1 - comm.rank),
}
said = {}
for name, call in calls.items():
    try:
        call()
    except InputError as error:
        said[name] = str(error)
assert comm.all_reduce(np.float64(1)) == comm.size  # the ranks are in step
comm.broadcast(np.ones(3), root=np.int64(1))
comm.close()
print(json.dumps([sorted(calls), said]))
"""
    with ranks(tmp_path, 2, ["-c", code], new_group(url)) as job:
        for rank in job.wait(30):
            names, said = rank.json()
            assert sorted(said) == names
            assert json.dumps(said).isascii()
