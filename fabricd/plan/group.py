"""The plan of a group: which ranks share memory, which network joins their hosts, and what each rank sets for that.

Pure: what the ranks see, what the daemons know and what was measured goes in, the plan comes out.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

from fabricd.errors import InputError, NoNetworkError
from fabricd.localview import LocalView
from fabricd.model.measurement import Measurement
from fabricd.model.network import NetworkPort
from fabricd.model.observation import Evidence
from fabricd.model.path import Transport
from fabricd.model.plan import GroupPlan, Island, NetworkChoice, RankSlice, Setting
from fabricd.model.snapshot import Snapshot
from fabricd.plan.group_candidate import Candidate, unbound
from fabricd.plan.group_choice import Rated, choices, rate, rated_key
from fabricd.plan.group_gloo import gloo_fault, gloo_settings
from fabricd.plan.group_hosts import Hosts, process_mapping
from fabricd.plan.group_islands import islands_of
from fabricd.plan.group_loopback import loopback_of, loopback_settings
from fabricd.plan.group_nccl import choose_engine, nccl_parts
from fabricd.plan.group_order import GroupOrder, order_of
from fabricd.plan.group_ports import network_settings, ports_of
from fabricd.plan.group_survey import survey
from fabricd.units import format_names, format_ranges

#: What plans can be made for. "gloo" is what PyTorch and JAX use for memory of hosts, "nccl+gloo" what they use with
#: GPUs, for they meet by IP all the same.
ENGINES = ("mpi", "gloo", "nccl", "nccl+gloo")
#: Asks for the best engine that all ranks have.
AUTO = "auto"
#: MPICH reads PMI_process_mapping into a value of its process manager, which bounds it.
_MAPPING_MAX_LENGTH = 4000
_SHOWN = 8


def plan_group(
    engine: str,
    views: Mapping[int, LocalView],
    nodes: Mapping[str, Snapshot],
    measurements: Iterable[Measurement] = (),
    unmeasured: Mapping[str, str] | None = None,
) -> GroupPlan:
    """Return the plan.

    Args:
        engine: what is to move the data; ``AUTO`` lets the plan say so.
        views: what the ranks 0 to n - 1 see.
        nodes: snapshots by node_id, of the daemons that are known.
        measurements: what was measured, of these or other networks.
        unmeasured: why there is no measurement, by network, beyond what ``survey`` says.

    Raises:
        NoNetworkError: no network joins the hosts; says what each has.
        InputError: an engine that there is not.
    """
    measurements = tuple(measurements)
    if engine == AUTO:
        engine, why = choose_engine(views)
        plan = plan_group(engine, views, nodes, measurements, unmeasured)
        return replace(plan, because=(why, *plan.because))
    if engine not in ENGINES:
        raise InputError(f"no engine called {engine[:40]!r}", hint=f"one of {', '.join(ENGINES)}")
    if engine == "nccl+gloo":
        return _with_gloo(engine, lambda part: plan_group(part, views, nodes, measurements, unmeasured))
    known = survey(views, nodes)
    hosts = known.hosts
    if engine == "gloo" and len(hosts.places) == 1:
        return _on_loopback(engine, hosts)
    if engine == "mpi" and hosts.count == 1:
        return _in_memory(engine, hosts, views)
    told = {**known.unmeasured, **(unmeasured or {})}
    candidates = known.candidates.without(partial(_fault, engine, hosts))
    rated = sorted((rate(one, hosts, measurements, told) for one in candidates.networks), key=rated_key)
    rejected = tuple(
        NetworkChoice(network=one.name, transport=Transport.UNKNOWN, reason=one.reason) for one in candidates.rejected
    )
    networks = choices(rated, rejected)
    if engine == "nccl":
        parts = nccl_parts(hosts, nodes, rated, networks)
        if parts is None:
            raise _no_network(hosts, networks)
        return _plan(engine, hosts, parts.settings, parts.ports, parts.networks, parts.because)
    best = next((one for one in rated if not one.unreachable), None)
    if best is None:
        raise _no_network(hosts, networks)
    return _over(best, engine, hosts, views, nodes, networks)


def _in_memory(engine: str, hosts: Hosts, views: Mapping[int, LocalView]) -> GroupPlan:
    where = f"on {hosts.places[0].name}"
    told = f"{len(views)} ranks {where} share memory" if len(views) > 1 else f"the only rank is {where}"
    because = f"{told}, so no network is used"
    shared = (Setting(name="UCX_TLS", value="self,sm", because="all ranks share memory"),)
    return _plan(engine, hosts, dict.fromkeys(views, shared), {}, (), (because,))


def _over(
    best: Rated,
    engine: str,
    hosts: Hosts,
    views: Mapping[int, LocalView],
    nodes: Mapping[str, Snapshot],
    networks: tuple[NetworkChoice, ...],
) -> GroupPlan:
    """Return the plan of an engine of the hosts' memory over one network."""
    ports = {rank: ports_of(rank, best.candidate, hosts, views) for rank in views}
    settings = {
        rank: gloo_settings(best.candidate, own[0])
        if engine == "gloo"
        else network_settings(best.candidate, own, hosts)
        for rank, own in ports.items()
    }
    islands = () if best.candidate.rdma else islands_of(hosts)
    better = order_of(hosts, nodes) if engine == "gloo" else GroupOrder()
    told_why = (*_because(hosts, best), *_about_islands(islands, best), *filter(None, [better.because]))
    plan = _plan(engine, hosts, settings, ports, networks, told_why)
    return replace(plan, islands=islands, order=better.order)


