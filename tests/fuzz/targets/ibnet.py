"""What ``ibnetdiscover`` prints of a fabric, of which every node's and switch's name is somebody else's text."""

from fabricd.errors import ParseError
from fabricd.model.codec import to_json
from fabricd.probe.ibnet import parse_ibnet
from tests.fuzz.target import Target


def check(data: bytes) -> None:
    try:
        net = parse_ibnet(data.decode("latin-1"))
    except ParseError:
        return
    to_json([[node.name for node in net.nodes.values()], net.notes])
    assert all(1 <= number <= node.port_count for node in net.nodes.values() for number in node.ports)
    assert len(list(net.links())) <= sum(len(node.ports) for node in net.nodes.values())


_TEXT = b"""vendid=0x2c9
devid=0xd2f0
sysimgguid=0x248a070300e19fd0
switchguid=0x248a070300e19fd0(248a070300e19fd0)
Switch\t41 "S-248a070300e19fd0"\t\t# "MF0;leaf1:MQM8700/U1" enhanced port 0 lid 5 lmc 0
[1]\t"H-0008f10403960558"[1](8f10403960559) \t\t# "node-1 mlx5_0" lid 10 4xHDR
[2][ext 7]\t"S-248a070300e19fd1"[3]\t\t# "MF0;spine1" lid 7 4xHDR

vendid=0x2c9
devid=0x101b
sysimgguid=0x8f10403960558
caguid=0x8f10403960558
Ca\t1 "H-0008f10403960558"\t\t# "node-1 mlx5_0"
[1](8f10403960559) \t"S-248a070300e19fd0"[1]\t\t# lid 10 lmc 0 "MF0;leaf1:MQM8700/U1" lid 5 4xHDR
"""
TARGET = Target(
    check=check,
    seeds=lambda: [_TEXT, b'Switch 8 "Switch1"\n[1] "Hca1"[1]\n\nHca 2 "Hca1"\n[1] "Switch1"[1]\n'],
    words=(
        "Switch ", "Ca ", "Hca ", "Rt ", "vendid=0x", "devid=0x", "sysimgguid=0x", "switchguid=0x", "caguid=0x",
        '"S-248a070300e19fd0"', '"H-0008f10403960558"', "[1]", "[ext 7]", " lid ", " lmc 0", " 4xHDR", "# ", "\n",
        "\n\n", "Non-Chassis Nodes", "Chassis 1", "Aggregation Node",
    ),
    max_bytes=1 << 14,
)  # fmt: skip
