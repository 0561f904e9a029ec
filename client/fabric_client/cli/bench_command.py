"""``fabricctl bench``: collectives over the planned path, in nccl-tests' columns."""

import sys
from typing import Annotated

import typer

from fabric_client.cli.bench_options import BenchOptions
from fabric_client.cli.launcher import Job, run_job
from fabric_client.cli.run_command import GroupOption
from fabric_client.cli.run_job import job_environment
from fabricd.model.codec import to_json


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(name="bench")(bench)


def bench(
    ranks: Annotated[
        int | None,
        typer.Option("-n", "--ranks", min=1, max=4096, help="Ranks to start here; without it this process is one."),
    ] = None,
    collective: Annotated[
        str,
        typer.Option(
            "--collective",
            help="all_reduce, all_gather, reduce_scatter, all_to_all, broadcast, reduce or sendrecv.",
        ),
    ] = "all_reduce",
    begin: Annotated[
        str, typer.Option("-b", "--begin", help="Smallest size in bytes; K, M and G are powers of 1024.")
    ] = "1K",
    end: Annotated[str, typer.Option("-e", "--end", help="Largest size.")] = "64M",
    factor: Annotated[int, typer.Option("-f", "--factor", min=2, help="From size to size.")] = 4,
    type_name: Annotated[
        str, typer.Option("-d", "--datatype", help="int8, uint8, int32, uint32, int64, uint64, half, float, double.")
    ] = "float",
    op: Annotated[str, typer.Option("-o", "--op", help="sum, prod, min, max or avg.")] = "sum",
    root: Annotated[int, typer.Option("-r", "--root", min=0, help="Of broadcast and reduce.")] = 0,
    iterations: Annotated[int, typer.Option("--iters", min=1, help="Timed operations at each size.")] = 20,
    warmup: Annotated[int, typer.Option("-w", "--warmup-iters", min=0, help="Operations before those.")] = 5,
    engine: Annotated[
        str, typer.Option("--engine", help="For memory of hosts: mpi, gloo, or one that a package brings.")
    ] = "mpi",
    group: GroupOption = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON object instead of the table.")] = False,
) -> None:
    """Measure a collective and check every result.

    For example: fabricctl bench -n 2 --collective all_reduce -b 1K -e 64M -f 4

    With -n, the ranks run on this host, meeting at its daemon, or at one started for the purpose. Without -n, this
    process is one rank of a job that torchrun, srun or a shell started (RANK, WORLD_SIZE, FABRICD_URL ...), so that
    the ranks may be on many hosts. Exit status 1 when a result was wrong.
    """
    options = BenchOptions(
        engine=engine,
        collective=collective,
        begin=begin,
        end=end,
        factor=factor,
        type=type_name,
        op=op,
        root=root,
        iterations=iterations,
        warmup=warmup,
        json=json,
    )
    options.check(ranks)
    if ranks is None:
        from fabric_client.cli.bench_worker import run_rank

        raise typer.Exit(run_rank(options))
    with job_environment(group) as environ:
        command = [sys.executable, "-m", "fabric_client.cli.bench_worker", to_json(options).decode()]
        status = run_job(Job(command=command, ranks=ranks, environ=environ))
    raise typer.Exit(status)
