"""``fabricctl watch``: what changes in the cluster's map, one line for each change, as it happens."""

import sys
import time
from collections.abc import Iterator
from typing import Annotated

import typer

from fabric_client.cli.clean import clean
from fabric_client.cli.show import print_json
from fabric_client.cli.source import JsonOption, open_daemon
from fabric_client.connection import Connection
from fabric_client.transport import TransientError
from fabricd.errors import InputError
from fabricd.model.cluster import ClusterStatus
from fabricd.model.event import Event, EventPage
from fabricd.units import format_count

#: A daemon holds a question back for so long at most, while nothing happens.
_WAIT_SECONDS = 30.0
#: Between questions to a daemon that does not answer.
_RETRY_SECONDS = 2.0

DaemonOption = Annotated[
    str | None,
    typer.Option("--from", metavar="URL", help="A daemon: http://HOST:7470, unix:/path; by default this host's."),
]
NodeOption = Annotated[str, typer.Option("--node", metavar="NAME", help="Only what happens to this node.")]
PastOption = Annotated[bool, typer.Option("--past", help="Begin with all that the daemon has kept.")]
CountOption = Annotated[int, typer.Option("--count", min=0, help="End after so many changes; 0 for none.")]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("watch")(watch)


def watch(
    *,
    origin: DaemonOption = None,
    node: NodeOption = "",
    past: PastOption = False,
    count: CountOption = 0,
    as_json: JsonOption = False,
) -> None:
    """Tell what changes in the cluster's map as it happens: nodes, links, addresses, devices.

    Goes on until it is interrupted, over restarts of the daemon, too. What it missed it says.
    """
    if origin is not None and not origin.startswith(("http://", "https://", "unix:")):
        raise InputError(f"{origin[:80]} is no daemon's address", hint="a file does not change; http://HOST:7470 may")
    connection = open_daemon(origin)
    known = connection.get("/v1/cluster", ClusterStatus, params={"summary": "1"})
    _tell_what_is_watched(connection, known, node)
    cursor = None if past else known.event_cursor
    told = 0
    for page in _pages(connection, cursor):
        if page.resync:
            typer.echo("changes were missed: fabricctl nodes tells how things are", err=True)
        for event in page.events:
            if node not in ("", event.node, event.node_id):
                continue
            if as_json:
                print_json(event)
            else:
                typer.echo(_line(event))
            told += 1
            if told == count:
                return


def _tell_what_is_watched(connection: Connection, known: ClusterStatus, node: str) -> None:
    """Say what the silence that may follow means: to a terminal, and to all that no such node is known."""
    if node and not any(node in (one.name, one.node_id) for one in known.nodes):
        typer.echo(f"no node called {clean(node)} is known yet; waiting for it", err=True)
    elif sys.stderr.isatty():
        what = node or format_count(len(known.nodes), "node")
        typer.echo(clean(f"watching {what} by the daemon at {connection.address}; Ctrl-C ends it"), err=True)


def _pages(connection: Connection, cursor: str | None) -> Iterator[EventPage]:
    """Yield the daemon's history from a cursor on, without end.

    Raises:
        FabricError: the daemon refuses, or did not answer the first question.
    """
    answered, silent = cursor is not None, False
    while True:
        asked = {} if cursor is None else {"since": cursor}
        try:
            page = connection.get("/v1/events", EventPage, params=asked, wait=_WAIT_SECONDS)
        except TransientError as error:
            if not answered:
                raise
            if not silent:
                typer.echo(f"{clean(error)}; waiting for it", err=True)
            silent = True
            time.sleep(_RETRY_SECONDS)
            continue
        if silent:
            typer.echo("it answers again", err=True)
        answered, silent, cursor = True, False, page.cursor
        yield page


def _line(event: Event) -> str:
    """Return ``14:03:22 link_down dgx-07 mlx5_3:1: up -> down (12 times): why``."""
    at = time.strftime("%H:%M:%S", time.localtime(event.at))
    change = " -> ".join(filter(None, (event.before, event.after)))
    times = f" ({event.count} times)" if event.count > 1 else ""
    detail = f": {event.detail}" if event.detail else ""
    where = " ".join(filter(None, (event.node or event.node_id, event.subject)))
    return clean(f"{at} {event.kind} {where}{': ' if change else ''}{change}{times}{detail}")
