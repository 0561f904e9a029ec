"""``fabricctl env``: what the ranks of a job should have in their environment, and why."""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Annotated

import typer

from fabric_client.cli.env_format import nccl_conf_text, shell_text
from fabric_client.cli.job_nodes import JobNodesOption, job_nodes
from fabric_client.cli.show import clean, print_json
from fabric_client.cli.source import FromOption, Source, load
from fabric_client.cli.topology_option import TopologyOption, with_topology
from fabricd.errors import InputError, UnknownNameError
from fabricd.localview import collect
from fabricd.model.snapshot import Snapshot
from fabricd.plan.settings import ENGINES, SiteChoices, as_seen, of_node, settings_for


class EnvFormat(StrEnum):
    """How it is written."""

    SHELL = "shell"
    JSON = "json"
    NCCL_CONF = "nccl.conf"


FormatOption = Annotated[EnvFormat, typer.Option("--format", "-f", help='shell is for eval "$(fabricctl env)".')]
NodeOption = Annotated[str, typer.Option("--node", help="Whose ranks it is for; by default this host's.")]
RankOption = Annotated[int | None, typer.Option("--rank", min=0, help="Whom it is for, counted over the nodes' GPUs.")]
EngineOption = Annotated[str, typer.Option("--engine", help=f"Of {', '.join(ENGINES)}; several by commas.")]
TrafficClassOption = Annotated[
    int | None, typer.Option("--traffic-class", min=0, max=255, help="Of RoCE, by your site.")
]
ServiceLevelOption = Annotated[int | None, typer.Option("--service-level", min=0, max=15, help="By your site.")]
PkeyOption = Annotated[int | None, typer.Option("--pkey-index", min=0, max=65535, help="Of InfiniBand, by your site.")]
GraphFileOption = Annotated[
    str, typer.Option("--graph-file", help="Set NCCL_GRAPH_FILE to this path (see export): binds all communicators.")
]
TopoFileOption = Annotated[
    str, typer.Option("--topo-file", help="Set NCCL_TOPO_FILE to this path on all nodes (see export).")
]
_ALL_ENGINES = ",".join(ENGINES)


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("env")(env)


def env(
    *,
    origin: FromOption = None,
    output: FormatOption = EnvFormat.SHELL,
    nodes: JobNodesOption = "",
    node: NodeOption = "",
    rank: RankOption = None,
    engine: EngineOption = _ALL_ENGINES,
    topology: TopologyOption = None,
    traffic_class: TrafficClassOption = None,
    service_level: ServiceLevelOption = None,
    pkey_index: PkeyOption = None,
    graph_file: GraphFileOption = "",
    topo_file: TopoFileOption = "",
) -> None:
    """Print the settings of NCCL, UCX, Gloo and libfabric that this job's network needs, each with its reason.

    What the libraries get right by themselves is not set. Names are those of this process's own namespace.
    """
    source = with_topology(load(origin), topology)
    if source.topology is not None:
        raise InputError("a topology file tells of no networks", hint="--from takes a daemon, a snapshot or a cluster")
    job = job_nodes(source, nodes)
    own = _whose(job, node, rank)
    site = SiteChoices(
        traffic_class=traffic_class,
        service_level=service_level,
        pkey_index=pkey_index,
        graph_file=graph_file,
        topo_files=dict.fromkeys(job, topo_file) if topo_file else None,
    )
    found = settings_for(_as_seen(source, job), engines=[name for name in engine.split(",") if name], site=site)
    chosen = of_node(found, own, rank=rank)
    if output is EnvFormat.JSON:
        print_json({"nodes": list(job), "node": own, "rank": rank, "settings": chosen})
    elif output is EnvFormat.NCCL_CONF:
        typer.echo(_heading(job, own) + nccl_conf_text(chosen), nl=False)
    else:
        typer.echo(_heading(job, own) + shell_text(chosen), nl=False)


def _whose(job: Mapping[str, Snapshot], node: str, rank: int | None) -> str:
    """Return the node that the settings are for: as named, or that of a rank, or the first, which is this host."""
    if node:
        if node not in job:
            raise UnknownNameError("node of this job", node, list(job))
        return node
    if rank is None:
        local = next((name for name, snapshot in job.items() if snapshot.this_host), None)
        return local or next(iter(job), "")
    first = 0
    for name, snapshot in job.items():
        first += len(snapshot.gpus) or 1
        if rank < first:
            return name
    raise InputError(f"no rank {rank}: the job has {first}", hint="ranks are counted over the GPUs of its nodes")


def _as_seen(source: Source, job: Mapping[str, Snapshot]) -> dict[str, Snapshot]:
    """Return the nodes; this host as this process sees it, for a container may have other names and fewer devices."""
    if source.connection is None:
        return dict(job)
    own = next(iter(source.names()), "")
    view = collect()
    return {name: as_seen(one, view) if one.node.node_id == own else one for name, one in job.items()}


def _heading(job: Sequence[str] | Mapping[str, Snapshot], own: str) -> str:
    shown = ", ".join(list(job)[:4]) + (f" and {len(job) - 4} more" if len(job) > 4 else "")
    return f"# for {clean(own)}, in a job on {clean(shown)}\n"
