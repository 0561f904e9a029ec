"""``fabricctl run``: ranks on this host, alone or with those of other hosts, through a group."""

from typing import Annotated

import typer

from fabric_client.cli.host_options import HostRankOption, MeetOption
from fabric_client.cli.run_job import run_here
from fabric_client.cli.run_options import MAX_HOSTS, MAX_RANKS, MIN_SECONDS, PLAIN, RunOptions
from fabricd.errors import InputError
from fabricd.nearest import nearest

_EXAMPLE = "fabricctl run -n 4 -- python train.py"

RanksOption = Annotated[int, typer.Option("-n", "--ranks", min=1, max=MAX_RANKS, help="How many ranks.")]
GroupOption = Annotated[str | None, typer.Option("--group", help="The group's name; by default a random one.")]
HostsOption = Annotated[
    int, typer.Option("--nnodes", min=1, max=MAX_HOSTS, help="On how many hosts; the same command runs on each.")
]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(
        name="run", context_settings={"allow_extra_args": True, "ignore_unknown_options": True}, no_args_is_help=True
    )(run)


def run(
    context: typer.Context,
    ranks: RanksOption,
    group: GroupOption = None,
    nnodes: HostsOption = 1,
    node_rank: HostRankOption = 0,
    meet_timeout: MeetOption = 60.0,
    timeout: Annotated[float | None, typer.Option(min=MIN_SECONDS, help="End the job after so many seconds.")] = None,
    grace: Annotated[
        float, typer.Option(min=0.0, help="Seconds that the other ranks have to end when one has failed.")
    ] = 10.0,
    prefix: Annotated[bool, typer.Option("--prefix", help="Put [rank] before every line of output.")] = False,
) -> None:
    """Run a command as N ranks on this host, or on each of several.

    For example: fabricctl run -n 4 -- python train.py

    Each rank finds RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT as under torchrun, and the settings that
    Gloo and NCCL need on the planned network; create_communicator() needs no arguments. Signals are passed on. The exit
    status is that of the first rank that failed. Without a running daemon one is started for the job's own time.

    On several hosts, run it on each with --nnodes and its own --node-rank; FABRICD_URL, --group and
    FABRICD_GROUP_SECRET_FILE are the same on all. The daemon measures the networks between them and plans; the ranks
    meet on the network that it chose. When one host's ranks fail, those of the others are ended.
    """
    command = context.args
    if not command:
        raise InputError("no command to run", hint=_EXAMPLE)
    if command[0].startswith("-"):  # unknown options are let through, for they may be the command's
        raise InputError(f"run has no option {command[0]!r}{nearest(command[0], PLAIN)}", hint=_EXAMPLE)
    options = RunOptions(
        ranks=ranks,
        group=group,
        nnodes=nnodes,
        node_rank=node_rank,
        meet_timeout=meet_timeout,
        timeout=timeout,
        grace=grace,
        prefix=prefix,
    )
    raise typer.Exit(run_here(command, options))
