"""Ctrl-C while a work is waited for leaves it as it was, at whichever step it comes: the next wait gives its result."""

import pytest

from tests.support.daemon import daemon
from tests.support.ranks import new_group, ranks

pytestmark = pytest.mark.mpi


@pytest.mark.parametrize("size", [2, 3])
def test_a_wait_that_is_interrupted_anywhere_may_be_tried_again(tmp_path, size):
    program = ["-m", "tests.e2e.rank_interrupts"]
    with daemon(tmp_path) as running, ranks(tmp_path, size, program, new_group(running.url)) as job:
        for rank in job.wait(100):
            told = rank.json()
            assert told["wrong"] == []
            assert told["interrupted"] > 100
