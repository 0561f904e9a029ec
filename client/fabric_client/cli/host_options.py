"""Options of commands that run on each of a job's hosts."""

from typing import Annotated

import typer

from fabric_client.cli.run_options import MIN_SECONDS

HostRankOption = Annotated[int, typer.Option("--node-rank", min=0, help="This host's number among them.")]
MeetOption = Annotated[float, typer.Option("--meet-timeout", min=MIN_SECONDS, help="Seconds for all hosts to come.")]
