"""Ranks of PyTorch: ``python -m tests.e2e.rank_torch SCENE``."""

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import fabric_client
import fabric_client.torch


def say(**facts: Any) -> None:
    """Print one line of JSON."""
    print(json.dumps(facts), flush=True)


def total(elements: int, group: Any = None) -> float:
    """All_reduce the ranks' numbers, counted from one; return what came out, the same in all elements."""
    tensor = torch.full((elements,), float(dist.get_rank() + 1))
    dist.all_reduce(tensor, group=group)
    assert (tensor == tensor[0]).all()
    return float(tensor[0])


def refusals(**options: Any) -> str:
    """Return what a group that cannot be is refused with."""
    try:
        fabric_client.torch.init_process_group(**options)
    except fabric_client.FabricError as error:
        return f"{type(error).__name__}: {error}"
    return ""


def works() -> None:
    """All that a user does with a group, also with subgroups; what is left of it afterwards; an error of rank 0's."""
    wrong = ({"backend": "mpi"}, {"backend": "nccl"}, {"timeout": 0.0}, {"rank": 3, "world_size": 2})
    refused = [refusals(**options) for options in wrong]
    with fabric_client.torch.init_process_group(operation_timeout=20) as group:
        found = total(1_000_000)
        subgroups = [dist.new_group([1]), dist.new_group([1, 0])]
        in_subgroups = [total(10, one) for one in subgroups if dist.get_rank(one) >= 0]
        explain = fabric_client.torch.explain()
        set_inside = os.environ.get("GLOO_SOCKET_IFNAME")
        refused.append(refusals())
        group.check()
    assert not dist.is_initialized()
    assert "GLOO_SOCKET_IFNAME" not in os.environ
    group.close()  # safe to repeat
    with fabric_client.torch.init_process_group(group=os.environ["FABRICD_GROUP"] + "-again"):
        say(
            rank=group.rank,
            found=found,
            in_subgroups=in_subgroups,
            explain=explain,
            ifname=set_inside,
            refused=refused,
            again=total(10),
        )
        if group.rank == 0:
            raise ValueError("the secret of rank 0")
        total(10)


def sent() -> dict[str, int]:
    """Return the bytes that each interface of this host has sent."""
    return {one.name: int((one / "statistics/tx_bytes").read_text()) for one in Path("/sys/class/net").iterdir()}


def move() -> None:
    """Say what some megabytes came to, and which interface sent how many bytes meanwhile."""
    before = sent()
    found = [total(1_000_000) for _ in range(4)]
    after = sent()
    say(found=found, sent={name: after[name] - before[name] for name in after}, rank=dist.get_rank())


def moves() -> None:
    """Move some megabytes, by the plan."""
    with fabric_client.torch.init_process_group(planned_order=True) as group:
        move()
        say(explain=group.explain(), launcher_rank=group.launcher_rank)


def plain() -> None:
    """The same as a script that knows nothing of us."""
    dist.init_process_group("gloo")
    move()
    dist.destroy_process_group()


def loses_one() -> None:
    """Rank 1 is killed in the middle; the others say what reached them."""
    begun = 0.0
    try:
        with fabric_client.torch.init_process_group() as group:
            total(1000)
            if group.rank == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            begun = time.monotonic()
            total(1000)
    except fabric_client.RankLostError as error:
        say(ranks=error.ranks, seconds=time.monotonic() - begun, cause=type(error.__cause__).__name__)


def is_cut_off() -> None:
    """Rank 1 waits to be cut off and killed; rank 0 waits for what will never come."""
    try:
        with fabric_client.torch.init_process_group() as group:
            total(1000)
            say(pid=os.getpid())
            if group.rank == 1:
                time.sleep(60)
            total(1000)
    except fabric_client.RankLostError as error:
        say(ranks=error.ranks)


if __name__ == "__main__":
    globals()[sys.argv[1]]()