def _fault(engine: str, hosts: Hosts, candidate: Candidate) -> str:
    """Return why an engine could not use a network, ``""`` if it could."""
    if engine == "gloo":
        return gloo_fault(candidate, hosts)
    return unbound(candidate, "NCCL") if engine == "nccl" else candidate.hidden


def _plan(
    engine: str,
    hosts: Hosts,
    settings: Mapping[int, tuple[Setting, ...]],
    ports: Mapping[int, tuple[NetworkPort, ...]],
    networks: tuple[NetworkChoice, ...],
    because: tuple[str, ...],
) -> GroupPlan:
    mapping = process_mapping(hosts.host_of)
    if len(mapping) > _MAPPING_MAX_LENGTH:
        # As if no two ranks shared memory: MPICH then reaches all of them by UCX, which finds shared memory itself.
        mapping = process_mapping(range(len(hosts.host_of)))
        because = (*because, "the order of the ranks over the hosts is too irregular to tell MPICH")
    slices = tuple(
        RankSlice(
            rank=rank,
            node=hosts.places[hosts.place_of[rank]].name,
            host_index=hosts.host_of[rank],
            devices=tuple(port.interface for port in ports.get(rank, ())),
            address=next((port.address for port in ports.get(rank, ())), ""),
            settings=settings[rank],
        )
        for rank in sorted(settings)
    )
    return GroupPlan(
        engine=engine,
        size=len(slices),
        ranks=slices,
        networks=networks,
        process_mapping=mapping,
        because=because,
    )


def _with_gloo(engine: str, plan: Callable[[str], GroupPlan]) -> GroupPlan:
    """Return the plan for NCCL, with Gloo's settings and the addresses to meet at, where there are any."""
    main = plan("nccl")
    try:
        beside = plan("gloo")
    except NoNetworkError as error:
        return replace(main, engine=engine, because=(*main.because, f"nothing for Gloo: {error.message}"))
    ranks = tuple(
        replace(one, address=other.address, settings=(*one.settings, *other.settings))
        for one, other in zip(main.ranks, beside.ranks, strict=True)
    )
    why = [f"Gloo takes {one.network}: {one.reason}" for one in beside.networks if one.chosen]
    why += beside.because[-1:] if beside.order else ()
    return replace(main, engine=engine, ranks=ranks, order=beside.order, because=(*main.because, *why))


def _on_loopback(engine: str, hosts: Hosts) -> GroupPlan:
    port = loopback_of(hosts.places[0].view, hosts.places[0].name)
    ranks = range(len(hosts.host_of))
    where = f"on {hosts.places[0].name}"
    told = f"{len(ranks)} ranks {where} are in one network namespace" if len(ranks) > 1 else f"the only rank is {where}"
    because = f"{told}, so no network is used"
    ports = dict.fromkeys(ranks, (port,)) if port else {}
    return _plan(engine, hosts, dict.fromkeys(ranks, loopback_settings(port)), ports, (), (because,))


def _because(hosts: Hosts, best: Rated) -> tuple[str, ...]:
    shown = "; ".join(str(place) for place in hosts.places[:_SHOWN])
    more = f"; {len(hosts.places) - _SHOWN} more" if len(hosts.places) > _SHOWN else ""
    lines = [f"{len(hosts.host_of)} ranks on {hosts.count} hosts: {shown}{more}"]
    if len(hosts.places) < hosts.count:
        lines[0] = f"{len(hosts.host_of)} ranks, not all of which share memory: {shown}{more}"
        lines.append("ranks that are on one host and share no memory talk over its network interface")
    lines.append(f"{best.candidate.name} joins them: {best.candidate.reason}")
    if best.evidence is not Evidence.MEASURED:
        lines.append(f"that {best.candidate.name} works is assumed: {best.note or 'it was not measured'}")
    return tuple(lines)


def _about_islands(islands: Sequence[Island], best: Rated) -> Iterator[str]:
    """Say what is faster inside than between: this engine has one network for all."""
    if islands:
        told = [f"{format_ranges(one.ranks)} over {one.network} ({one.transport})" for one in islands]
        leaders = ", ".join(str(one.leader) for one in islands[:_SHOWN])
        yield f"{len(islands)} islands: ranks {format_names(told, separator='; ')}"
        yield f"this engine talks over {best.candidate.name} inside them too; in steps only leaders {leaders} would"


def _no_network(hosts: Hosts, networks: Sequence[NetworkChoice]) -> NoNetworkError:
    """Return the error that says what each host has, and why it does not do."""
    parts = []
    for place in hosts.places[:_SHOWN]:
        has = [
            f"{one.name} {'/'.join(address.address for address in one.addresses[:_SHOWN]) or 'without address'}"
            for one in place.facts.interfaces
            if one.kind.value != "loopback"
        ]
        parts.append(f"{place} has {', '.join(has[:_SHOWN]) or 'no interface'}")
    reasons = [f"{one.network}: {one.reason}" for one in networks]
    return NoNetworkError(
        f"no network joins the hosts of the group: {'; '.join(parts)}",
        hint="; ".join(reasons[:_SHOWN]),
        details={
            "hosts": [{"name": place.name, "ranks": format_ranges(place.ranks)} for place in hosts.places[:64]],
            "rejected": reasons[:64],
        },
    )
