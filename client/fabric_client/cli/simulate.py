"""``fabricctl simulate``: a cluster of any size in a file, for ``--from`` and ``fabricd serve --replay``."""

from pathlib import Path
from typing import Annotated

import typer

from fabric_client.cli.cluster_file import write_cluster
from fabric_client.cli.show import console, table
from fabric_client.cli.source import load
from fabricd.errors import InputError
from fabricd.graph.simulate.design import Design
from fabricd.graph.simulate.nodes import simulate as simulated
from fabricd.graph.simulate.templates import TEMPLATES, load_template
from fabricd.model.cluster_file import Head
from fabricd.model.snapshot import Snapshot
from fabricd.units import format_count

TemplateOption = Annotated[
    str,
    typer.Option(
        "--template", "-t", help=f"Machine: {', '.join(TEMPLATES)}, or a file that holds one (`fabricd capture`)."
    ),
]
NodesOption = Annotated[int, typer.Option("--nodes", "-n", help="How many machines.")]
OutOption = Annotated[
    Path | None, typer.Option("--out", "-o", help="Takes the cluster; must not exist; compressed when it ends in .gz.")
]
LeafOption = Annotated[int, typer.Option("--leaf", help="Nodes under one leaf switch of each rail.")]
RailsOption = Annotated[
    int, typer.Option("--rails", help="Leaf switches that a node hangs on; 0: one for each GPU that has a port.")
]
SpinesOption = Annotated[
    int, typer.Option("--spines", help="Switches that join all leaves; 0: rails are fabrics of their own.")
]
DomainOption = Annotated[int, typer.Option("--domain", help="Nodes of an NVLink domain, for machines that are in one.")]
SeedOption = Annotated[int, typer.Option("--seed", help="Draws identities and faults.")]
DegradedOption = Annotated[int, typer.Option("--degraded-links", help="Ports that run at half their rate.")]
MissingOption = Annotated[int, typer.Option("--missing-rails", help="Ports whose adapter is not there.")]
DownOption = Annotated[int, typer.Option("--down", help="Ports without a link.")]
NameOption = Annotated[str, typer.Option("--name", help="Beginning of the nodes' names; by default the template's.")]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("simulate")(simulate)


def simulate(
    template: TemplateOption = "",
    nodes: NodesOption = 100,
    out: OutOption = None,
    *,
    leaf: LeafOption = 32,
    rails: RailsOption = 0,
    spines: SpinesOption = 4,
    domain: DomainOption = 18,
    seed: SeedOption = 0,
    degraded: DegradedOption = 0,
    missing: MissingOption = 0,
    down: DownOption = 0,
    name: NameOption = "",
) -> None:
    """Write a cluster of equal machines into a file: switches, rails, addresses, faults; without --template, list them.

    The same options give the same file.
    """
    if not template:
        console().print(table(("TEMPLATE", "MACHINE"), list(TEMPLATES.items())))
        return
    if out is None:
        raise InputError("--out is missing", hint="e.g. --out cluster.jsonl.gz")
    machine = _template(template)
    design = Design(
        template=machine,
        name=name or (template.lower() if template.lower() in TEMPLATES else machine.node.name),
        nodes=nodes,
        leaf=leaf,
        rails=rails,
        spines=spines,
        domain=domain,
        seed=seed,
        degraded=degraded,
        missing=missing,
        down=down,
    )
    source = f"simulated: {design.name}, {nodes} nodes, {leaf} to a leaf, seed {seed}"
    write_cluster(out, Head(nodes=nodes, redacted=True, source=source), simulated(design))
    typer.echo(f"{out}: {format_count(nodes, 'node')}; fabricctl topo --from {out}, fabricd serve --replay {out}")


def _template(name: str) -> Snapshot:
    if name.lower() in TEMPLATES or not ("." in name or "/" in name):
        return load_template(name)
    source = load(name)
    if source.connection is not None or source.topology is not None:
        raise InputError(f"{name} is no machine", hint="a snapshot or a capture of one is expected")
    return source.node()
