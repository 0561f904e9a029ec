"""``fabricctl topo``: what is in a node, how it hangs together, and which NIC each GPU should use."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from fabric_client.cli.clean import clean
from fabric_client.cli.ranks_option import parse_ranks
from fabric_client.cli.show import console, print_json, print_page, table, text
from fabric_client.cli.source import FromOption, JsonOption, load
from fabric_client.cli.topo_switches import switch_tables
from fabric_client.cli.topo_tree import tree_of
from fabric_client.cli.topology_option import TopologyOption, with_topology
from fabricd.errors import InputError
from fabricd.graph.from_nccl import graph_from_nccl
from fabricd.graph.graph import Graph, VertexKind
from fabricd.graph.networks import NetworkMap, find_networks
from fabricd.graph.snapshot import graph_of
from fabricd.graph.template import placement
from fabricd.model.codec import to_builtins
from fabricd.model.observation import Outcome
from fabricd.model.snapshot import Snapshot
from fabricd.paths.affinity import Affinity, affinity
from fabricd.paths.graph_matrix import affinities_of, graph_matrix
from fabricd.paths.matrix import TopologyMatrix, format_matrix, is_cut, topology_matrix
from fabricd.units import format_bandwidth

NodeOption = Annotated[str, typer.Option("--node", help="Another node that the daemon knows, by name or node_id.")]
PcieOption = Annotated[bool, typer.Option("--pcie", help="Leave NVLinks out, as nvidia-smi topo -mp does.")]
CpusOption = Annotated[
    str,
    typer.Option(
        "--cpus",
        metavar="LIST",
        help="The matrix as nvidia-smi prints it inside a container or job that may use these CPUs, e.g. 0-7,16.",
    ),
]
TreeOption = Annotated[bool, typer.Option("--tree", help="Show the tree also where there is a matrix.")]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("topo")(topo)


def topo(
    *,
    origin: FromOption = None,
    node: NodeOption = "",
    topology: TopologyOption = None,
    pcie: PcieOption = False,
    cpus: CpusOption = "",
    as_tree: TreeOption = False,
    as_json: JsonOption = False,
) -> None:
    """Show a node: the matrix of its GPUs and NICs, or the tree of NUMA nodes, PCI devices and ports."""
    source = with_topology(load(origin), topology)
    if source.topology is None:
        cpuset = frozenset(parse_ranks(cpus, "--cpus")) if cpus else None
        view = _of_snapshot(source.node(node), nvlink=not pcie, cpuset=cpuset)
    elif node or pcie or cpus:
        raise InputError(
            "--node, --pcie and --cpus go with a daemon, a snapshot or a capture",
            hint="a topology file has no nodes, and tells nothing of a job",
        )
    else:
        graph = graph_from_nccl(source.topology)
        matrix = graph_matrix(graph, affinities_of(source.topology))
        ports = [vertex.name for vertex in graph.of_kind(VertexKind.HCA_PORT)]
        view = _View(source.name, graph, matrix, affinity(graph, ports), None, NetworkMap((), ()))
    if as_json:
        print_json(view.as_json())
    else:
        view.show(as_tree=as_tree)


@dataclass(frozen=True, slots=True)
class _View:
    name: str
    graph: Graph
    matrix: TopologyMatrix
    affinity: Affinity
    snapshot: Snapshot | None  #: None for a topology file
    networks: NetworkMap

    def as_json(self) -> dict[str, Any]:
        edges = [edge for edge in self.graph.edges() if edge.src < edge.dst]
        return {
            "name": self.name,
            "node": to_builtins(self.snapshot.node) if self.snapshot else None,
            "probes": to_builtins(self.snapshot.probes) if self.snapshot else [],
            "vertices": to_builtins(list(self.graph)),
            "links": to_builtins(edges),
            "matrix": to_builtins(self.matrix),
            "affinity": to_builtins(self.affinity),
            "ib_fabrics": to_builtins(self.snapshot.ib_fabrics) if self.snapshot else [],
            "networks": to_builtins(self.networks.networks),
            "no_network": to_builtins(self.networks.rejected),
            "conflicts": to_builtins(self.graph.conflicts),
            "notes": self.graph.notes,
        }

    def show(self, *, as_tree: bool) -> None:
        out = console()
        for line in self._heading():
            out.print(text(line))
        for note in self.graph.notes:
            out.print(text(note, "yellow"))
        has_gpus = bool(self.affinity.gpus)
        if has_gpus:
            print_page("\n" + format_matrix(self.matrix))
            if is_cut(self.matrix):
                out.print(text("\nCPU affinities end after six ranges, as nvidia-smi's do; --json has all of them."))
            if self.affinity.ports:
                out.print()
                out.print(self._affinity_table())
        if as_tree or not has_gpus:
            out.print()
            out.print(tree_of(self.graph, self.snapshot, self.networks))
        for switches in switch_tables(self.snapshot.ib_fabrics if self.snapshot else ()):
            out.print()
            out.print(switches)
        for conflict in self.graph.conflicts:
            taken = f" (taken: {conflict.taken})" if conflict.taken else ""
            out.print(text(f"conflict at {conflict.where}: {conflict.problem}{taken}", "yellow"))

    def _heading(self) -> Iterator[str]:
        snapshot = self.snapshot
        if snapshot is None:
            yield self.name
            return
        node = snapshot.node
        system = " ".join(filter(None, (node.vendor, node.product)))
        machine = [system, node.cpu.name or node.cpu.vendor, node.hypervisor, node.os]
        yield f"{node.name}: {', '.join(filter(None, machine))}" + ("" if snapshot.this_host else " (a replay)")
        for report in snapshot.probes:
            if report.outcome is not Outcome.OK:
                yield f"not seen by {report.name}: {report.outcome}" + (f", {report.reason}" if report.reason else "")

    def _affinity_table(self) -> Any:
        rows = []
        for one in self.affinity.gpus:
            others = [port for port in one.best if port not in one.assigned]
            speed = format_bandwidth(one.bandwidth_bytes_per_second)
            rows.append((one.gpu, ", ".join(one.assigned) or "none", one.type, speed, ", ".join(others)))
        return table(("GPU", "BEST NIC", "PATH", ">BANDWIDTH", "AS GOOD"), rows)


def _of_snapshot(snapshot: Snapshot, *, nvlink: bool, cpuset: frozenset[int] | None) -> _View:
    graph = graph_of(snapshot, node="")
    networks = find_networks({snapshot.node.node_id: snapshot})
    used = {port.interface for network in networks.networks if network.role == "data" for port in network.ports}
    ports = [vertex.name for vertex in graph.of_kind(VertexKind.HCA_PORT) if vertex.name in used]
    if not ports:
        ports = [vertex.name for vertex in graph.of_kind(VertexKind.NIC) if vertex.name in used and not vertex.virtual]
    found = affinity(graph, ports)
    matrix = topology_matrix(placement(snapshot).snapshot, nvlink=nvlink, cpuset=cpuset)
    return _View(clean(snapshot.node.name), graph, matrix, found, snapshot, networks)
