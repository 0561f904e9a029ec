"""The plan of a group whose ranks have a GPU each: what NCCL is told, and on which networks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from fabricd.errors import NoNetworkError
from fabricd.graph.networks_nvlink import domain_of, out_of_domain
from fabricd.localview import IMEX_CHANNELS, LocalView
from fabricd.model.network import NetworkPort
from fabricd.model.path import Transport
from fabricd.model.plan import NetworkChoice, Setting
from fabricd.model.snapshot import Snapshot
from fabricd.plan.group_choice import Rated
from fabricd.plan.group_hosts import Hosts, Place, as_ranks_see
from fabricd.plan.settings import of_node, settings_for
from fabricd.plan.settings.job import Job, job_of
from fabricd.plan.settings.scope import by_node
from fabricd.units import format_ranges

#: A path comes from the administrator of the node where the file is, never over the network.
_PATHS = frozenset({"NCCL_TOPO_FILE", "NCCL_GRAPH_FILE"})
_SOCKETS = frozenset({"NCCL_SOCKET_IFNAME", "NCCL_SOCKET_FAMILY"})
_NEEDS = ("cupy", "nccl")
_SHOWN = 4  #: of hosts that lack something


@dataclass(frozen=True, slots=True, kw_only=True)
class NcclParts:
    """What is particular to NCCL in the plan of a group."""

    settings: Mapping[int, tuple[Setting, ...]]  #: by rank
    ports: Mapping[int, tuple[NetworkPort, ...]]  #: by rank; none on one host
    networks: tuple[NetworkChoice, ...]
    because: tuple[str, ...]


def choose_engine(views: Mapping[int, LocalView]) -> tuple[str, str]:
    """Return the engine for ranks that did not ask for one, and why: "nccl" where each can have a GPU of its own.

    Args:
        views: what the ranks 0 to n - 1 see.
    """
    without = [rank for rank, view in views.items() if not view.gpu_uuids]
    if without:
        who = "no rank" if len(without) == len(views) else f"rank {format_ranges(without)}"
        return "mpi", f"engine mpi: {who} sees a GPU" if who == "no rank" else f"engine mpi: {who} sees no GPU"
    gpus: dict[str, set[str]] = {}
    ranks: dict[str, list[int]] = {}
    for rank, view in views.items():
        gpus.setdefault(view.boot_id, set()).update(view.gpu_uuids)
        ranks.setdefault(view.boot_id, []).append(rank)
    crowded = next((host for host in gpus if len(ranks[host]) > len(gpus[host])), None)
    if crowded is not None:
        here = ranks[crowded]
        return "mpi", f"engine mpi: {len(here)} ranks share {len(gpus[crowded])} GPUs ({format_ranges(here)})"
    for rank, view in views.items():
        missing = [name for name in _NEEDS if name not in dict(view.versions)]
        if missing:
            return "mpi", f"engine mpi: rank {rank} has no {' and no '.join(missing)}"
    return "nccl", "engine nccl: every rank has a GPU of its own"


def nccl_parts(
    hosts: Hosts, nodes: Mapping[str, Snapshot], rated: Sequence[Rated], networks: Sequence[NetworkChoice]
) -> NcclParts | None:
    """Return what NCCL is told; None where no network joins the hosts.

    RDMA networks are chosen by what ports claim, as NCCL itself does, and never one on which nothing arrives; among
    those of TCP, what was measured decides.

    Args:
        hosts: where the ranks are.
        nodes: snapshots by node_id, of the daemons that are known.
        rated: the networks that could join the hosts, best first.
        networks: the same and the others, for people.
    """
    seen = {place.name: _seen(place, nodes) for place in hosts.places}
    best = next((one for one in rated if not one.unreachable), None)
    dead = {one.candidate.name: one.unreachable for one in rated if one.unreachable}
    try:
        job = job_of(seen, unreachable=dead)
        told = settings_for(seen, engines=("nccl",), unreachable=dead)
    except NoNetworkError:  # but routes may join them
        job, told = None, ()
    kept = [one for one in told if one.name not in _PATHS]
    left = [
        f"not set here, because a plan sets no paths: {one.name}={one.value}{f' on {one.node}' if one.node else ''} "
        f"({one.because})"
        for one in told
        if one.name in _PATHS
    ]
    if len(hosts.places) == 1:
        ports: Mapping[str, tuple[NetworkPort, ...]] = {}
        because = f"all ranks are on {hosts.places[0].name}: NCCL finds the best way between its GPUs by itself"
    elif job is not None and job.transport is not Transport.ETHERNET:
        names = [network.name for network in job.data]
        ports = {name: tuple(job.ports(name)) for name in seen}
        networks = _chosen(networks, job)
        because = f"{', '.join(names[:4])} ({job.transport}) joins the nodes"
    elif best is None:
        return None
    else:
        kept = [one for one in kept if one.name not in _SOCKETS]
        kept += _socket_settings(best, hosts)
        ports = {place.name: best.candidate.ports[number][:1] for number, place in enumerate(hosts.places)}
        because = f"{best.candidate.name} joins the nodes by TCP: {best.candidate.reason}"
    names = [hosts.places[hosts.place_of[rank]].name for rank in range(len(hosts.host_of))]
    return NcclParts(
        settings={rank: of_node(kept, name, rank=rank) for rank, name in enumerate(names)},
        ports={rank: ports[name] for rank, name in enumerate(names) if name in ports},
        networks=tuple(networks),
        because=(because, *_of_nvlink(hosts.places, nodes), *left),
    )


def _of_nvlink(places: Sequence[Place], nodes: Mapping[str, Snapshot]) -> list[str]:
    """Return whether NCCL can use an NVLink domain that all hosts are in; nothing where they are in none."""
    if len(places) == 1 or not all(place.node_id in nodes for place in places):
        return []
    domains = [
        {domain_of(gpu) for gpu in nodes[place.node_id].gpus if not out_of_domain(gpu)} - {None} for place in places
    ]
    if not set.intersection(*domains):
        return []
    lacking = [str(place) for place in places if place.view.imex_channels == ()]
    if lacking:
        return [
            f"the hosts are in one NVLink domain, but {', '.join(lacking[:_SHOWN])} may open no IMEX channel"
            f" (/dev/{IMEX_CHANNELS}), without which NCCL does not use it between hosts"
        ]
    silent = [str(place) for place in places if place.view.imex_channels is None]
    seen = f"whether {', '.join(silent[:_SHOWN])} may open an IMEX channel is not known" if silent else ""
    return [f"the hosts are in one NVLink domain: {seen or 'NCCL uses it, for every rank has an IMEX channel'}"]


def _seen(place: Place, nodes: Mapping[str, Snapshot]) -> Snapshot:
    """Return a node as the ranks on it see it."""
    known = nodes.get(place.node_id)
    return place.facts if known is None else as_ranks_see(known, place.facts)


def _socket_settings(best: Rated, hosts: Hosts) -> list[Setting]:
    candidate = best.candidate
    names = {place.name: f"={candidate.ports[number][0].interface}" for number, place in enumerate(hosts.places)}
    settings = list(by_node("NCCL_SOCKET_IFNAME", names, f"{candidate.name} joins the nodes: {candidate.reason}"))
    if candidate.ipv6:
        settings.append(
            Setting(name="NCCL_SOCKET_FAMILY", value="AF_INET6", because=f"{candidate.name} is an IPv6 network")
        )
    return settings


def _chosen(networks: Sequence[NetworkChoice], job: Job) -> list[NetworkChoice]:
    """Return the networks with those marked that carry the job's data; NCCL can use some that others cannot."""
    known = {one.network: one for one in networks}
    data = [
        replace(
            known.get(network.name, NetworkChoice(network=network.name, transport=network.transport)),
            transport=network.transport,
            chosen=True,
            reason=network.reason,
        )
        for network in job.data
    ]
    names = {network.name for network in job.data}
    return data + [replace(one, chosen=False) for one in networks if one.network not in names]
