"""A node's own hardware for Prometheus: its ports, how its GPUs reach what they can, and what is wrong."""

from collections.abc import Iterator
from dataclasses import replace

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from fabricd.cluster.nodes import NodeMap
from fabricd.findings.find import KnownFindings
from fabricd.model.device import InterfaceKind
from fabricd.model.snapshot import Snapshot
from fabricd.paths.matrix import topology_matrix

#: Of a scrape: beyond, the least are left out, and ``fabricd_findings`` counts them.
_MAX_FINDINGS = 200
#: Adapters that are told of; each is a series with every GPU. Virtual functions, of which a host may have thousands,
#: are where their card is.
_MAX_ADAPTERS = 64


class HardwareCollector(Collector):
    """Read with each scrape; worked out when the node was looked at anew."""

    def __init__(self, nodes: NodeMap, known: KnownFindings) -> None:
        self._nodes = nodes
        self._known = known
        self._kept: tuple[Snapshot, tuple[Metric, ...]] | None = None

    def collect(self) -> Iterator[Metric]:
        """Yield ports, ways between devices, and findings."""
        if not self._nodes.ready:
            return
        local = self._nodes.local
        if self._kept is None or self._kept[0] is not local:
            cards = tuple(hca for hca in local.hcas if not hca.virtual_function)[:_MAX_ADAPTERS]
            lean = replace(local, hcas=cards)
            self._kept = local, (*_ports(lean), _ways(lean), self._findings(local))
        yield from self._kept[1]

    def _findings(self, local: Snapshot) -> Metric:
        told = GaugeMetricFamily("fabricd_finding", "1 for what is wrong.", labels=["code", "severity", "subject"])
        found = self._known.of_node(local.node.node_id, local)[:_MAX_FINDINGS]
        for code, severity, subject in sorted({(one.code, one.severity.value, one.subject) for one in found}):
            told.add_metric([code, severity, subject], 1)
        return told


def _ports(local: Snapshot) -> Iterator[Metric]:
    """Yield of RDMA ports and of cards' interfaces whether they carry, and how fast they say they are."""
    up = GaugeMetricFamily("fabricd_port_up", "1 for a port that is active.", labels=["port"])
    speed = GaugeMetricFamily("fabricd_port_bytes_per_second", "Of an active port, as reported.", labels=["port"])
    known = [
        (name, port.state == "active", port.rate_bytes_per_second) for name, _, port in local.hca_ports() if port.state
    ]
    known += [
        (one.name, one.carrier, one.speed_bytes_per_second)
        for one in local.interfaces
        if one.kind is InterfaceKind.PHYSICAL and one.admin_up and one.carrier is not None
    ]
    for name, active, rate in known:
        up.add_metric([name], float(active))
        if active and rate:
            speed.add_metric([name], rate)
    yield up
    yield speed


def _ways(local: Snapshot) -> Metric:
    """Return how GPUs reach each other and the adapters, in the words of ``nvidia-smi topo -m``.

    Two adapters send each other nothing, and would be a third of all.
    """
    ways = GaugeMetricFamily(
        "fabricd_way", "1 for how a GPU reaches another one, or an adapter: NV18, PIX, PXB, PHB, NODE, SYS.",
        labels=["src", "dst", "type"],
    )  # fmt: skip
    rows = topology_matrix(local).rows
    gpus = [f"gpu{gpu.index}" for gpu in local.gpus]
    names = gpus + [row.name for row in rows[len(gpus) :]]
    for place, gpu in enumerate(gpus):
        for other in range(place + 1, len(rows)):
            ways.add_metric([gpu, names[other], rows[place].cells[other]], 1)
    return ways
