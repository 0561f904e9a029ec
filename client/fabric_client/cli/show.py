"""Output for people and for programs. Names come from machines and networks, so nothing of them is obeyed."""

import sys
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from fabric_client.cli.clean import clean
from fabricd.model.codec import to_json


def text(value: object, style: str = "") -> Text:
    """Return a value as styled text, without markup."""
    return Text(clean(value), style=style)


def table(columns: Sequence[str], rows: Sequence[Sequence[object]], *, title: str = "") -> Table:
    """Return a plain table. Columns that begin with ``>`` are aligned to the right."""
    made = Table(
        title=text(title) if title else None, title_justify="left", box=None, pad_edge=False, padding=(0, 2, 0, 0)
    )
    for column in columns:
        made.add_column(column.lstrip(">"), justify="right" if column.startswith(">") else "left", overflow="fold")
    for row in rows:
        made.add_row(*(value if isinstance(value, Text) else text(value) for value in row))
    return made


def console() -> Console:
    """Return standard output as a console. Into a file or a pipe lines are as long as they are."""
    return Console(
        file=sys.stdout, highlight=False, markup=False, emoji=False, width=None if sys.stdout.isatty() else 240
    )


def print_page(page: str) -> None:
    """Print text that is laid out already, with tabs and line breaks."""
    sys.stdout.write(clean(page, keep="\t\n"))


def print_json(value: Any) -> None:
    """Print a model, mapping or sequence as one line of JSON."""
    sys.stdout.write(to_json(value).decode() + "\n")
