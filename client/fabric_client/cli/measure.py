"""``fabricctl measure``: how fast nodes' networks are between them now, and which port or way is slow."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Annotated

import typer

from fabric_client.cli.findings_show import show_findings
from fabric_client.cli.job_nodes import JobNodesOption, job_nodes
from fabric_client.cli.show import console, print_json, table, text
from fabric_client.cli.source import FromOption, JsonOption, load
from fabric_client.connection import Connection
from fabricd.errors import InputError, UnknownNameError
from fabricd.findings.measured import ends, measured_findings
from fabricd.model.cluster import ClusterStatus
from fabricd.model.finding import Findings, Severity
from fabricd.model.measurement import MAX_PAIRS, Measurement, Pair, PairsAnswer, PairsRequest, Unmeasured
from fabricd.model.network import Network
from fabricd.plan.pairing import Step, steps
from fabricd.units import format_bandwidth, format_count, format_time

_COLUMNS = ("NETWORK", ">PAIRS", ">MEDIAN", ">SLOWEST", "BETWEEN", ">LATENCY", ">NOT REACHED")
#: A daemon works networks out when it is asked; it measures pairs for 45 s at most, after those of others for as long.
_SECONDS = 100.0
_MAX_ROUNDS = 64
#: So many are measured once more in time even where all share an end.
_AGAIN = 32
_SHOWN = 8

NetworkOption = Annotated[
    list[str] | None,
    typer.Option(
        "--network", metavar="NAME", help="Measure this network alone; may be repeated. `networks` lists them."
    ),
]
RoundsOption = Annotated[
    int,
    typer.Option(
        "--rounds", min=1, max=_MAX_ROUNDS, help="So many partners for each node; 3 tell slow ports from slow ways."
    ),
]

#: Both addresses of a pair, in order.
_Way = tuple[str, str]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("measure")(measure)


def measure(
    *,
    origin: FromOption = None,
    nodes: JobNodesOption = None,
    network: NetworkOption = None,
    rounds: RoundsOption = 3,
    as_json: JsonOption = False,
) -> None:
    """Measure the networks between nodes, by their daemons, and tell which port or way is slow, or leads nowhere.

    One TCP stream for each pair, of 16 MiB at most; in each round every node has another partner. What looks slow is
    measured once more. Other jobs on these nodes are disturbed for seconds. Exit status 1 where something is found.
    """
    source = load(origin)
    if source.connection is None:
        raise InputError(f"{source.name} is a file, which nobody can measure", hint="--from takes a daemon")
    job = job_nodes(source, nodes)
    names = {node_id: name for name, node_id in job.ids.items()}
    networks = _networks(source.connection, names, network or ())
    found: dict[_Way, Measurement] = {}
    left: dict[Pair, str] = {}
    plan = list(steps(networks, list(names), rounds))
    for step in plan:
        typer.echo(f"round {step.round + 1}: {format_count(len(step.pairs), 'pair')} of {step.network}", err=True)
        _take(source.connection, step.pairs, found, left)
    again = _suspects(names, found, networks, plan)
    if again:
        typer.echo(f"once more: {format_count(len(again), 'pair')} that look slow", err=True)
    for start in range(0, len(again), _AGAIN):
        _take(source.connection, again[start : start + _AGAIN], found, left)
    measurements = tuple(found.values())
    unmeasured = tuple(Unmeasured(pair=pair, reason=why) for pair, why in left.items() if _way_of(pair) not in found)
    findings = tuple(measured_findings(names, measurements, networks))
    if as_json:
        print_json({"measurements": measurements, "unmeasured": unmeasured, "findings": findings})
    else:
        _show(networks, measurements, unmeasured, names)
        show_findings(findings, Findings(findings=findings, nodes=len(names)))
    if not measurements or any(one.severity is not Severity.NOTE for one in findings):
        raise typer.Exit(1)


def _networks(connection: Connection, names: Mapping[str, str], wanted: Sequence[str]) -> list[Network]:
    """Return the networks that join some of the nodes, and can be measured.

    Raises:
        UnknownNameError: there is none of a name.
        InputError: none joins two of the nodes by addresses.
    """
    cluster = connection.get("/v1/cluster", ClusterStatus, params={"summary": "1", "networks": "1"}, seconds=_SECONDS)
    known = {one.name: one for one in cluster.networks or ()}
    for name in wanted:
        if name not in known:
            raise UnknownNameError("network", name, list(known)[:100])
    chosen = [one for one in known.values() if not wanted or one.name in wanted]
    joining = [one for one in chosen if len({port.node for port in one.ports if port.address} & names.keys()) > 1]
    if len(names) < 2:
        raise InputError(
            f"only {', '.join(names.values()) or 'no node'} is there, and a way has two ends",
            hint="daemons know each other by `fabricd serve --peer URL`, or by etcd: docs/cluster.md",
        )
    if not joining:
        told = ", ".join(f"{one.name} ({one.transport})" for one in chosen[:_SHOWN]) or "none"
        raise InputError(
            f"no network joins two of {format_count(len(names), 'node')} by IP addresses, by which they are measured",
            hint=f"networks: {told}. InfiniBand without IPoIB: ib_write_bw from one node to the other",
        )
    return joining


def _take(connection: Connection, pairs: Sequence[Pair], found: dict[_Way, Measurement], left: dict[Pair, str]) -> None:
    """Have pairs measured, and keep the best of each."""
    for start in range(0, len(pairs), MAX_PAIRS):
        asked = PairsRequest(pairs=tuple(pairs[start : start + MAX_PAIRS]))
        answer = connection.post("/v1/measure/pairs", PairsAnswer, body=asked, seconds=_SECONDS)
        for one in answer.measured:
            way = _way_of(one)
            if way not in found or _speed(one) >= _speed(found[way]):
                found[way] = one
        left |= {unmeasured.pair: unmeasured.reason for unmeasured in answer.unmeasured}


def _way_of(one: Measurement | Pair) -> _Way:
    return min(one.src_address, one.dst_address), max(one.src_address, one.dst_address)


def _speed(one: Measurement) -> float:
    return one.bandwidth_bytes_per_second or 0.0


def _suspects(
    names: Mapping[str, str], found: Mapping[_Way, Measurement], networks: Iterable[Network], plan: Iterable[Step]
) -> list[Pair]:
    """Return the pairs that findings rest on, not too many: a moment's work on one host is no slow network."""
    told = measured_findings(names, found.values(), networks)
    slow = {(one.node, one.subject) for one in told if one.code != "unreachable"}
    pairs = {_way_of(pair): pair for step in plan for pair in step.pairs}
    suspects = [
        pairs[way]
        for way, one in found.items()
        if {(names[one.src_node], one.src_interface), (names[one.dst_node], one.dst_interface)} & slow
    ]
    return suspects[:MAX_PAIRS]


