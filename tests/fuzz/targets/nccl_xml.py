"""NCCL's topology files: from text to elements, topology, graph, and the paths that NCCL would take."""

from fabricd.errors import InputError
from fabricd.graph.from_nccl import graph_from_nccl
from fabricd.graph.nccl_xml import parse, render
from fabricd.graph.nccl_xml_read import read_document
from fabricd.paths.nccl.domain import searched_paths
from fabricd.paths.nccl.view import NcclView
from tests.fuzz.target import ROOT, Target


def check(data: bytes) -> None:
    try:
        document = parse(data)
        assert parse(render(document.root)).root == document.root
        topology = read_document(document)
        graph_from_nccl(topology)
        view = NcclView(topology)
        view.paths()
        if view.table.system.gpus:
            searched_paths(topology)
    except InputError:
        return


TARGET = Target(
    check=check,
    seeds=lambda: [path.read_bytes() for path in sorted((ROOT / "tests/nccl/machines").glob("*.xml"))],
    words=(
        "<system version=", "<cpu numaid=", "<pci busid=", "<gpu dev=", "<nvlink target=", "<nic>", "<net name=",
        "<c2c bw=", "<pcilink target=", "/>", "</pci>", "</cpu>", " host_hash=", " arch=", " vendor=", " link_speed=",
        " link_width=", " class=", " sm=", " rank=", " gdr=", " mlopart=", " count=", " tclass=", " speed=", " port=",
        " latency=", " guid=", " coll=", " net=", " rail=", " plane=", '"0000:17:00.0"', '"0x030200"', '"0x060400"',
        '"-1"', '"fffffff:ffff:ff"', "<!DOCTYPE", "<![CDATA[", "<!--", "<?xml", "&#10;",
    ),
)  # fmt: skip
