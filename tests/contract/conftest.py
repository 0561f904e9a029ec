"""The contract, played by the ranks of an engine."""

import pytest

from tests.support.ranks import new_group, ranks


@pytest.fixture
def cells_of(tmp_path, url):
    """Plays the whole contract; returns how many cells of it each rank found right."""

    def play(engine, size):
        with ranks(tmp_path, size, ["-m", "tests.contract.rank_collectives", engine], new_group(url)) as job:
            reports = [rank.json() for rank in job.wait(200)]
        assert [report["wrong"] for report in reports] == [[]] * size
        assert {report["cells"] for report in reports} == {reports[0]["cells"]}
        return reports[0]["cells"]

    return play
