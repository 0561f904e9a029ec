"""The machines that a plan is made for: nodes of a map, or copies of one machine."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from fabric_client.cli.job_nodes import copies_in, job_nodes
from fabric_client.cli.source import Source
from fabric_client.cli.what_if_option import as_it_would_be
from fabricd.errors import InputError
from fabricd.graph.nccl_xml_corrected import corrected_topology
from fabricd.graph.nccl_xml_merge import topology_of
from fabricd.graph.nccl_xml_types import NcclTopology
from fabricd.model.snapshot import Snapshot
from fabricd.plan.collective.machines import Machines, machines_of
from fabricd.plan.job_plan import taking_part
from fabricd.plan.job_topologies import check_joined, nvlink_domains, topologies_of
from fabricd.plan.what_if import WhatIf


@dataclass(frozen=True, slots=True, kw_only=True)
class JobMachines:
    """The machines of a job.

    Attributes:
        machines: what is planned.
        assumed: what the changes are, in words.
        nodes: of the map, those that take part; empty for copies.
    """

    machines: Machines
    assumed: tuple[str, ...] = ()
    nodes: Mapping[str, Snapshot] = field(default_factory=dict)


def job_machines(
    source: Source,
    nodes: str | None,
    ranks: Sequence[int] = (),
    *,
    what_if: WhatIf | None = None,
    node: str = "",
    every_port: bool = False,
) -> JobMachines:
    """Return the machines of a job.

    Args:
        source: of the machines.
        nodes: a hostlist or a number of copies, as ``--nodes`` names them.
        ranks: those that take part, counted over all nodes; empty for all.
        what_if: changes to make.
        node: the one that is copied, by default the only one.
        every_port: also those that do not carry the job's data, and links as the machine tells of them: what NCCL
            sees that was told nothing.

    Raises:
        InputError: copies of several nodes, nodes of a topology file, a rank that there is not.
        UnknownNameError: a node that is not known.
        NoNetworkError: nothing joins the nodes.
    """
    change = what_if or WhatIf()
    copies = copies_in(nodes)
    if copies is None and nodes is None and (node or source.topology is not None):
        copies = 1
    if copies is not None:
        alike = _copied(source, copies, node=node, every_port=every_port)
        named = [(f"node{number}", alike) for number in range(copies)]
        machines = machines_of(as_it_would_be(named, change), ranks)
        return JobMachines(machines=machines, assumed=tuple(change.in_words(named)))
    if node:
        raise InputError("--node is one node, and --nodes names several", hint="leave one of the two out")
    found: Mapping[str, Snapshot] = job_nodes(source, nodes)
    chosen = list(ranks)
    if chosen:
        found, chosen = taking_part(found, chosen)
    if every_port:
        topologies = {name: topology_of(snapshot) for name, snapshot in found.items()}
    else:
        topologies = topologies_of(found)
    named = list(topologies.items())
    machines = machines_of(as_it_would_be(named, change), chosen, domains=nvlink_domains(found))
    check_joined(found, len(machines.order))
    return JobMachines(machines=machines, assumed=tuple(change.in_words(named)), nodes=found)


def _copied(source: Source, copies: int, *, node: str, every_port: bool) -> NcclTopology:
    """Return the machine that is copied."""
    if source.topology is not None:
        if node:
            raise InputError(f"{source.name} is the topology of one machine, which has no name", hint="no --node then")
        return source.topology
    known = len(source.names())
    if not node and known > 1:
        raise InputError(
            f"--nodes {copies} makes copies of one machine, and {source.name} has {known}",
            hint=f"name the job's nodes by a hostlist: gpu[001-016]; a node called '{copies}' is [{copies}]",
        )
    snapshot = source.node(node)
    return topology_of(snapshot) if every_port else corrected_topology(snapshot)
