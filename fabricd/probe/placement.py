"""Probe ``placement``: where this node stands, as files say that the configuration names (``placement_files``).

Such a file tells of all nodes; this one's place is looked up by its names, and only that is published.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from fabricd.errors import FabricError
from fabricd.model.placement import Position
from fabricd.placement.read import MAX_BYTES, read_placement
from fabricd.probe.answers import ask
from fabricd.probe.base import ProbeAbsent, ProbeContext, ProbeDenied, ProbeFailed, ProbeResult
from fabricd.probe.files import FieldReader
from fabricd.smallfile import read_bytes, status_of

#: Where a replay keeps this node's place, in the folder of recorded answers; the files tell of all nodes.
RECORDED = "placement.json"
#: EC2's Nitro cards tell the instance's id there.
_ASSET_TAG = "class/dmi/id/board_asset_tag"
_EC2_INSTANCE = re.compile(r"i-[0-9a-f]{8,17}")


@dataclass(frozen=True, slots=True)
class _Seen:
    """What was made of a file; it is read again only when it, or this node's names, are others."""

    key: object
    position: Position | None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementAnswer:
    """What the files say of this node."""

    positions: tuple[Position, ...] = ()
    notes: tuple[str, ...] = ()


class PlacementProbe:
    """Looks this node up in files.

    Args:
        files: absolute paths, the first that knows the node counts most.
        names: further names of this node, as configured.
    """

    name = "placement"
    deadline_seconds = 30.0

    def __init__(self, files: Sequence[str], names: Sequence[str] = ()) -> None:
        self._files = tuple(files)
        self._names = tuple(names)
        self._seen: dict[str, _Seen] = {}

    def run(self, ctx: ProbeContext) -> ProbeResult:
        """Read the files.

        Raises:
            ProbeDenied: none of them may be read.
            ProbeFailed: none of them is in order.
            ProbeAbsent: none is there, or none knows this node.
        """
        told = ask(ctx, RECORDED, PlacementAnswer, lambda: self._look_up(ctx), from_files=True)
        return ProbeResult(facts={"positions": told.positions}, notes=told.notes)

    def _look_up(self, ctx: ProbeContext) -> PlacementAnswer:
        names = tuple(self._own_names(ctx))
        found: list[Position] = []
        notes: list[str] = []
        missing: list[str] = []
        faults: list[Exception] = []
        for file in self._files:
            try:
                seen = self._look(ctx.roots.top, file, names)
            except FileNotFoundError:
                missing.append(file)
                continue
            except (OSError, FabricError) as error:
                faults.append(error)
                notes.append(f"{file}: {error.strerror or error}" if isinstance(error, OSError) else str(error))
                continue
            notes += seen.notes
            if seen.position is not None:
                found.append(seen.position)
        if found:
            notes += (f"{file}: is not there" for file in missing)
            return PlacementAnswer(positions=tuple(found), notes=tuple(notes))
        if faults:
            denied = all(isinstance(error, PermissionError) for error in faults)
            raise (ProbeDenied if denied else ProbeFailed)("; ".join(notes))
        if len(missing) == len(self._files):
            raise ProbeAbsent(f"not there: {', '.join(missing)}")
        raise ProbeAbsent(f"no file knows a node called {', '.join(names) or '?'}")

    def _own_names(self, ctx: ProbeContext) -> Iterator[str]:
        yield from self._names
        read = FieldReader()
        if hostname := read.text(ctx.roots.proc / "sys/kernel/hostname"):
            yield hostname
        tag = read.text(ctx.roots.sys / _ASSET_TAG) or ""
        if _EC2_INSTANCE.fullmatch(tag):
            yield tag

    def _look(self, top: Path, file: str, names: tuple[str, ...]) -> _Seen:
        path = top / file.lstrip("/")
        status = status_of(path)
        key = (path, status.st_ino, status.st_mtime_ns, status.st_size, names)
        seen = self._seen.get(file)
        if seen is None or seen.key != key:
            imported = read_placement(read_bytes(path, MAX_BYTES + 1), file)
            seen = self._seen[file] = _Seen(key, imported.of(names), imported.notes)
        return seen
