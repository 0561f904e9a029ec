"""Arrays of other libraries share their memory with what is sent and received."""

import array
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest

from fabric_client import arrays, foreign
from fabric_client.ops import parse_op
from fabricd.errors import InputError

#: The libraries are large and not for every test's process.
FRAMEWORKS = """
import ml_dtypes, numpy as np, torch, jax
jax.config.update("jax_platforms", "cpu")
from fabric_client import arrays, foreign
from fabricd.errors import InputError

tensor = torch.arange(6, dtype=torch.float32).reshape(2, 3)
for view in (arrays.as_input(tensor), arrays.check_writable(tensor, "out")):
    assert type(view) is np.ndarray and view.dtype == np.float32 and view.shape == (2, 3)
    view[0, 0] += 1
assert tensor[0, 0] == 2  # its own memory, twice
assert arrays.as_input(tensor.T).flags.c_contiguous
for refused in (torch.ones(3, dtype=torch.complex64).conj(), torch.ones(3).to_sparse()):
    try:
        arrays.as_input(refused)
        raise AssertionError(refused)
    except InputError as error:
        assert "NumPy cannot take this Tensor" in str(error)
half = torch.ones(4, dtype=torch.bfloat16)
arrays.check_writable(half, "out")[1] = 3
assert half.tolist() == [1, 3, 1, 1] and arrays.as_input(half).dtype == ml_dtypes.bfloat16
for result in (np.ones(3), np.ones(3, ml_dtypes.bfloat16), np.ones(3, np.int64)):
    of = half if result.dtype == ml_dtypes.bfloat16 else tensor
    given = arrays.give(result, of)
    assert isinstance(given, torch.Tensor) and given.tolist() == [1, 1, 1], given
    given[0] = 5
    assert result[0] == 5

def refused(call, words):
    try:
        call()
    except InputError as error:
        assert words in str(error), error
    else:
        raise AssertionError(words)

refused(lambda: arrays.as_input(torch.ones(2, requires_grad=True)), "detach()")
refused(lambda: arrays.as_input(torch.ones(2, device="meta")), "not the host's")
for dtype in ("float32", "bfloat16", "int32", "bool"):
    value = jax.numpy.ones((2, 2), dtype)
    assert arrays.as_input(value).dtype == np.dtype(dtype)
    refused(lambda: arrays.check_writable(value, "out"), "read-only")
    given = arrays.give(np.zeros(3, arrays.as_input(value).dtype), value)
    assert isinstance(given, jax.Array) and given.dtype == value.dtype
print("fine")
"""


def test_tensors_and_jax_arrays():
    done = subprocess.run([sys.executable, "-c", FRAMEWORKS], capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout == "fine\n", done.stderr


def test_buffers():
    raw = bytearray(b"\1\2\3")
    arrays.check_writable(raw, "out")[0] = 9
    assert raw == b"\x09\2\3"
    numbers = array.array("d", [1.0, 2.0])
    assert arrays.as_input(numbers).dtype == np.float64
    assert arrays.as_input(memoryview(b"abc")).tolist() == [97, 98, 99]
    with pytest.raises(InputError, match="read-only"):
        arrays.check_writable(b"abc", "out")
    assert arrays.give(np.ones(2), numbers).tolist() == [1, 1]


def test_memory_of_a_gpu_is_refused_with_the_engine_that_takes_it():
    class Cuda:
        __cuda_array_interface__ = {"shape": (2,), "typestr": "<f4", "data": (4096, False), "version": 3}  # noqa: RUF012

    class OnDevice:
        def __dlpack__(self):
            raise AssertionError("not asked for")

        def __dlpack_device__(self):
            return (2, 0)

    for value, where in ((Cuda(), "a GPU's memory"), (OnDevice(), "CUDA memory")):
        with pytest.raises(InputError, match=rf'in {where}, and the mpi engine moves host memory .*engine="nccl"'):
            arrays.as_input(value)


def test_what_is_no_array():
    for value in ([1, 2], "text", None, 3, object(), {"a": 1}):
        with pytest.raises(InputError, match="neither the buffer protocol nor DLPack"):
            foreign.as_numpy(value, "array")


def test_bfloat16_is_reduced_as_a_float():
    for op, fine in (("sum", True), ("average", True), ("max", True), ("logical_and", False), ("bitwise_or", False)):
        dtype = np.dtype(ml_dtypes.bfloat16)
        if fine:
            arrays.check_reducible(parse_op(op), dtype)
        else:
            with pytest.raises(InputError, match="has no meaning"):
                arrays.check_reducible(parse_op(op), dtype)
    with pytest.raises(InputError, match="has no meaning"):
        arrays.check_reducible(parse_op("sum"), np.dtype(ml_dtypes.float8_e4m3fn))
