"""``fabricctl env``: what the ranks of a job should have in their environment, and why."""

import os
from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated

import typer

from fabric_client.cli.clean import clean
from fabric_client.cli.env_format import nccl_conf_text, shell_text, slurm_text
from fabric_client.cli.job_nodes import JobNodesOption, job_nodes
from fabric_client.cli.show import print_json
from fabric_client.cli.source import FromOption, load
from fabric_client.cli.topology_option import TopologyOption, with_topology
from fabric_client.joining import local_view
from fabricd.errors import InputError, NoNetworkError, UnknownNameError
from fabricd.graph.nccl_xml_corrected import corrected_document
from fabricd.model.device import InterfaceKind
from fabricd.model.snapshot import Snapshot
from fabricd.plan.group_hosts import node_of
from fabricd.plan.settings import ENGINES, SiteChoices, as_seen, of_node, settings_for
from fabricd.units import format_names


class EnvFormat(StrEnum):
    """How it is written."""

    SHELL = "shell"
    JSON = "json"
    NCCL_CONF = "nccl.conf"
    SLURM = "slurm"


FormatOption = Annotated[
    EnvFormat, typer.Option("--format", "-f", help='shell is for eval "$(fabricctl env)", slurm for a TaskProlog.')
]
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
_MAX_CHANGES = 8
_NOTHING = "# nothing to set: what these libraries choose by themselves is right for this job\n"
#: What can be done in a container whose interfaces the daemon does not know.
_CONTAINED = (
    "this process has {seen}, and none of its host's interfaces, as in a container's own network; give it the host's "
    "(Kubernetes: hostNetwork: true) or an interface on the job's network"
)
_ALL_ENGINES = ",".join(ENGINES)


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("env")(env)


def env(
    *,
    origin: FromOption = None,
    output: FormatOption = EnvFormat.SHELL,
    nodes: JobNodesOption = None,
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
    for option, path in (("--graph-file", graph_file), ("--topo-file", topo_file)):
        if path and not path.startswith("/"):
            raise InputError(f"{option} {path[:80]!r} is no absolute path", hint="ranks run in folders of their own")
    job = dict(job_nodes(source, nodes))
    here = _seen_from_here(job) if source.connection is not None else next(iter(job), "")
    own = node or (here if rank is None else _node_of_rank(job, rank))
    if own not in job:
        if node:
            raise UnknownNameError("node of this job", node, list(job))
        raise InputError("this host is none of the job's nodes", hint="--node NAME or --rank R says whom it is for")
    site = SiteChoices(
        traffic_class=traffic_class,
        service_level=service_level,
        pkey_index=pkey_index,
        graph_file=graph_file,
        topo_files=dict.fromkeys(job, topo_file) if topo_file else None,
    )
    try:
        found = settings_for(job, engines=[name for name in engine.split(",") if name], site=site)
    except NoNetworkError as error:
        if here and not _on_its_network(job[here]):
            raise NoNetworkError(error.message, hint=_CONTAINED.format(seen=_addresses(job[here]))) from error
        raise
    chosen = of_node(found, own, rank=rank)
    if output is EnvFormat.JSON:
        print_json({"nodes": list(job), "node": own, "rank": rank, "settings": chosen})
    elif output is EnvFormat.NCCL_CONF:
        typer.echo(_heading(job, own, corrected=bool(topo_file)) + (nccl_conf_text(chosen) or _NOTHING), nl=False)
    elif output is EnvFormat.SLURM:
        typer.echo(slurm_text(chosen), nl=False)
    else:
        typer.echo(_heading(job, own, corrected=bool(topo_file)) + (shell_text(chosen) or _NOTHING), nl=False)


def _seen_from_here(job: dict[str, Snapshot]) -> str:
    """Return which of the nodes this host is, "" for none; in ``job`` it is then as this process sees it.

    A container may have other names, and fewer devices.
    """
    view = local_view(os.environ)
    names = {snapshot.node.node_id: name for name, snapshot in job.items()}
    here = names.get(node_of(view, {snapshot.node.node_id: snapshot for snapshot in job.values()}), "")
    if here:
        job[here] = as_seen(job[here], view)
    return here


def _on_its_network(seen: Snapshot) -> bool:
    """Return whether a process has any of its host's interfaces; a container mostly has none."""
    return any(one.kind not in (InterfaceKind.LOOPBACK, InterfaceKind.OTHER) for one in seen.interfaces)


def _addresses(seen: Snapshot) -> str:
    told = [
        f"{one.name} ({', '.join(f'{address.address}/{address.prefix_length}' for address in one.addresses)})"
        for one in seen.interfaces
        if one.addresses and one.kind is not InterfaceKind.LOOPBACK
    ]
    return ", ".join(told) or "no interface"


def _node_of_rank(job: Mapping[str, Snapshot], rank: int) -> str:
    first = 0
    for name, snapshot in job.items():
        first += len(snapshot.gpus) or 1
        if rank < first:
            return name
    raise InputError(f"no rank {rank}: the job has {first}", hint="ranks are counted over the GPUs of its nodes")


def _heading(job: Mapping[str, Snapshot], own: str, *, corrected: bool) -> str:
    """Return comments: for whom it is, and what NCCL will not know of its links unless a file tells it."""
    lines = [f"# for {clean(own)}, in a job on {clean(format_names(job, 4))}"]
    changes = () if corrected else corrected_document(job[own]).changes
    lines += [f"# {clean(change)}" for change in changes[:_MAX_CHANGES]]
    if changes:
        lines.append("# tell it: fabricctl export --format nccl-topo --out FILE, and here --topo-file FILE")
    return "\n".join(lines) + "\n"
