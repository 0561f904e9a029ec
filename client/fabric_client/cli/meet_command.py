"""``fabricctl meet``: what the ranks of a job on several hosts need, for launchers that know nothing of us."""

import os
from enum import StrEnum
from typing import Annotated

import typer

from fabric_client.cli.env_format import shell_text
from fabric_client.cli.host_options import HostRankOption, MeetOption
from fabric_client.cli.job_place import Meeting
from fabric_client.cli.meeting import meet
from fabric_client.cli.show import print_json
from fabricd.model.plan import Setting


class MeetFormat(StrEnum):
    """How it is written."""

    SHELL = "shell"
    JSON = "json"


HostsOption = Annotated[int, typer.Option("--nnodes", min=1, max=65536, help="How many hosts the job has.")]
GroupOption = Annotated[str | None, typer.Option("--group", help="The job's name, the same on all hosts.")]
FormatOption = Annotated[MeetFormat, typer.Option("--format", "-f", help='shell is for eval "$(fabricctl meet ...)".')]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("meet", no_args_is_help=True)(meet_hosts)


def meet_hosts(
    *,
    nnodes: HostsOption,
    node_rank: HostRankOption = 0,
    group: GroupOption = None,
    meet_timeout: MeetOption = 60.0,
    output: FormatOption = MeetFormat.SHELL,
) -> None:
    """Meet the job's other hosts and print what its network needs, each with its reason, and where ranks may meet.

    The example's line sets MASTER_ADDR and MASTER_PORT, too: torchrun takes them by --master-addr and --master-port.

    FABRICD_URL, --group and FABRICD_GROUP_SECRET_FILE are the same on all hosts. Unlike env, which goes by the map, the
    daemon here measures the networks between the hosts before it chooses.
    """
    environ = {**os.environ, **({"FABRICD_GROUP": group} if group else {})}
    meeting = meet(nnodes, node_rank, 1, environ, timeout=meet_timeout)
    meeting.leave()
    settings = (*meeting.settings, *_master(meeting))
    if output is MeetFormat.JSON:
        print_json({"nnodes": nnodes, "node_rank": node_rank, "settings": settings})
    else:
        typer.echo(shell_text(settings), nl=False)


def _master(meeting: Meeting) -> tuple[Setting, ...]:
    place = meeting.place
    return (
        Setting(name="MASTER_ADDR", value=place.master_address, because="of the first host, on the planned network"),
        Setting(name="MASTER_PORT", value=str(place.master_port), because="free there a moment ago"),
    )
