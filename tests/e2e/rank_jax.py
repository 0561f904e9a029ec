"""Ranks of JAX: ``python -m tests.e2e.rank_jax SCENE``."""

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

import fabric_client
import fabric_client.jax


def say(**facts: Any) -> None:
    """Print one line of JSON."""
    print(json.dumps(facts), flush=True)


def total(elements: int) -> float:
    """Psum the processes' numbers, counted from one; return what came out, the same in all elements."""
    mesh = jax.make_mesh((jax.device_count(),), ("ranks",))
    rows = NamedSharding(mesh, PartitionSpec("ranks"))
    mine = np.full((1, elements), jax.process_index() + 1.0, np.float32)
    psum = jax.jit(
        jax.shard_map(
            lambda row: jax.lax.psum(row, "ranks"),
            mesh=mesh,
            in_specs=PartitionSpec("ranks"),
            out_specs=PartitionSpec("ranks"),
        )
    )
    found = np.asarray(psum(jax.make_array_from_process_local_data(rows, mine)).addressable_shards[0].data)
    assert (found == found[0, 0]).all()
    return float(found[0, 0])


def sent() -> dict[str, int]:
    """Return the bytes that each interface of this host has sent."""
    return {one.name: int((one / "statistics/tx_bytes").read_text()) for one in Path("/sys/class/net").iterdir()}


def move() -> None:
    """Say what some megabytes came to, and which interface sent how many bytes meanwhile."""
    before = sent()
    found = [total(1_000_000) for _ in range(4)]
    after = sent()
    say(found=found, sent={name: after[name] - before[name] for name in after}, processes=jax.process_count())


def moves() -> None:
    """Move some megabytes, by the plan."""
    with fabric_client.jax.initialize() as group:
        move()
        say(explain=fabric_client.jax.explain(), rank=jax.process_index(), launcher_rank=group.launcher_rank)
        try:
            fabric_client.jax.initialize()
        except fabric_client.CommunicatorError as error:
            say(twice=str(error))
    assert not jax.distributed.is_initialized()


def plain() -> None:
    """The same as a script that knows nothing of us; the coordinator stands in the second argument."""
    jax.distributed.initialize(sys.argv[2], int(os.environ["WORLD_SIZE"]), int(os.environ["RANK"]))
    move()


def loses_one() -> None:
    """Rank 1 is killed in the middle; rank 0 says what reached it, and ends without waiting for JAX's heartbeat."""
    begun = 0.0
    try:
        with fabric_client.jax.initialize() as group:
            total(1000)
            if group.rank == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            begun = time.monotonic()
            total(1000)
    except fabric_client.RankLostError as error:
        say(ranks=error.ranks, seconds=time.monotonic() - begun)


def is_cut_off() -> None:
    """Rank 1 waits to be cut off and killed; rank 0 waits for what will never come."""
    try:
        with fabric_client.jax.initialize() as group:
            total(1000)
            say(pid=os.getpid())
            if group.rank == 1:
                time.sleep(60)
            total(1000)
    except fabric_client.RankLostError as error:
        say(ranks=error.ranks)


if __name__ == "__main__":
    globals()[sys.argv[1]]()
