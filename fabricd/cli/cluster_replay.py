"""``--replay`` of a cluster's file: the daemon is its first node, and knows the others."""

from pathlib import Path

from fabricd.errors import InputError
from fabricd.loading import no_collecting
from fabricd.model.cluster import ClusterStatus, NodeStatus
from fabricd.model.cluster_file import is_cluster, read_cluster
from fabricd.model.snapshot import Snapshot


def cluster_in(file: Path) -> ClusterStatus | None:
    """Return the cluster in a file; None when it is no cluster's.

    Raises:
        InputError: it cannot be read.
        ParseError: something is wrong with it.
    """
    try:
        with no_collecting(), file.open("rb") as stream:
            return read_cluster(stream, what=str(file)) if is_cluster(stream.peek(4096)) else None
    except OSError as error:
        raise InputError(f"cannot read {file}: {error.strerror or error}") from error


def first_in(cluster: ClusterStatus) -> Snapshot:
    """Return the node that a replay of a cluster is.

    Raises:
        InputError: it has none whose facts are known.
    """
    first = next((node.snapshot for node in cluster.nodes if node.snapshot is not None), None)
    if first is None:
        raise InputError("that cluster has no node whose facts are known")
    return first


def others_in(cluster: ClusterStatus) -> tuple[NodeStatus, ...]:
    """Return the nodes around that one."""
    first = first_in(cluster)
    return tuple(node for node in cluster.nodes if node.snapshot is not first)
