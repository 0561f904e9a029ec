"""The contract of collectives over PyTorch's Gloo, on ranks that met through a real daemon."""

import pytest

pytestmark = pytest.mark.frameworks


@pytest.mark.timeout(240)
@pytest.mark.parametrize("size", [1, 2, 5])
def test_every_collective_type_operator_root_and_shape(cells_of, size):
    assert cells_of("gloo", size) > 3500
