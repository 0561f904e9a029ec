"""Names of nodes, kept in step with a map of thousands of which a few change."""

from collections.abc import Mapping

from fabricd.model.snapshot import Snapshot


class NodeNames:
    """What nodes are called: by their display names, and those that share one, or have none, by their ids."""

    def __init__(self) -> None:
        self._nodes: Mapping[str, Snapshot] = {}
        self._bearers: dict[str, dict[str, None]] = {}  # node_ids by display name

    def keep_to(self, nodes: Mapping[str, Snapshot]) -> None:
        """Take nodes, by node_id, in place of those before; costs little but for those that are others."""
        before = self._nodes
        if nodes is before:
            return
        for node_id, snapshot in nodes.items():
            known = before.get(node_id)
            if known is not snapshot and (known is None or known.node.name != snapshot.node.name):
                if known is not None:
                    self._drop(node_id, known.node.name)
                self._bearers.setdefault(snapshot.node.name, {})[node_id] = None
        for node_id in before.keys() - nodes.keys():
            self._drop(node_id, before[node_id].node.name)
        self._nodes = nodes

    def shown(self, node_id: str) -> str:
        """Return what a node is called."""
        name = self._nodes[node_id].node.name
        return name if name and len(self._bearers[name]) == 1 else node_id

    def find(self, name: str) -> str | None:
        """Return the node_id of the node that a node_id or display name means; None: no node's, or several nodes'."""
        if name in self._nodes:
            return name
        bearers = self._bearers.get(name, {}) if name else {}
        return next(iter(bearers)) if len(bearers) == 1 else None

    def all(self) -> list[str]:
        """Return what all nodes are called, sorted."""
        return sorted(map(self.shown, self._nodes))

    def _drop(self, node_id: str, name: str) -> None:
        bearers = self._bearers[name]
        del bearers[node_id]
        if not bearers:
            del self._bearers[name]
