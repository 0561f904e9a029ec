"""Writes the manual pages fabricctl.1 and fabricd.8: what --help of the programs and of their commands says.

    python manpages.py FOLDER

Run it by a Python that has both packages; install.sh does.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from fabric_client.cli.main import app as fabricctl
from fabricd import __version__
from fabricd.cli.main import app as fabricd

PAGES = (("fabricctl", 1, fabricctl, "fabricd(8)"), ("fabricd", 8, fabricd, "fabricctl(1)"))


def page(name: str, section: int, app: typer.Typer, also: str) -> str:
    """Return a manual page as man(7) has it."""
    group: Any = typer.main.get_command(app)
    context = group.make_context(name, [], resilient_parsing=True)
    about = group.help.rstrip(".")
    lines = [f'.TH {name.upper()} {section} "" "fabricd {__version__}"']
    lines += [".SH NAME", rf"{name} \- {_quoted(about[0].lower() + about[1:])}"]
    lines += [".SH SYNOPSIS", f".B {name}", _quoted(" ".join(group.collect_usage_pieces(context)))]
    lines += [".SH OPTIONS", *_options(group, context), ".SH COMMANDS"]
    for word in group.list_commands(context):
        lines += _command(f"{name} {word}", group.get_command(context, word), context)
    if group.epilog:
        lines += [".SH NOTES", *_text(group.epilog)]
    return "\n".join([*lines, ".SH SEE ALSO", also]) + "\n"


def _command(name: str, command: Any, parent: Any) -> Iterator[str]:
    context = command.make_context(name, [], parent=parent, resilient_parsing=True)
    yield f".SS {_quoted(name)} {_quoted(' '.join(command.collect_usage_pieces(context)))}"
    yield from _text(command.help or "")
    yield from _options(command, context)
    yield from _text(command.epilog or "")


def _options(command: Any, context: Any) -> Iterator[str]:
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context)
        if record is not None:
            yield from (".TP", rf"\fB{_quoted(record[0])}\fR", _line(record[1] or "\u2014"))


def _text(text: str) -> Iterator[str]:
    r"""Yield paragraphs; one that begins with click's mark \b keeps its lines."""
    for paragraph in filter(None, (one.strip("\n") for one in text.split("\n\n"))):
        if paragraph.startswith("\b"):
            yield from (".PP", ".nf", *map(_line, paragraph.lstrip("\b\n").splitlines()), ".fi")
        else:
            yield from (".PP", *(_line(line.strip()) for line in paragraph.splitlines()))


def _line(text: str) -> str:
    """Return a line of text that roff takes for no request."""
    quoted = _quoted(text)
    return rf"\&{quoted}" if quoted.startswith((".", "'")) else quoted


def _quoted(text: str) -> str:
    return text.replace("\\", r"\e").replace("-", r"\-").replace("\n", " ")


def main() -> None:
    """Write both pages into the folder."""
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name, section, app, also in PAGES:
        (folder / f"{name}.{section}").write_text(page(name, section, app, also), encoding="utf-8")


if __name__ == "__main__":
    main()
