"""Settings as text that a shell, NCCL or Slurm reads. Values come from names of devices, which may hold anything."""

import re
from collections.abc import Iterable

from fabric_client.cli.clean import clean
from fabricd.errors import InputError
from fabricd.model.plan import Setting

_NAME = re.compile(r"[A-Z_][A-Z0-9_]{0,127}", re.ASCII)


def shell_text(settings: Iterable[Setting]) -> str:
    """Return lines for ``eval`` in any POSIX shell: each setting exported, with its reason behind it.

    Raises:
        InputError: a name that is none, or a value that no environment can hold.
    """
    return "".join(f"export {_checked(one)}={_quoted(one.value)}{_comment(one, '  ')}\n" for one in settings)


def nccl_conf_text(settings: Iterable[Setting]) -> str:
    """Return lines for ``/etc/nccl.conf`` or ``NCCL_CONF_FILE``: NCCL's own settings only, reasons on lines before.

    NCCL takes everything behind the ``=`` as it stands: nothing is quoted there.

    Raises:
        InputError: a value that cannot stand on a line.
    """
    lines = []
    for one in settings:
        if one.name.startswith("NCCL_"):
            if not one.value.isprintable() or one.value != one.value.strip():
                raise InputError(f"{one.name} cannot be written into nccl.conf: {one.value[:80]!r}")
            lines.append(f"{_comment(one, '')}\n{_checked(one)}={one.value}\n")
    return "".join(lines)


def slurm_text(settings: Iterable[Setting]) -> str:
    """Return lines as Slurm takes them from a TaskProlog: ``export NAME=value``, the value as it stands, no reasons.

    Raises:
        InputError: a value that cannot stand on a line, or that Slurm would shorten.
    """
    lines = []
    for one in settings:
        if not one.value.isprintable() or one.value != one.value.strip():
            raise InputError(f"{one.name} cannot be told by a TaskProlog: {one.value[:80]!r}")
        lines.append(f"export {_checked(one)}={one.value}\n")
    return "".join(lines)


def _quoted(value: str) -> str:
    """Return a value in quotes, always: zsh takes ``==name`` for a command's path, and ``~`` means a folder."""
    return "'" + value.replace("'", "'\\''") + "'"


def _checked(one: Setting) -> str:
    if not _NAME.fullmatch(one.name) or "\0" in one.value:
        raise InputError(f"{one.name[:80]!r} = {one.value[:80]!r} is no variable of an environment")
    return one.name


def _comment(one: Setting, before: str) -> str:
    # A reason in one line of printable characters: nothing of it can end the comment.
    return f"{before}# {' '.join(clean(one.because).split())}" if one.because else before.strip()
