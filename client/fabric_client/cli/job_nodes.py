"""``--nodes``: a job's nodes, as named, by Slurm, or all that are known; or how many copies of one machine."""

import os
from collections.abc import Iterator, Mapping
from typing import Annotated

import typer

from fabric_client.cli.source import DaemonNodes, Source
from fabricd.errors import InputError, UnknownNameError
from fabricd.locations import DEFAULT_PORT
from fabricd.model.snapshot import Snapshot
from fabricd.placement.hostlist import expand
from fabricd.plan.nccl.emulate import MAX_RANKS
from fabricd.plan.order.from_map import distinct_names

#: What ``--nodes`` means, the same for every command that has it.
JobNodesOption = Annotated[
    str | None,
    typer.Option(
        "--nodes",
        metavar="HOSTLIST|NUMBER",
        help="The job's nodes, as a hostlist: gpu[001-016]; by default all that are known, but of a daemon's those of "
        "SLURM_JOB_NODELIST. A bare number means so many copies of one machine, where a plan is made for them.",
    ),
]


class JobNodes(Mapping[str, Snapshot]):
    """The nodes of a job by name, in its order. A daemon's are fetched when they are looked at.

    Attributes:
        ids: the node_id of each name.
    """

    def __init__(self, nodes: Mapping[str, Snapshot], ids: Mapping[str, str]) -> None:
        self.ids = ids
        self._nodes = nodes

    def __getitem__(self, name: str) -> Snapshot:
        return self._nodes[self.ids[name]]

    def __iter__(self) -> Iterator[str]:
        return iter(self.ids)

    def __len__(self) -> int:
        return len(self.ids)


def job_nodes(source: Source, wanted: str | None) -> JobNodes:
    """Return the job's nodes.

    Args:
        source: where they are looked up. What Slurm says counts only for a daemon's nodes.
        wanted: a hostlist; None for the default.

    Raises:
        InputError: an empty hostlist, which is no way to ask for all nodes; a number; a topology file.
        UnknownNameError: a node that is not known.
        ParseError: not a hostlist.
    """
    if (copies := copies_in(wanted)) is not None:
        raise InputError(
            f"--nodes {copies} means copies of one machine, of which this command knows nothing",
            hint=f"name the nodes: gpu[001-016]; '{copies}' itself is [{copies}]. fabricctl simulate makes clusters",
        )
    if source.topology is not None:
        raise InputError(
            f"{source.name} is the topology of one machine, which names no nodes",
            hint="--from takes a daemon or a cluster; --nodes NUMBER makes copies, for a plan",
        )
    names = source.names()
    of_daemon = isinstance(source.nodes, DaemonNodes)
    nodelist = wanted or (os.environ.get("SLURM_JOB_NODELIST", "") if of_daemon else "")
    if not nodelist:
        return JobNodes(source.nodes, {name: node_id for node_id, name in distinct_names(names).items()})
    by_name = {name.partition(".")[0]: node_id for node_id, name in names.items()}
    by_name |= {name: node_id for node_id, name in names.items()}
    found = {}
    for name in expand(nodelist):
        node_id = by_name.get(name) or by_name.get(name.partition(".")[0]) or (name if name in names else "")
        if not node_id:
            raise _unknown(name, names, named_by="--nodes" if wanted else "SLURM_JOB_NODELIST", of_daemon=of_daemon)
        found[name] = node_id
    return JobNodes(source.nodes, found)


def _unknown(name: str, names: Mapping[str, str], *, named_by: str, of_daemon: bool) -> UnknownNameError:
    error = UnknownNameError("node", name, sorted(names.values()))
    error.hint += f"; {named_by} names it"
    if of_daemon:
        error.hint += (
            f"; a daemon learns of other nodes by their URLs: fabricd serve --peer http://{name}:{DEFAULT_PORT}"
        )
    return error


def copies_in(wanted: str | None) -> int | None:
    """Return how many copies of one machine ``--nodes`` asks for; None where it names nodes, or is left out.

    Raises:
        InputError: it is empty, or a number out of range.
    """
    if wanted is None:
        return None
    text = wanted.strip()
    if not text:
        raise InputError("--nodes is empty", hint="is SLURM_JOB_NODELIST set? Left out, all known nodes are meant")
    if not (text.isascii() and text.isdecimal()):
        return None
    if len(text) > len(str(MAX_RANKS)) or not 1 <= int(text) <= MAX_RANKS:
        raise InputError(f"--nodes {text[:20]}: expected 1 to {MAX_RANKS} copies", hint="or a hostlist: gpu[001-016]")
    return int(text)