def _show(
    networks: Iterable[Network],
    measurements: Iterable[Measurement],
    unmeasured: Sequence[Unmeasured],
    names: Mapping[str, str],
) -> None:
    by_network: dict[str, list[Measurement]] = defaultdict(list)
    for one in measurements:
        by_network[one.network].append(one)
    out = console()
    out.print(table(_COLUMNS, [_row(one.name, by_network[one.name], names) for one in networks]))
    reasons: dict[str, list[Pair]] = defaultdict(list)
    for missing in unmeasured:
        reasons[missing.reason].append(missing.pair)
    for reason, pairs in reasons.items():
        first = f"{names[pairs[0].src_node]} and {names[pairs[0].dst_node]} on {pairs[0].network}"
        more = f" and {len(pairs) - 1} more" if len(pairs) > 1 else ""
        out.print(text(f"{first}{more}: {reason}", "yellow"))


def _row(network: str, found: Sequence[Measurement], names: Mapping[str, str]) -> tuple[object, ...]:
    worked = [one for one in found if one.bandwidth_bytes_per_second]
    lost = sum(not one.reachable for one in found)
    if not worked:
        return (network, len(found), "?", "?", "", "?", lost)
    slowest = min(worked, key=_speed)
    latencies = [one.latency_seconds for one in worked if one.latency_seconds]
    return (
        network,
        len(found),
        format_bandwidth(median(map(_speed, worked))),
        format_bandwidth(_speed(slowest)),
        " - ".join(ends(slowest, names)),
        format_time(median(latencies)) if latencies else "?",
        lost,
    )
