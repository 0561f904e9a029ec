"""Arrays and operators are checked before anything is sent."""

import numpy as np
import pytest

from fabric_client.arrays import apart, as_input, as_output, check_writable, same_memory
from fabric_client.operations import check_leading_axis
from fabric_client.ops import ReduceOp, check_reducible, parse_op
from fabricd.errors import InputError


def test_inputs_come_in_c_order():
    array = np.arange(12.0).reshape(3, 4)
    assert as_input(array) is array
    strided = as_input(array[:, ::2])
    assert strided.flags.c_contiguous
    assert (strided == array[:, ::2]).all()
    assert as_input(np.float32(3)).shape == ()
    assert as_input(np.empty(0)).size == 0
    for wrong in ([1, 2], 3.0, "text", None):
        with pytest.raises(InputError, match="not an array"):
            as_input(wrong)
    with pytest.raises(InputError, match="Python objects"):
        as_input(np.array([object()]))


def test_outputs_must_fit_as_they_lie():
    out = np.empty((2, 3), "f4")
    assert as_output(out, (2, 3), np.dtype("f4")) is out
    for shape, dtype in [((3, 2), "f4"), ((6,), "f4"), ((2, 3), "f8"), ((2, 3), "i4"), ((2, 3), ">f4")]:
        with pytest.raises(InputError, match="out is float32 of shape"):
            as_output(out, shape, np.dtype(dtype))
    with pytest.raises(InputError, match="not contiguous"):
        check_writable(np.empty((4, 4))[:, :2], "out")
    frozen = np.empty(3)
    frozen.flags.writeable = False
    with pytest.raises(InputError, match="read-only"):
        check_writable(frozen, "out")
    with pytest.raises(InputError, match="is a list"):
        check_writable([1.0], "out")


def test_subclasses_are_taken_and_masks_are_not_lost():
    mine = np.array([1.0, 2.0]).view(type("Mine", (np.ndarray,), {}))
    for taken in (as_input(mine), check_writable(mine, "out")):  # its memory, without its ways of slicing
        assert type(taken) is np.ndarray
        assert np.shares_memory(taken, mine)
    masked = np.ma.masked_array([1.0, 2.0], [False, True])
    for check in (as_input, check_writable):
        with pytest.raises(InputError, match=r"out is masked, and masks are not sent .*filled"):
            check(masked, "out")


def test_the_first_axis_counts_ranks():
    check_leading_axis(np.empty((4, 2)), 4, "all_to_all")
    for wrong in (np.empty(()), np.empty(3), np.empty((2, 4))):
        with pytest.raises(InputError, match=r"all_to_all takes .* 4 ranks"):
            check_leading_axis(wrong, 4, "all_to_all")


def test_what_would_be_overwritten_is_copied():
    array = np.arange(8.0)
    assert apart(array, np.empty(8), allowed=None) is array
    assert apart(array, array, allowed=array) is array
    view = array[:]
    assert apart(array, view, allowed=view) is view  # the same bytes by another object: engines ask by ``is``
    assert apart(array, array, allowed=None) is not array
    assert apart(array[1:5], array[0:4], allowed=array[0:4]) is not array
    assert same_memory(array[2:4], array.reshape(4, 2)[1:2])
    assert not same_memory(array[2:4], array[2:5])


def test_operators_by_name():
    assert parse_op("sum") is ReduceOp.SUM
    assert parse_op(ReduceOp.MAX) is ReduceOp.MAX
    with pytest.raises(InputError, match=r"no operator called 'avg'.*average"):
        parse_op("avg")


@pytest.mark.parametrize(
    ("op", "dtype", "fine"),
    [
        ("sum", "f4", True), ("sum", "?", False), ("average", "i4", False), ("average", "c8", True),
        ("min", "c8", False), ("min", "?", True), ("bitwise_and", "f8", False), ("bitwise_xor", "u1", True),
        ("logical_or", "f4", False), ("logical_or", "?", True), ("sum", "M8[s]", False), ("max", "S4", False),
    ],
)  # fmt: skip
def test_operators_without_meaning_are_refused(op, dtype, fine):
    if fine:
        check_reducible(parse_op(op), np.dtype(dtype))
    else:
        with pytest.raises(InputError, match="has no meaning"):
            check_reducible(parse_op(op), np.dtype(dtype))
