"""``fabricctl read-log``: which network a job's NCCL took, and what the messages in its log mean."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated

import typer

from fabric_client.cli.findings_show import show_findings
from fabric_client.cli.show import console, print_json, text
from fabric_client.cli.source import FromOption, JsonOption, Source, load, opened
from fabricd.errors import InputError, UnreachableError
from fabricd.findings.joblog.judge import TCP, log_findings
from fabricd.findings.joblog.read import MAX_LINE, HostLog, JobLog, read_log
from fabricd.model.finding import Findings, Severity
from fabricd.model.snapshot import Snapshot
from fabricd.units import format_count, format_names

#: Of all files together.
_MAX_BYTES = 1 << 30
#: What files of gzip and zstd begin with, and no line of text does.
_COMPRESSED = (b"\x1f\x8b", b"\x28\xb5\x2f\xfd")
_SHOWN_HOSTS = 6

LogsArgument = Annotated[
    list[str],
    typer.Argument(
        metavar="LOG...", help="What the ranks of one job printed; - reads standard input.", show_default=False
    ),
]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("read-log")(read)


def read(logs: LogsArgument, *, origin: FromOption = None, as_json: JsonOption = False) -> None:
    """Tell from a job's log which network NCCL took, whether adapters reached GPUs' memory, and what its messages mean.

    Messages of NCCL, UCX, MPICH, Open MPI, Gloo and PyTorch are known; with a map the log is held against it. NCCL
    tells its connections only with NCCL_DEBUG=INFO. Exit status 1 where an error or a warning is found.
    """
    log = JobLog()
    left = [_MAX_BYTES]
    for name in logs:
        read_log(_lines(name, left), log=log, source=name if len(logs) > 1 else "")
    if not log.nccl_lines and not log.messages:
        raise InputError(
            f"{', '.join(logs)[:200]}: {format_count(log.lines, 'line')}, none of NCCL and no message that is known",
            hint="run the job with NCCL_DEBUG=INFO; docs/messages.md lists the messages",
        )
    source, told = _map(origin)
    nodes = _nodes(source, log) if source else {}
    findings = log_findings(log, nodes)
    if as_json:
        print_json({"version": log.version, "ranks": log.ranks, "hosts": log.hosts, "findings": findings})
    else:
        if log.nccl_lines:
            _show(log)
        console().print(
            text(told if source is None else f"held against the map of {told}: {_found(log, nodes)}", "dim")
        )
        show_findings(findings, Findings(findings=findings, nodes=len(log.hosts)))
    if any(one.severity is not Severity.NOTE for one in findings):
        raise typer.Exit(1)


def _lines(name: str, left: list[int]) -> Iterator[str]:
    """Yield the lines of a file; of long ones the beginning.

    Raises:
        InputError: the file cannot be read, or is compressed, or all are too large together.
    """
    with opened(name) as (stream, shown):
        begins = True
        while part := stream.readline(MAX_LINE):
            if part.startswith(_COMPRESSED):
                raise InputError(f"{shown} is compressed", hint="zcat LOG | fabricctl read-log -")
            left[0] -= len(part)
            if left[0] < 0:
                raise InputError(
                    f"{shown}: more than {_MAX_BYTES} bytes of logs",
                    hint="the start of a job is enough: head -n 100000",
                )
            if begins:
                yield part.decode(errors="replace")
            begins = part.endswith(b"\n")


def _map(origin: str | None) -> tuple[Source | None, str]:
    """Return the map and its name, or None and why there is none; only one that was asked for has to be there.

    Raises:
        FabricError: it was asked for, and is not there or none.
    """
    try:
        source = load(origin)
    except UnreachableError:
        if origin is not None:
            raise
        return None, "no map: no daemon answers here, so this is by the log alone; --from names a map"
    if source.topology is not None:
        raise InputError(
            f"{source.name} is a topology file, which names no host", hint="a daemon, a capture or a cluster does"
        )
    return source, source.name


def _nodes(source: Source, log: JobLog) -> Mapping[str, Snapshot]:
    hosts = {name.partition(".")[0] for name in log.hosts}
    return {name: source.nodes[node_id] for node_id, name in source.names().items() if name.partition(".")[0] in hosts}


def _found(log: JobLog, nodes: Mapping[str, Snapshot]) -> str:
    return f"{len(nodes)} of {format_count(len(log.hosts), 'host')} known to it"


def _show(log: JobLog) -> None:
    hosts = log.hosts
    ranks = f"{format_count(log.ranks, 'rank')} on " if log.ranks else ""
    out = console()
    out.print(text(f"NCCL {log.version or 'of unknown version'}: {ranks}{format_count(len(hosts), 'host')}"))
    within = sum(host.by_peer_access for host in hosts.values()), sum(host.through_memory for host in hosts.values())
    rdma = sum(host.direct + host.indirect for host in hosts.values())
    direct, tcp = sum(host.direct for host in hosts.values()), sum(host.by_socket for host in hosts.values())
    rows = [
        ("networks", _each((name, _network(host)) for name, host in hosts.items())),
        ("adapters", _each((name, _adapters(host)) for name, host in hosts.items())),
        ("ranks meet on", _each((name, host.interface or "?") for name, host in hosts.items())),
    ]
    if any(within):
        rows.append(("within hosts", f"{within[0]} connections by P2P, {within[1]} through memory (SHM)"))
    if rdma or tcp:
        rows.append(("between hosts", f"{rdma} ends by RDMA, {direct} of them with GPUDirect; {tcp} by TCP"))
    if not (any(within) or rdma or tcp):
        rows.append(("connections", "? NCCL tells them with NCCL_DEBUG=INFO, when it makes them"))
    for name, value in rows:
        out.print(text(f"  {name:14} {value}"))


def _network(host: HostLog) -> str:
    return ", ".join("Socket (TCP)" if name == TCP else name for name in host.networks) or "?"


def _adapters(host: HostLog) -> str:
    layers = sorted({layer for _, layer in host.adapters})
    return f"{len(host.adapters)} ({', '.join(layers)})" if host.adapters else "none told"


def _each(values: Iterable[tuple[str, str]]) -> str:
    """Return what all hosts have in common, or which have what."""
    by_value: dict[str, list[str]] = {}
    for name, value in values:
        by_value.setdefault(value, []).append(name)
    if len(by_value) == 1:
        return next(iter(by_value))
    counts = Counter({value: len(names) for value, names in by_value.items()})
    return "; ".join(f"{value}: {format_names(by_value[value], _SHOWN_HOSTS)}" for value, _ in counts.most_common())
