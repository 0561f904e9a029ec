"""``fabricctl networks``: which ports can talk to which, what each network is for, and how that is known."""

from collections.abc import Mapping, Sequence
from typing import Annotated

import typer

from fabric_client.cli.show import console, print_json, table
from fabric_client.cli.source import FromOption, JsonOption, load
from fabricd.errors import InputError
from fabricd.graph.networks import find_networks
from fabricd.graph.placement import leaf_rails, placement
from fabricd.model.cluster import ClusterStatus
from fabricd.model.network import Network, role_rank
from fabricd.model.path import Rejected, Transport
from fabricd.model.placement import Place
from fabricd.units import format_least, format_time

_COLUMNS = ("NETWORK", "KIND", ">NODES", ">PORTS", ">SPEED", "RAIL", "ROLE", "VERIFIED", "REASON")
#: A daemon works networks out when it is asked, which takes seconds for ten thousand nodes.
_WORK_SECONDS = 60.0
_ORDER = {transport: place for place, transport in enumerate(Transport)}
AllOption = Annotated[bool, typer.Option("--all", help="Show also the ports that are on no network, and why.")]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("networks")(networks)


def networks(*, origin: FromOption = None, show_all: AllOption = False, as_json: JsonOption = False) -> None:
    """List the networks that join nodes' ports: those for jobs' data first."""
    found, rejected, names, places = _found(origin)
    found = sorted(found, key=lambda one: (role_rank(one.role), _ORDER[one.transport], _place(one), one.name))
    if as_json:
        print_json({"networks": found, "no_network": rejected})
        return
    out = console()
    if not found:
        out.print("no port is on any network")
    else:
        out.print(table(_COLUMNS, [_row(network, names, places) for network in found]))
    if show_all:
        out.print()
        out.print(table(("PORT", "ON NO NETWORK BECAUSE"), [_rejected_row(one, names) for one in rejected]))
    elif rejected:
        out.print(f"{len(rejected)} ports are on no network; --all shows why")
    if not found:
        raise typer.Exit(1)


_Found = tuple[Sequence[Network], Sequence[Rejected], Mapping[str, str], Mapping[str, Place]]


def _found(origin: str | None) -> _Found:
    """Return networks, ports on none, names and places: from the daemon, which has measured, else from a file."""
    source = load(origin)
    if source.topology is not None:
        raise InputError(
            f"{source.name} is a topology file, which knows no networks", hint="a daemon or a cluster does"
        )
    if source.connection is None:
        found = find_networks(source.nodes)
        return found.networks, found.rejected, source.names(), placement(source.nodes)
    asked = {"summary": "1", "networks": "1"}
    cluster = source.connection.get("/v1/cluster", ClusterStatus, params=asked, seconds=_WORK_SECONDS)
    names = {node.node_id: node.name for node in cluster.nodes}
    places = {place.node: place for place in cluster.places or ()}
    if cluster.networks_age_seconds:
        typer.echo(f"as of {format_time(cluster.networks_age_seconds)} ago; the map has changed since", err=True)
    return cluster.networks or (), cluster.no_network or (), names, places


def _place(network: Network) -> int:
    return network.rail.index if network.rail else -1


def _row(network: Network, names: Mapping[str, str], places: Mapping[str, Place]) -> tuple[object, ...]:
    nodes = list(dict.fromkeys(port.node for port in network.ports))
    told = format_least(port.speed_bytes_per_second for port in network.ports)
    rail = "" if network.rail is None else f"{network.rail.index} ({network.rail.verified})"
    if not rail and (several := leaf_rails(network, places)):
        rail = f"{several}, by leaf"
    role = network.role + (" (configured)" if network.configured else "")
    where = f"{names.get(nodes[0], nodes[0])}" if len(nodes) == 1 else len(nodes)
    virtual = "; virtual" if all(port.virtual for port in network.ports) else ""
    facts = (where, len(network.ports), told, rail, role, network.verified, network.reason + virtual)
    return (network.name, network.transport, *facts)


def _rejected_row(one: Rejected, names: Mapping[str, str]) -> tuple[str, str]:
    node_id, _, port = one.name.partition("/")
    return f"{names.get(node_id, node_id)}/{port}", one.reason
