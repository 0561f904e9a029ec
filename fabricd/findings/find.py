"""All rules over one node, and over a set of nodes."""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from fabricd.findings.across import across_findings
from fabricd.findings.counters import counter_findings
from fabricd.findings.gpus import gpu_findings
from fabricd.findings.pci import pci_findings
from fabricd.findings.ports import port_findings
from fabricd.findings.probes import probe_findings
from fabricd.graph.networks import find_networks_of
from fabricd.graph.networks_node import KnownPorts
from fabricd.model.finding import Finding, Findings
from fabricd.model.measurement import Measurement
from fabricd.model.snapshot import Snapshot
from fabricd.units import natural_order

#: In the order in which findings of one severity are told.
_OF_A_NODE = (gpu_findings, pci_findings, port_findings, counter_findings, probe_findings)
#: What is found of a port of a node, by itself and beside the other nodes': the latter says more.
_OF_A_PORT, _BESIDE_OTHERS = ("port-slow", "port-down"), "rate-differs"
#: Of one answer: beyond, the least are left out and counted.
MAX_FINDINGS = 5000


def findings_of(snapshot: Snapshot) -> tuple[Finding, ...]:
    """Return what is wrong with one node, the worst first; they bear its name."""
    found = (replace(one, node=snapshot.node.name) for rule in _OF_A_NODE for one in rule(snapshot))
    return tuple(sorted(found, key=lambda one: one.severity.rank))


class KnownFindings:
    """What is wrong with each of many nodes, of which few change from one question to the next.

    Threads may share it; what two of them ask for at once may be worked out twice.

    Args:
        ports: what is known of the nodes' ports; others may fill and use it, too.
    """

    def __init__(self, ports: KnownPorts | None = None) -> None:
        self.ports = ports or KnownPorts()
        self._known: dict[str, tuple[Snapshot, tuple[Finding, ...]]] = {}

    def of_node(self, node_id: str, snapshot: Snapshot) -> tuple[Finding, ...]:
        """Return what is wrong with one node, as ``findings_of``."""
        known = self._known.get(node_id)
        if known is None or known[0] is not snapshot:
            known = self._known[node_id] = (snapshot, findings_of(snapshot))
        return known[1]

    def keep_to(self, nodes: Mapping[str, Snapshot]) -> None:
        """Forget the nodes that are not among some, by node_id."""
        for node_id in self._known.keys() - nodes.keys():
            self._known.pop(node_id, None)


def find(
    nodes: Mapping[str, Snapshot],
    names: Mapping[str, str],
    *,
    measurements: Iterable[Measurement] = (),
    more: Iterable[Finding] = (),
    known: KnownFindings | None = None,
) -> Findings:
    """Return what is wrong with nodes that are to work together.

    Args:
        nodes: snapshots by node_id.
        names: what to call each, by node_id.
        measurements: what active probes between them found.
        more: findings to sort in.
        known: what was worked out before.
    """
    known = known or KnownFindings()
    found = [*more]
    for node_id, snapshot in nodes.items():
        found += (replace(one, node=names[node_id]) for one in known.of_node(node_id, snapshot))
    if len(nodes) > 1:
        ports = {node_id: known.ports.of_node(node_id, snapshot) for node_id, snapshot in nodes.items()}
        across = across_findings(ports, names, find_networks_of(ports).networks, measurements)
        found = _told_once(found, list(across))
    found.sort(key=lambda one: (one.severity.rank, natural_order(one.node), one.code, natural_order(one.subject)))
    return Findings(findings=tuple(found[:MAX_FINDINGS]), nodes=len(nodes), left_out=max(0, len(found) - MAX_FINDINGS))


def _told_once(of_nodes: Iterable[Finding], across: Iterable[Finding]) -> list[Finding]:
    """Return all findings, but for those of a port that differs from the other nodes' by the same fault."""
    told, ports = [], {}
    for one in across:
        if one.code == _BESIDE_OTHERS:
            ports[one.node, one.subject] = one
        else:
            told.append(one)
    for one in of_nodes:
        port = ports.get((one.node, one.subject)) if one.code in _OF_A_PORT else None
        if port is None:
            told.append(one)
        else:
            evidence = (*port.evidence, *one.evidence)
            ports[one.node, one.subject] = replace(port, evidence=evidence, also=(*port.also, one.code))
    return [*told, *ports.values()]
