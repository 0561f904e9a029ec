"""Writes clusters into files: ``fabricctl capture-cluster`` and ``fabricctl simulate``."""

import gzip
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from fabricd.errors import InputError
from fabricd.model.cluster import NodeStatus
from fabricd.model.cluster_file import Head, lines_of

#: Fast, and most of what there is to win where nodes are alike.
_LEVEL = 3


def write_cluster(file: Path, head: Head, nodes: Iterable[NodeStatus]) -> None:
    """Write a cluster, node by node, into a file that must not exist; compressed when its name ends in ``.gz``.

    Raises:
        InputError: the file exists or cannot be written.
        FabricError: as ``nodes`` raise it; then there is no file.
    """
    with _new(file) as stream:
        for line in lines_of(head, nodes):
            stream.write(line)


@contextmanager
def _new(file: Path) -> Iterator[BinaryIO]:
    """Open a new file, readable by its owner only; it is removed when not all could be written."""
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except OSError as error:
        hint = "remove it, or name another" if isinstance(error, FileExistsError) else ""
        raise InputError(f"cannot write {file}: {error.strerror or error}", hint=hint) from error
    try:
        with os.fdopen(descriptor, "wb") as plain:
            if file.suffix != ".gz":
                yield plain
            else:
                # Without name and time: the same cluster gives the same bytes.
                with gzip.GzipFile(filename="", fileobj=plain, mode="wb", compresslevel=_LEVEL, mtime=0) as packed:
                    yield packed  # type: ignore[misc] # writes alike
    except BaseException as error:
        with suppress(OSError):
            file.unlink()
        if isinstance(error, OSError):
            raise InputError(f"cannot write {file}: {error.strerror or error}") from error
        raise
