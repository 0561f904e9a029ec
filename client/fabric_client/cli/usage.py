"""What a wrong command line is told beside its fault: what was probably meant, and a line that is right."""

import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import typer

from fabric_client.cli.manual import PAGES

#: Typer does not export it.
UsageError: Any = typer.BadParameter.__base__
_EXTRA = re.compile(r"Got unexpected extra argument.*\(([^ ()]+)[^()]*\)$")


def with_advice(error: Any) -> Any:
    """Return a usage error of a command with more to go by; one of no command as it is.

    Args:
        error: a ``UsageError``.
    """
    if error.ctx is None or error.ctx.info_name not in PAGES:
        return error
    return UsageError("\n".join([error.format_message(), *_advice(error)]), ctx=error.ctx)


def _advice(error: Any) -> Iterator[str]:
    command = error.ctx.info_name
    options = {name for parameter in error.ctx.command.params for name in parameter.opts}
    extra = _EXTRA.match(error.format_message())
    if extra and "--from" in options and (option := _meant(extra[1], options)):
        yield f"Did you mean: fabricctl {command} {option} {extra[1]}"
    elif "Possible options" not in error.format_message():
        yield f"Example: {PAGES[command].examples[0]}"


def _meant(word: str, options: set[str]) -> str:
    """Return the option that takes a word which stood alone; "" for none."""
    with suppress(OSError):  # too long for a file's name
        if word.startswith(("http://", "https://", "unix:")) or Path(word).is_file():
            return "--from"
    return next((option for option in ("--node", "--nodes") if option in options), "")
