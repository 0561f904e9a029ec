"""What can be exported, and from what."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fabricd.graph.nccl_xml import render
from fabricd.graph.nccl_xml_corrected import corrected_document
from fabricd.graph.snapshot import graph_of
from fabricd.graph.template import placement as with_template
from fabricd.model.placement import Place
from fabricd.model.snapshot import Snapshot
from fabricd.paths.matrix import format_matrix, topology_matrix
from fabricd.plan.export.dot import dot
from fabricd.plan.export.hosts import hostfile, rankfile
from fabricd.plan.export.slurm import slurm_topology

#: Formats of one node, and of all.
NODE_FORMATS = ("nccl-topo", "dot", "matrix")
CLUSTER_FORMATS = ("slurm-topology", "hostfile", "rankfile")


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """A text, and what is to be known of it."""

    text: str
    media_type: str = "text/plain; charset=utf-8"
    notes: tuple[str, ...] = ()


def export_node(form: str, snapshot: Snapshot) -> Exported:
    """Return a node in one of ``NODE_FORMATS``."""
    if form == "nccl-topo":
        found = corrected_document(snapshot)
        notes = tuple(filter(None, (found.template, *found.changes))) or (
            "NCCL finds the same by itself: this machine needs no NCCL_TOPO_FILE",
        )
        return Exported(text=render(found.root), media_type="application/xml", notes=notes)
    if form == "dot":
        return Exported(text=dot(graph_of(snapshot)), media_type="text/vnd.graphviz; charset=utf-8")
    return Exported(text=format_matrix(topology_matrix(with_template(snapshot).snapshot)))


def export_cluster(
    form: str, nodes: Mapping[str, Snapshot], *, places: Mapping[str, Place], order: Sequence[int] = ()
) -> Exported:
    """Return nodes in one of ``CLUSTER_FORMATS``.

    Args:
        form: which.
        nodes: by name, in order of their ranks.
        places: where they stand, by name.
        order: of the ranks, for a rankfile.
    """
    if form == "slurm-topology":
        return Exported(text=slurm_topology({name: name for name in nodes}, places))
    return Exported(text=hostfile(nodes) if form == "hostfile" else rankfile(nodes, order))
