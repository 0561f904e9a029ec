"""What the daemon counts about itself, for Prometheus. Each daemon has a registry of its own."""

import math
from collections.abc import Callable, Iterator, MutableMapping
from datetime import datetime
from typing import Any

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from fabricd import __version__
from fabricd.cluster.groups import GroupService
from fabricd.cluster.nodes import NodeMap
from fabricd.findings.find import KnownFindings
from fabricd.model.finding import Severity
from fabricd.model.wire import GroupPhase
from fabricd.shortage import Resource, Shortages

_METHODS = frozenset({"GET", "HEAD", "PUT", "POST", "DELETE", "OPTIONS", "PATCH"})


class Metrics:
    """Counters of one daemon."""

    def __init__(self) -> None:
        # Otherwise each counter brings a second series, of which nobody asks.
        disable_created_metrics()  # type: ignore[no-untyped-call] # the library gives it no types
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        Gauge("fabricd_build_info", "Version of the daemon.", ["version"], registry=self.registry).labels(
            __version__
        ).set(1)
        self._requests = Counter(
            "fabricd_http_requests",
            "Requests answered, by route and status; status 0: the client left before an answer.",
            ["method", "route", "status"],
            registry=self.registry,
        )
        self._durations = Histogram(
            "fabricd_http_first_byte_seconds",
            "Time until an answer began, without long polls.",
            ["route"],
            buckets=(0.001, 0.005, 0.02, 0.1, 0.5, 2.0, 10.0),
            registry=self.registry,
        )
        self.peer_polls = Counter(
            "fabricd_peer_polls", "Questions to peers, by outcome.", ["outcome"], registry=self.registry
        )
        self.reloads = Counter("fabricd_reloads", "Reloads of the configuration.", ["outcome"], registry=self.registry)

    def count_request(self, scope: MutableMapping[str, Any], status: int, took: float | None) -> None:
        """Count one answered request; paths that are no route share one label, so that nobody can make new ones."""
        route = getattr(scope.get("route"), "path", "none")
        method = scope["method"] if scope["method"] in _METHODS else "other"
        self._requests.labels(method, route, str(status)).inc()
        if took is not None and b"wait=" not in scope.get("query_string", b""):
            self._durations.labels(route).observe(took)

    def watch_long_polls(self, count: Callable[[], float]) -> None:
        """Show how many long polls and streams are open."""
        Gauge("fabricd_long_polls", "Long polls and streams open now.", registry=self.registry).set_function(count)

    def watch_certificate(self, end: Callable[[], datetime | None]) -> None:
        """Show until when the daemon's certificate is valid."""

        def seconds() -> float:
            when = end()
            return math.nan if when is None else when.timestamp()

        Gauge(
            "fabricd_tls_not_after_seconds",
            "End of the certificate of the TCP port, Unix time.",
            registry=self.registry,
        ).set_function(seconds)

    def watch(self, collector: Collector) -> None:
        """Add a source of figures that is read with each scrape."""
        self.registry.register(collector)

    def render(self) -> bytes:
        """Return everything in Prometheus' text format."""
        return generate_latest(self.registry)


class NodeCollector(Collector):
    """Figures of the node map, read with each scrape."""

    def __init__(self, nodes: NodeMap) -> None:
        self._nodes = nodes

    def collect(self) -> Iterator[Metric]:
        """Yield outcome and duration of each probe, generation and age of the snapshot, peers by state."""
        if not self._nodes.ready:
            return
        local = self._nodes.local
        outcome = GaugeMetricFamily(
            "fabricd_probe_outcome", "1 for the outcome of each probe's latest run.", labels=["probe", "outcome"]
        )
        duration = GaugeMetricFamily(
            "fabricd_probe_duration_seconds", "Duration of each probe's latest run.", labels=["probe"]
        )
        for report in local.probes:
            outcome.add_metric([report.name, report.outcome.value], 1)
            duration.add_metric([report.name], report.duration_seconds)
        yield outcome
        yield duration
        nodes = self._nodes
        yield _gauge("fabricd_snapshot_generation", "Changes of this node's facts since start.", local.generation)
        yield _gauge("fabricd_snapshot_age_seconds", "Since this node was last probed.", nodes.local_age_seconds)
        yield _gauge("fabricd_node_conflicts", "Nodes that cannot be told apart.", len(nodes.conflicts))
        yield _gauge("fabricd_links_flapping", "Links that change too often to be told of.", nodes.history.flapping)
        yield CounterMetricFamily(
            "fabricd_events", "Changes of the cluster's map since start.", value=nodes.history.version.number
        )
        peers = GaugeMetricFamily("fabricd_peers", "Peers by state.", labels=["state"])
        for state, count in nodes.count().items():
            peers.add_metric([state.value], count)
        yield peers


class FindingsCollector(Collector):
    """How many findings there are on this node, read with each scrape; worked out when its facts have changed."""

    def __init__(self, nodes: NodeMap, known: KnownFindings) -> None:
        self._nodes = nodes
        self._known = known

    def collect(self) -> Iterator[Metric]:
        """Yield their number by severity."""
        if not self._nodes.ready:
            return
        local = self._nodes.local
        found = [one.severity for one in self._known.of_node(local.node.node_id, local)]
        counts = GaugeMetricFamily("fabricd_findings", "What is wrong with this node.", labels=["severity"])
        for severity in Severity:
            counts.add_metric([severity.value], found.count(severity))
        yield counts


class GroupCollector(Collector):
    """Figures of the groups, read with each scrape."""

    def __init__(self, groups: GroupService) -> None:
        self._groups = groups

    def collect(self) -> Iterator[Metric]:
        """Yield the number of groups by phase."""
        phases = [group.state.phase for group in self._groups.all()]
        groups = GaugeMetricFamily("fabricd_groups", "Groups by phase.", labels=["phase"])
        for phase in (phase for phase in GroupPhase if phase is not GroupPhase.OTHER):
            groups.add_metric([phase.value], phases.count(phase))
        yield groups


class ShortageCollector(Collector):
    """What the daemon runs and ran short of, read with each scrape."""

    def __init__(self, shortages: Shortages) -> None:
        self._shortages = shortages

    def collect(self) -> Iterator[Metric]:
        """Yield for each resource whether there is too little of it, and how often there was."""
        short = GaugeMetricFamily("fabricd_short", "1 while there is too little of a resource.", labels=["resource"])
        met = CounterMetricFamily(
            "fabricd_shortages", "What was refused or put off for want of a resource.", labels=["resource"]
        )
        for resource in Resource:
            short.add_metric([resource.value], float(resource in self._shortages.now))
            met.add_metric([resource.value], self._shortages.met[resource])
        yield short
        yield met


def _gauge(name: str, told: str, value: float) -> Metric:
    return GaugeMetricFamily(name, told, value=value)
