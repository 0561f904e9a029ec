"""Which nodes a job is on: as named, by Slurm, or all that are known."""

import os
from typing import Annotated

import typer

from fabric_client.cli.source import Source
from fabricd.errors import InputError, UnknownNameError
from fabricd.model.snapshot import Snapshot
from fabricd.placement.hostlist import expand
from fabricd.plan.order.from_map import node_names

JobNodesOption = Annotated[
    str | None,
    typer.Option(
        "--nodes", help="The job's nodes, as a hostlist; by default SLURM_JOB_NODELIST, else all that are known."
    ),
]


def job_nodes(source: Source, wanted: str | None) -> dict[str, Snapshot]:
    """Return the job's nodes by name, in their order.

    Args:
        source: where they are looked up. What Slurm says counts only for a daemon's nodes.
        wanted: a hostlist; None for the default.

    Raises:
        InputError: an empty hostlist, which is no way to ask for all nodes.
        UnknownNameError: a node that is not known.
        ParseError: not a hostlist.
    """
    if wanted is not None and not wanted.strip():
        raise InputError("--nodes is empty", hint="is SLURM_JOB_NODELIST set? Left out, all known nodes are meant")
    names = source.names()
    nodelist = wanted or (os.environ.get("SLURM_JOB_NODELIST", "") if source.connection is not None else "")
    if not nodelist:
        known = {node_id: source.nodes[node_id] for node_id in names}
        return {name: known[node_id] for node_id, name in node_names(known).items()}
    by_name = {name.partition(".")[0]: node_id for node_id, name in names.items()}
    by_name |= {name: node_id for node_id, name in names.items()}
    found = {}
    for name in expand(nodelist):
        node_id = by_name.get(name) or by_name.get(name.partition(".")[0]) or (name if name in names else "")
        if not node_id:
            raise UnknownNameError("node", name, sorted(names.values()))
        found[name] = source.nodes[node_id]
    return found
