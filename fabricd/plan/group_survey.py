"""What there is to know before a group is planned: networks that could join its hosts, and what to measure of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fabricd.graph.networks_fabric import ROCE_PREFIX
from fabricd.localview import LocalView
from fabricd.model.measurement import Pair
from fabricd.model.network import NetworkPort
from fabricd.model.path import Transport
from fabricd.model.snapshot import Snapshot
from fabricd.plan.group_candidate import Candidate, Candidates
from fabricd.plan.group_hosts import Hosts, Place, find_hosts
from fabricd.plan.group_networks import find_candidates

_SHOWN = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """What there is to choose from, before anything is measured."""

    hosts: Hosts
    candidates: Candidates
    pairs: tuple[Pair, ...]  #: to be measured
    unmeasured: Mapping[str, str]  #: network -> why no daemon can measure it


def survey(views: Mapping[int, LocalView], nodes: Mapping[str, Snapshot]) -> Survey:
    """Return the networks that could join the hosts, and the pairs of addresses to measure.

    On each network every host takes part in one measurement, or two where their number is odd: so each is known to
    be reached, and a cluster does not measure all its pairs for one job.

    Args:
        views: what the ranks 0 to n - 1 see.
        nodes: snapshots by node_id, of the daemons that are known.
    """
    hosts = find_hosts(views, nodes)
    if hosts.count == len(hosts.places) == 1:
        return Survey(hosts=hosts, candidates=Candidates(networks=(), rejected=()), pairs=(), unmeasured={})
    candidates = find_candidates(hosts, views)
    pairs: dict[tuple[str, str], Pair] = {}
    unmeasured: dict[str, str] = {}
    for candidate in candidates.networks:
        found, why = _pairs(candidate, hosts.places, nodes)
        pairs.update({(pair.src_address, pair.dst_address): pair for pair in found})
        if why:
            unmeasured[candidate.name] = why
    return Survey(hosts=hosts, candidates=candidates, pairs=tuple(pairs.values()), unmeasured=unmeasured)


def _pairs(candidate: Candidate, places: Sequence[Place], nodes: Mapping[str, Snapshot]) -> tuple[list[Pair], str]:
    """Return the pairs to measure on one network, and why others cannot be."""
    if candidate.transport is Transport.INFINIBAND:
        return [], ""
    if len(places) == 1:
        return [], "all ranks are in one network namespace"
    silent = [
        place.name
        for place, ports in zip(places, candidate.ports, strict=True)
        if not _daemon_has(place, ports[0], nodes)
    ]
    if silent:
        return [], f"not measured: no daemon in the network namespace of {', '.join(silent[:_SHOWN])}"
    order = list(range(len(places)))
    if len(order) % 2:
        order.append(0)
    found = []
    for src, dst in zip(order[::2], order[1::2], strict=True):
        if places[src].node_id == places[dst].node_id:
            continue  # one daemon cannot be both ends
        a, b = candidate.ports[src][0], candidate.ports[dst][0]
        found.append(
            Pair(
                network=candidate.name.removeprefix(ROCE_PREFIX),
                src_node=places[src].node_id,
                dst_node=places[dst].node_id,
                src_interface=a.interface,
                dst_interface=b.interface,
                src_address=a.address,
                dst_address=b.address,
            )
        )
    return found, ""


def _daemon_has(place: Place, port: NetworkPort, nodes: Mapping[str, Snapshot]) -> bool:
    known = nodes.get(place.node_id)
    return known is not None and any(
        address.address == port.address for interface in known.interfaces for address in interface.addresses
    )
