"""JAX by ``fabric_client.jax``, over real ranks on this host."""

import json
import signal

import pytest

from tests.support.daemon import daemon
from tests.support.ranks import new_group, ranks

pytestmark = pytest.mark.frameworks


def test_a_killed_rank_is_named_and_the_other_ends_at_once(tmp_path):
    with daemon(tmp_path) as running:
        scene = ["-m", "tests.e2e.rank_jax", "loses_one"]
        with ranks(tmp_path, 2, scene, new_group(running.url)) as job:
            first, killed = job.wait(60)
    assert killed.status == -signal.SIGKILL
    assert first.status == 0, first.err
    told = json.loads(first.out.splitlines()[-1])
    assert told["ranks"] == [1]
    assert told["seconds"] < 15
    assert first.seconds < 60  # JAX alone would wait for its heartbeat, and then abort
