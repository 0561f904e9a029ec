"""``--topology FILE``: a file that says what a virtual machine hides, for the machines that ``--from`` tells of."""

from dataclasses import replace
from typing import Annotated

import typer

from fabric_client.cli.source import DaemonNodes, Source, read_input
from fabricd.errors import InputError
from fabricd.graph.nccl_xml_read import read
from fabricd.model.snapshot import Snapshot
from fabricd.model.topology_file import MAX_CHARACTERS, TopologyFile

TopologyOption = Annotated[
    str | None,
    typer.Option(
        "--topology",
        metavar="FILE",
        help="An NCCL topology XML that says how the devices hang together, where the kernel of a virtual machine does "
        "not know. It changes nothing where it names none of the machine's PCI addresses.",
    ),
]


def with_topology(source: Source, file: str | None) -> Source:
    """Return the source with a file for each of its machines. Questions are answered here then, not by the daemon.

    Raises:
        InputError: the source is a topology file itself, or the file cannot be read.
        ParseError: it is no topology file.
    """
    if file is None:
        return source
    if source.topology is not None:
        raise InputError("--from is a topology file already", hint="--topology goes with a daemon or a snapshot")
    text = read_input(file).decode("utf-8", "replace")
    if len(text) > MAX_CHARACTERS:
        raise InputError(f"{file} has more than {MAX_CHARACTERS} characters", hint="is it the topology of one machine?")
    read(text, source=file)
    given = TopologyFile(path="standard input" if file == "-" else file, text=text, given=True)

    def give(snapshot: Snapshot) -> Snapshot:
        return replace(snapshot, topology_file=given)

    if isinstance(source.nodes, DaemonNodes):
        return replace(source, nodes=source.nodes.changed(give), connection=None)
    return replace(source, nodes={node_id: give(one) for node_id, one in source.nodes.items()}, connection=None)
