"""Files that say where nodes stand, on a daemon that holds the map: there they count for all nodes, by name."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Lock

from fabricd.errors import FabricError
from fabricd.model.snapshot import Snapshot
from fabricd.placement.imported import Imported, names_of
from fabricd.placement.read import MAX_BYTES, read_placement
from fabricd.smallfile import read_bytes, status_of


@dataclass(frozen=True, slots=True)
class _Read:
    key: object
    imported: Imported | None  #: None: it is wrong, which this node's own probe tells


class PlacementFiles:
    """Reads them, each again only when it is another. Threads may share it; reading may take seconds.

    Args:
        files: absolute paths, the first that knows a node counts most.
    """

    def __init__(self, files: Sequence[str]) -> None:
        self.files = tuple(files)
        self._lock = Lock()
        self._read: dict[str, _Read] = {}
        #: Nodes with what the files say, so that one that has not changed stays the same object.
        self._told: dict[str, tuple[Snapshot, Snapshot]] = {}
        self._imports: list[Imported] = []

    def applied(self, nodes: Mapping[str, Snapshot]) -> Mapping[str, Snapshot]:
        """Return nodes, by node_id, with what the files say of their positions before what they say themselves.

        A file that is missing, may not be read or is wrong says nothing.
        """
        imports = self.imports()
        if not imports:
            return nodes
        with self._lock:
            if imports != self._imports:
                self._imports, self._told = imports, {}
            before = self._told
            self._told = {
                node_id: known
                if (known := before.get(node_id)) is not None and known[0] is snapshot
                else (snapshot, _told(snapshot, imports))
                for node_id, snapshot in nodes.items()
            }
            return {node_id: told for node_id, (_, told) in self._told.items()}

    def imports(self) -> list[Imported]:
        """Return what the files say, the first that knows a node counts most; reads those that are others by now."""
        with self._lock:
            return [found for file in self.files if (found := self._imported(file)) is not None]

    def _imported(self, file: str) -> Imported | None:
        path = Path(file)
        try:
            status = status_of(path)
            key = (status.st_ino, status.st_mtime_ns, status.st_size)
            known = self._read.get(file)
            if known is not None and known.key == key:
                return known.imported
            data = read_bytes(path, MAX_BYTES + 1)
        except OSError:
            return None
        try:
            imported = read_placement(data, file)
        except FabricError:
            imported = None
        self._read[file] = _Read(key, imported)
        return imported


def _told(snapshot: Snapshot, imports: Sequence[Imported]) -> Snapshot:
    names = names_of(snapshot)
    found = [position for imported in imports if (position := imported.of(names)) is not None]
    new = [position for position in found if position not in snapshot.positions]
    return replace(snapshot, positions=(*new, *snapshot.positions)) if new else snapshot
