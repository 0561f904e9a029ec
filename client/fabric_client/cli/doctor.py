"""``fabricctl doctor``: what is wrong with a job's nodes, between them, and with this process; for prologs, too."""

import os
import socket
import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from fabric_client.cli.findings_show import show_findings
from fabric_client.cli.job_nodes import JobNodes, JobNodesOption, job_nodes
from fabric_client.cli.show import print_json
from fabric_client.cli.source import FromOption, JsonOption, Source, load
from fabric_client.joining import local_view
from fabricd.errors import InputError, UnknownNameError
from fabricd.findings.codes import CODES
from fabricd.findings.environment import environment_findings
from fabricd.findings.find import find
from fabricd.findings.process import name_findings, process_findings
from fabricd.model.finding import MAX_HOSTLIST, Finding, Findings, Severity
from fabricd.smallfile import read_bytes

#: A daemon looks at thousands of nodes within this time.
_SECONDS = 90.0
#: For what a name service says of the host's own name.
_NAME_SECONDS = 2.0
#: What NCCL reads beside the environment, which counts before the user's file, and that before the host's. Source:
#: NCCL's documentation of environment variables.
_NCCL_FILE, _USER_FILE, _HOST_FILE = "NCCL_CONF_FILE", "~/.nccl.conf", "/etc/nccl.conf"
_MAX_FILE = 64 * 1024

AtLeastOption = Annotated[
    Severity, typer.Option("--at-least", help="Leave out what matters less: error, warning or note.")
]
IgnoreOption = Annotated[
    list[str] | None, typer.Option("--ignore", metavar="CODE", help="Leave out this kind of finding; may be repeated.")
]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("doctor")(doctor)


def doctor(
    *,
    origin: FromOption = None,
    nodes: JobNodesOption = None,
    at_least: AtLeastOption = Severity.NOTE,
    ignore: IgnoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Tell what is wrong with a job's nodes, between them, and with this process's own devices and settings.

    Each finding names the facts that show it and the next step. Exit status 1 where an error or a warning is left.
    """
    hidden = set(ignore or ())
    for code in hidden - CODES.keys():
        raise UnknownNameError("kind of finding", code[:40], list(CODES))
    source = load(origin)
    if source.topology is not None:
        raise InputError(
            f"{source.name} is a topology file, which tells of no state", hint="a daemon, a capture or a cluster does"
        )
    found = _found(source, nodes)
    if source.connection is not None:
        found = replace(found, findings=(*found.findings, *_here(source)))
    kept = [one for one in _without(hidden, found.findings) if one.severity.rank <= at_least.rank]
    kept.sort(key=lambda one: one.severity.rank)
    if as_json:
        print_json(replace(found, findings=tuple(kept)))
    else:
        show_findings(kept, found)
    if any(one.severity is not Severity.NOTE for one in kept):
        raise typer.Exit(1)


def _without(codes: set[str], findings: Iterable[Finding]) -> Iterator[Finding]:
    """Yield the findings that are not left out; those that stand for another kind, too, as that one where it is not."""
    for one in findings:
        code = next((code for code in (one.code, *one.also) if code not in codes), None)
        if code is not None:
            yield replace(one, code=code)


def _found(source: Source, nodes: str | None) -> Findings:
    job = job_nodes(source, nodes)
    if source.connection is None:
        names = {node_id: name for name, node_id in job.ids.items()}
        return find({node_id: source.nodes[node_id] for node_id in names}, names)
    # The daemon knows the names, too, and a thousand nodes are few letters as a hostlist.
    hostlist = nodes or os.environ.get("SLURM_JOB_NODELIST", "")
    if len(hostlist) > MAX_HOSTLIST:  # thousands of nodes without ranges: asking for all is as much work
        return _of_job(source.connection.get("/v1/findings", Findings, seconds=_SECONDS), source, job)
    asked = {"nodes": hostlist} if hostlist else {}
    return source.connection.get("/v1/findings", Findings, params=asked, seconds=_SECONDS)


def _of_job(found: Findings, source: Source, job: JobNodes) -> Findings:
    """Return what is said of a job's nodes, and of no node, among findings on all."""
    known = source.names()
    names = {"", *job.ids, *(known[node_id] for node_id in job.ids.values())}
    kept = tuple(one for one in found.findings if one.node in names)
    return Findings(findings=kept, nodes=len(job), left_out=found.left_out)


def _here(source: Source) -> Iterator[Finding]:
    """Yield what is wrong with this process and its settings."""
    view = local_view(os.environ)
    try:
        host = source.nodes.get(view.node_id)
    except UnknownNameError:  # several claim this identity, of which the daemon tells
        host = None
    yield from process_findings(view, host)
    if len(source.names()) > 1 and not os.environ.get("GLOO_SOCKET_IFNAME"):
        addresses = _addresses_of(view.hostname)
        yield from () if addresses is None else name_findings(view.hostname, addresses)
    names = {
        "interfaces": [interface.name for interface in view.interfaces if interface.up],
        "adapters": [hca.name for hca in view.hcas],
        "by_plugin": [hca.name for hca in host.hcas if hca.kind == "efa"] if host else [],
    }
    for where, settings in _settings():
        yield from environment_findings(settings, **names, source=where)


def _addresses_of(name: str) -> list[str] | None:
    """Return the addresses that a name stands for; None where nobody answers in time."""
    found: list[list[str]] = []

    def ask() -> None:
        try:
            found.append([str(told[4][0]) for told in socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)])
        except (OSError, UnicodeError):
            found.append([])

    asking = threading.Thread(target=ask, daemon=True, name="own name")
    asking.start()
    asking.join(_NAME_SECONDS)
    return list(dict.fromkeys(found[0])) if found else None


def _settings() -> Iterator[tuple[str, Mapping[str, str]]]:
    """Yield where settings stand, and those that count there."""
    yield "the environment", os.environ
    known = set(os.environ)
    for name in (os.environ.get(_NCCL_FILE) or _USER_FILE, _HOST_FILE):
        path = Path(name).expanduser()
        try:
            lines = read_bytes(path, limit=_MAX_FILE).decode(errors="replace").splitlines()
        except (OSError, ValueError):
            continue
        pairs = (line.partition("#")[0].partition("=") for line in lines)
        found = {key.strip(): value.strip() for key, equals, value in pairs if equals}
        yield str(path), {key: value for key, value in found.items() if key not in known}
        known |= found.keys()
