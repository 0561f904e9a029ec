"""JAX by ``fabric_client.jax``, over real ranks on this host."""

import json
import os
import signal
import subprocess
import sys

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


@pytest.mark.parametrize(
    ("call", "environ"),
    [('initialize(engine="mpi")', {}), ("initialize()", {"JAX_CPU_COLLECTIVES_IMPLEMENTATION": "mpi"})],
)
def test_collectives_over_mpi_are_refused_before_jax_ends_the_process(call, environ):
    code = f"""
import fabric_client.jax
from fabric_client import UnavailableError
try:
    fabric_client.jax.{call}
except UnavailableError as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "JAX_PLATFORMS": "cpu", "RANK": "0", "WORLD_SIZE": "1", **environ},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert "MPItrampoline" in done.stdout
    assert 'engine="gloo"' in done.stdout


def test_jax_itself_ends_the_process_there():
    """What the refusal rests on: the wheels bring no wrapper of an MPI. When this fails, MPI may be worth a try."""
    code = "from jaxlib import _jax\n_jax.make_mpi_collectives().Init()\nprint('started')"
    environ = {name: value for name, value in os.environ.items() if name != "MPITRAMPOLINE_LIB"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environ, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1
    assert "MPITRAMPOLINE_LIB is not set" in done.stderr
