"""``Communicator.explain()``: the plan in a few lines."""

from fabric_client.environment import Identity
from fabric_client.runner import Runner
from fabricd.model.plan import GroupPlan, NetworkChoice
from fabricd.model.transport import Transport
from fabricd.units import format_bandwidth, format_latency, format_ranges

_HOSTS_SHOWN = 8


def explain_communicator(runner: Runner, identity: Identity) -> str:
    """Return what was planned, why, and what is in force.

    Args:
        runner: of the communicator.
        identity: who this rank is and where that was found.
    """
    engine, membership = runner.engine, runner.membership
    lines = [
        f"group {runner.group}: rank {engine.rank} of {engine.size} (from {identity.source}), engine {engine.name}"
    ]
    if runner.made_of:
        lines.append(f"made of {runner.made_of!r}: engine and settings are that one's")
    if membership is not None:
        lines.append(f"rendezvous: {membership.describe()}")
        lines.extend(plan_lines(membership.plan))
    lines.extend(engine.describe())
    return "\n".join(lines)


def plan_lines(plan: GroupPlan) -> list[str]:
    """Return what a plan says of hosts and networks, and why."""
    hosts: dict[int, list[int]] = {}
    for part in plan.ranks:
        hosts.setdefault(part.host_index, []).append(part.rank)
    names = {part.host_index: part.node for part in plan.ranks}
    shown = [
        f"{names[index]} has rank{'s' if len(ranks) > 1 else ''} {format_ranges(ranks)}"
        for index, ranks in sorted(hosts.items())[:_HOSTS_SHOWN]
    ]
    more = f", and {len(hosts) - _HOSTS_SHOWN} more" if len(hosts) > _HOSTS_SHOWN else ""
    lines = [f"hosts: {len(hosts)} ({'; '.join(shown)}{more})"]
    lines.extend(_network_line(network) for network in sorted(plan.networks, key=lambda network: not network.chosen))
    lines.extend(plan.because)
    return lines


def _network_line(network: NetworkChoice) -> str:
    told: list[str] = [] if network.transport is Transport.UNKNOWN else [str(network.transport)]
    if network.virtual:
        told.append("virtual")
    if network.bandwidth_bytes_per_second is not None or network.latency_seconds is not None:
        age = f" {network.age_seconds:.0f} s ago" if network.age_seconds is not None else ""
        told.append(format_bandwidth(network.bandwidth_bytes_per_second))
        told.append(format_latency(network.latency_seconds))
        told.append(f"{network.evidence}{age}")
    facts = f" ({', '.join(told)})" if told else ""
    because = f": {network.reason}" if network.reason else ""
    return f"{'chosen' if network.chosen else 'not   '} {network.network}{facts}{because}"
