"""The option ``--placement``: files that say where nodes stand, beside what the nodes themselves know."""

from collections.abc import Sequence
from typing import Annotated

import typer

from fabric_client.cli.source import read_input
from fabricd.placement.imported import Imported
from fabricd.placement.read import read_placement

PlacementOption = Annotated[
    list[str] | None,
    typer.Option(
        "--placement",
        metavar="FILE",
        help="Where nodes stand: Slurm's topology.conf or topology.yaml, topograph's output, `kubectl get nodes "
        "-o json`, `aws ec2 describe-instance-topology`. May be repeated; the first that knows a node counts.",
    ),
]


def read_all(files: Sequence[str] | None) -> list[Imported]:
    """Return what the files say.

    Raises:
        InputError: one cannot be read.
        ParseError: one has no form that is known, or is wrong in it.
    """
    return [read_placement(read_input(file), file) for file in files or ()]
