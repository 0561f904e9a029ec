"""Output for people and for programs. Names come from machines and networks, so nothing of them is obeyed."""

import re
import sys
from collections.abc import Sequence
from typing import IO, Any, cast

from rich.console import Console
from rich.table import Table
from rich.text import Text

from fabric_client.cli.clean import clean
from fabricd.model.codec import to_json

_LINE_END = re.compile(r" +\n")


def text(value: object, style: str = "") -> Text:
    """Return a value as styled text, without markup."""
    return Text(clean(value), style=style)


def table(columns: Sequence[str], rows: Sequence[Sequence[object]], *, title: str = "") -> Table:
    """Return a plain table. Columns that begin with ``>`` are aligned to the right; empty ones are left out."""
    used = [at for at in range(len(columns)) if not rows or any(str(row[at]) for row in rows)]
    made = Table(
        title=text(title) if title else None, title_justify="left", box=None, pad_edge=False, padding=(0, 2, 0, 0)
    )
    for column in (columns[at] for at in used):
        made.add_column(column.lstrip(">"), justify="right" if column.startswith(">") else "left", overflow="fold")
    for row in rows:
        made.add_row(*(value if isinstance(value, Text) else text(value) for value in (row[at] for at in used)))
    return made


def console() -> Console:
    """Return standard output as a console. Into a file or a pipe lines are as long as they are."""
    if sys.stdout.isatty():
        return Console(highlight=False, markup=False, emoji=False)
    return Console(file=cast(IO[str], _Ragged()), highlight=False, markup=False, emoji=False, width=240)


class _Ragged:
    """Standard output without the white space at the ends of lines, with which a table fills its last column."""

    @property
    def encoding(self) -> str:
        return sys.stdout.encoding

    def isatty(self) -> bool:
        return False

    def write(self, text: str) -> int:
        sys.stdout.write(_LINE_END.sub("\n", text))
        return len(text)

    def flush(self) -> None:
        sys.stdout.flush()


def print_page(page: str) -> None:
    """Print text that is laid out already, with tabs and line breaks."""
    sys.stdout.write(clean(page, keep="\t\n"))


def print_json(value: Any) -> None:
    """Print a model, mapping or sequence as one line of JSON."""
    sys.stdout.write(to_json(value).decode() + "\n")
