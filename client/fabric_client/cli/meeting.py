"""The hosts of a job meet at its daemon: what their ranks are told, and where these find one another."""

import time
from collections.abc import Mapping
from dataclasses import replace

from fabric_client.cli.job_place import Meeting, chosen_of
from fabric_client.cli.launcher import JobPlace, free_port
from fabric_client.cli.run_options import MAX_RANKS
from fabric_client.endpoints import checked_endpoint
from fabric_client.environment import Identity, identify
from fabric_client.joining import join_group, local_view
from fabricd.errors import EngineError, InputError

_LOOPBACK = "127.0.0.1"
_MASTER, _RANKS = "master", "ranks-"


def meet(hosts: int, host_rank: int, ranks: int, environ: Mapping[str, str], *, timeout: float) -> Meeting:
    """Join the job's hosts at its daemon, which measures and plans; return when all have come.

    Args:
        hosts: how many.
        host_rank: this host's number among them.
        ranks: how many are to run here.
        environ: names the daemon, the job, its secret, and what the user has set.
        timeout: seconds for all hosts to come.

    Raises:
        InputError: numbers that cannot be, or nothing names the job.
        FabricError: as by ``create_communicator``.
    """
    identity = _identity(hosts, host_rank, environ)
    deadline = time.monotonic() + timeout
    view = local_view(environ)
    engine = "nccl+gloo" if view.gpu_uuids else "gloo"
    joined = join_group(identity, engine, url=None, secret=None, timeout=timeout, environ=environ)
    try:
        address = joined.part.address or (_LOOPBACK if hosts == 1 else "")
        if not address:
            raise EngineError(
                "the plan names no IP address of this host, and ranks meet by IP",
                hint="give the hosts' data network IP addresses, or a network for management",
            )
        keys = {f"{_RANKS}{host_rank}": str(ranks)}
        if host_rank == 0:
            keys[_MASTER] = f"{address} {free_port(address)}"
        told = joined.rendezvous.fence(0, keys, timeout=max(1.0, deadline - time.monotonic()))
        counts = [_count(told.get(f"{_RANKS}{number}", ""), number) for number in range(hosts)]
        master, port = checked_endpoint(told.get(_MASTER, ""), what="the ranks' meeting point")
        settings = chosen_of(joined.part.settings, joined.view, environ)
    except BaseException as error:
        joined.membership.give_up(f"host {host_rank} could not start its ranks", error)
        raise
    place = JobPlace(
        first_rank=sum(counts[:host_rank]),
        world_size=sum(counts),
        host_rank=host_rank,
        master_address=master,
        master_port=port,
    )
    return Meeting(settings=settings, place=place, joined=joined)


def _identity(hosts: int, host_rank: int, environ: Mapping[str, str]) -> Identity:
    if not 0 <= host_rank < hosts:
        raise InputError(f"host {host_rank} of {hosts} cannot be", hint=f"--node-rank is 0 to {hosts - 1}")
    if hosts > 1 and not (environ.get("FABRICD_URL") or environ.get("MASTER_ADDR")):
        raise InputError(
            f"nothing names the daemon at which {hosts} hosts meet", hint="FABRICD_URL=http://HOST:7470 on all hosts"
        )
    identity = identify(None, host_rank, hosts, environ=environ)
    if identity.group == "default":
        raise InputError(
            f"nothing names the job of {hosts} hosts", hint="--group NAME, or FABRICD_GROUP, the same on all hosts"
        )
    # The ranks have a group of their own, of the job's name.
    return replace(identity, group=f"{identity.group[:190]}.hosts", all_local=hosts == 1)


def _count(text: str, host: int) -> int:
    if not text.isdecimal() or len(text) > len(str(MAX_RANKS)) or not 0 < int(text) <= MAX_RANKS:
        raise EngineError(f"host {host} does not tell how many ranks it runs: {text[:20]!r}")
    return int(text)
