"""The contract of collectives over PyTorch's Gloo, on ranks that met through a real daemon."""

import pytest

from tests.support.daemon import daemon
from tests.support.ranks import new_group, ranks

pytestmark = pytest.mark.frameworks


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    with daemon(tmp_path_factory.mktemp("contract")) as running:
        yield running.url


@pytest.mark.timeout(240)
@pytest.mark.parametrize("size", [1, 2, 5])
def test_every_collective_type_operator_root_and_shape(tmp_path, url, size):
    with ranks(tmp_path, size, ["-m", "tests.contract.rank_collectives", "gloo"], new_group(url)) as job:
        reports = [rank.json() for rank in job.wait(200)]
    assert [report["wrong"] for report in reports] == [[]] * size
    assert {report["cells"] for report in reports} == {reports[0]["cells"]}
    assert reports[0]["cells"] > 3500
