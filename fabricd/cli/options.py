"""Options that several commands have."""

from pathlib import Path
from typing import Annotated

import typer

from fabricd.config_load import DEFAULT_FILE

ConfigFile = Annotated[
    Path | None, typer.Option("--config", "-c", help=f"Configuration; by default {DEFAULT_FILE} if it exists.")
]
Root = Annotated[
    Path | None, typer.Option("--root", help="Look at the machine whose files lie here, e.g. a host mounted at /host.")
]
ReplayFile = Annotated[
    Path | None, typer.Option("--replay", help="Take a captured machine, or cluster, instead of this one.")
]


def manual(
    *examples: str,
    reads: str = "/sys, netlink, NVML, RDMA and what `fabricd facts` left, or what --replay names",
    status: str = "0 when done, 1 otherwise, 2 for wrong input",
) -> str:
    """Return what ``--help`` says below a command's options."""
    lines = "\n".join(f"  {example}" for example in examples)
    return f"\b\nExamples:\n{lines}\n\nReads {reads}.\n\nExit status: {status}."
