"""``fabricctl nodes``: the nodes that a daemon knows, how fresh its knowledge is, and where they stand."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated

import typer

from fabric_client.cli.placement_option import PlacementOption, read_all
from fabric_client.cli.show import console, print_json, table, text
from fabric_client.cli.source import FromOption, JsonOption, load_cluster
from fabricd.graph.placement import placement
from fabricd.model.cluster import NodeState, NodeStatus, inventory_of
from fabricd.model.placement import Place

_STYLES = {NodeState.OK: "green", NodeState.STALE: "yellow", NodeState.GONE: "red", NodeState.UNKNOWN: "red"}
_PLACE_COLUMNS = ("NODE", "LEAF", "SPINE", "ABOVE", "BLOCK", "RACK", "ZONE", "NVLINK DOMAIN", "EVIDENCE", "BECAUSE")
PlacesOption = Annotated[bool, typer.Option("--places", help="Show where nodes stand, and how that is known.")]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("nodes")(nodes)


def nodes(
    *,
    origin: FromOption = None,
    files: PlacementOption = None,
    show_places: PlacesOption = False,
    as_json: JsonOption = False,
) -> None:
    """List the nodes that a daemon knows, or that are in a cluster's file, and where they stand."""
    imports = read_all(files)
    cluster = load_cluster(origin, whole=bool(imports))  # files are compared with what each node says itself
    known = {status.node_id: status.snapshot for status in cluster.nodes if status.snapshot is not None}
    places = placement(known, imports) if known else {place.node: place for place in cluster.places or ()}
    if as_json:
        listed = tuple(replace(status, snapshot=None) for status in cluster.nodes)
        print_json(replace(cluster, nodes=listed, places=tuple(places.values())))
        return
    out = console()
    for note in (note for imported in imports for note in imported.notes):
        out.print(text(note, "yellow"))
    if show_places:
        names = {status.node_id: status.name for status in cluster.nodes}
        out.print(table(_PLACE_COLUMNS, [_place_row(place, names) for place in places.values()]))
        return
    columns = ("NODE", "STATE", ">AGE", ">GPUS", ">HCAS", ">PORTS", "PLACE", "SYSTEM", "ADDRESS", "REASON")
    out.print(table(columns, [_row(status, places.get(status.node_id)) for status in cluster.nodes]))
    if cluster.store.state is not NodeState.OK:
        out.print(text(f"{cluster.store.backend} is {cluster.store.state}: {cluster.store.reason}", "yellow"))
    for kind, told in (("conflict", cluster.conflicts), ("fault", cluster.faults)):
        for sentence in told:
            out.print(text(f"{kind}: {sentence}", "yellow"))


def _place_row(place: Place, names: Mapping[str, str]) -> tuple[object, ...]:
    above = " < ".join(place.switches[2:])
    facts = (place.leaf, place.spine, above, place.block, place.rack, place.zone, place.nvlink_domain)
    evidence = place.evidence if place.switches else ""
    return (names.get(place.node, place.node), *facts, evidence, "; ".join(place.because) or "nothing tells")


def _place(place: Place | None) -> str:
    """Return where a node stands in few words: its switches, nearest first, else what is known instead."""
    if place is None:
        return ""
    others = (("block", place.block), ("rack", place.rack), ("zone", place.zone), ("NVLink", place.nvlink_domain))
    told = [
        " < ".join(switch or "?" for switch in place.switches),
        *(f"{kind} {name}" for kind, name in others if name),
    ]
    return ", ".join(filter(None, told))


def _row(status: NodeStatus, place: Place | None) -> tuple[object, ...]:
    told = status.inventory or (inventory_of(status.snapshot) if status.snapshot else None)
    numbers: tuple[object, ...] = (told.gpus, told.hcas, told.cards) if told else ("?", "?", "?")
    name = (status.name or "?") + (" (this node)" if status.this_node else "")
    age = f"{status.age_seconds:.0f} s" if status.age_seconds is not None else "" if status.was_seen else "never"
    state = text(status.state, _STYLES[status.state])
    system = told.system if told else ""
    return (name, state, age, *numbers, _place(place), system, status.url, status.reason or status.note)
