"""A node's graph for Graphviz."""

from collections.abc import Iterator

from fabricd.graph.graph import Graph, VertexKind
from fabricd.model.path import Hop
from fabricd.units import format_bandwidth

_SHAPES = {
    VertexKind.GPU: "box",
    VertexKind.NIC: "ellipse",
    VertexKind.HCA_PORT: "ellipse",
    VertexKind.NUMA: "house",
    VertexKind.NVSWITCH: "hexagon",
    VertexKind.PCI_SWITCH: "diamond",
}


def dot(graph: Graph) -> str:
    """Return an undirected graph: a line for each vertex, and one for each link with its bandwidth."""
    return "graph fabric {\n  rankdir=TB;\n" + "".join(_lines(graph)) + "}\n"


def _lines(graph: Graph) -> Iterator[str]:
    for vertex in graph:
        label = "\\n".join(_escaped(text) for text in (vertex.local_name, vertex.detail) if text)
        shape = _SHAPES.get(vertex.kind, "plaintext")
        yield f'  "{_escaped(vertex.name)}" [shape={shape}, label="{label}"];\n'
    for edge in graph.edges():
        if edge.src < edge.dst:
            yield f'  "{_escaped(edge.src)}" -- "{_escaped(edge.dst)}" [label="{_escaped(_told(edge))}"];\n'


def _told(edge: Hop) -> str:
    return f"{edge.link} {format_bandwidth(edge.bandwidth_bytes_per_second)}"


def _escaped(text: str) -> str:
    """Return a text for between quotes; control characters, which a drawing cannot show, as blanks."""
    plain = "".join(character if character.isprintable() else " " for character in text)
    return plain.replace("\\", "\\\\").replace('"', '\\"')
