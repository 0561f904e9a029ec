"""The contract of collectives over the NCCL engine: CuPy's real binding, on the tests' library.

Proves counts, types, layouts, groups and order of calls; says nothing about GPUs and their speed.
"""

import pytest

pytest.importorskip("cupy_backends", reason="CuPy is not installed")


@pytest.mark.timeout(240)
@pytest.mark.parametrize("size", [1, 2, 5])
def test_every_collective_type_operator_root_and_shape(cells_of, size):
    assert cells_of("nccl", size) > 4000
