"""Text of ``ibnetdiscover`` and net files of ``ibsim``: what they tell, and what no text can do."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fabricd.errors import ParseError
from fabricd.probe import ibnet
from fabricd.probe.ibnet import IbKind, IbNet, IbPort, group_digits, parse_ibnet
from fabricd.units import infiniband_rate

#: Grouped by chassis, as with -g: a line switch and a spine of one director, a router, a name with quotes.
GROUPED = """#
# Topology file: generated on Fri Aug  8 06:33:24 2025
#
# Initiated from node 0008f10403960558 port 0008f10403960559

Chassis 1 (guid 0x8f10400400000)

# Spine Nodes
vendid=0x8f1
devid=0x5a37
sysimgguid=0x8f10400400000\t\t# Chassis 1
switchguid=0x8f10400400001(8f10400400001)\t# sFB-2004 spine 1
Switch\t24 "S-0008f10400400001"\t\t# "spine "one" of two" enhanced port 0 lid 2 lmc 0
[1]\t"S-0008f10400400002"[13]\t\t# "line 1" lid 3 12xQDR

# Line Nodes
vendid=0x8f1
devid=0x5a37
sysimgguid=0x8f10400400000\t\t# Chassis 1
switchguid=0x8f10400400002(8f10400400002)\t# sLB-2024 line 1
Switch\t24 "S-0008f10400400002"\t\t# "line 1" base port 0 lid 3 lmc 0
[13]\t"S-0008f10400400001"[1]\t\t# "spine "one" of two" lid 2 12xQDR
[24][ext 7]\t"H-0008f10403960558"[1](8f10403960559) \t\t# "node-1 "a" HCA-1" lid 10 4xFDR10 s=4 w=2 v=4
[23][ext 6]\t"R-0008f10403960600"[2](8f10403960602) \t\t# "a router" lid 11 4xEDR

Non-Chassis Nodes

vendid=0x2c9
devid=0x1021
sysimgguid=0x8f10403960558
caguid=0x8f10403960558
Ca\t2 "H-0008f10403960558"\t\t# "node-1 "a" HCA-1" (scp)
[1](8f10403960559) \t"S-0008f10400400002"[24][ext 7]\t\t# lid 10 lmc 0 "line 1" lid 3 4xFDR10 s=4 w=2 v=4

vendid=0x2c9
devid=0x5a44
rtguid=0x8f10403960600
Rt\t2 "R-0008f10403960600"\t\t# "a router"
[2](8f10403960602) \t"S-0008f10400400002"[23][ext 6]\t\t# lid 11 lmc 0 "line 1" lid 3 4xEDR
"""
LINE, SPINE, HCA, ROUTER = "S-0008f10400400002", "S-0008f10400400001", "H-0008f10403960558", "R-0008f10403960600"


def test_everything_that_is_told() -> None:
    net = parse_ibnet(GROUPED)
    assert net.notes == []
    assert {node.id: node.kind for node in net.nodes.values()} == {
        SPINE: IbKind.SWITCH, LINE: IbKind.SWITCH, HCA: IbKind.HCA, ROUTER: IbKind.ROUTER,
    }  # fmt: skip
    line = net.nodes[LINE]
    assert (line.guid, line.system_guid) == ("0008:f104:0040:0002", "0008:f104:0040:0000")
    assert (line.name, line.lid, line.port_count) == ("line 1", 3, 24)
    assert (line.vendor_id, line.device_id) == (0x8F1, 0x5A37)
    assert line.ports == {
        13: IbPort(peer=SPINE, peer_port=1, width=12, speed="QDR"),
        24: IbPort(peer=HCA, peer_port=1, width=4, speed="FDR10"),
        23: IbPort(peer=ROUTER, peer_port=2, width=4, speed="EDR"),
    }
    assert net.nodes[SPINE].name == 'spine "one" of two'
    assert net.nodes[HCA].name == 'node-1 "a" HCA-1'
    assert net.nodes[HCA].ports == {
        1: IbPort(peer=LINE, peer_port=24, guid="0008:f104:0396:0559", lid=10, width=4, speed="FDR10")
    }
    assert (net.nodes[ROUTER].guid, net.nodes[ROUTER].system_guid) == ("0008:f104:0396:0600", "")
    assert sorted(net.links()) == [((HCA, 1), (LINE, 24)), ((ROUTER, 2), (LINE, 23)), ((SPINE, 1), (LINE, 13))]


def test_walks_from_two_ports_of_an_adapter_are_joined() -> None:
    """Each shows the adapter with the port that it went out of."""
    walks = [
        f'Switch 2 "S-000000000000000{rail}" # "rail {rail}" base port 0 lid 1 lmc 0\n'
        f'[1] "H-00000000000000aa"[{rail}](ab)\n\n'
        f'Ca 2 "H-00000000000000aa" # "node"\n[{rail}](ab) "S-000000000000000{rail}"[1] # lid 9 lmc 0 "r" lid 1 4xNDR\n'
        for rail in (1, 2)
    ]
    net = parse_ibnet("\n".join(walks))
    assert net.notes == []
    assert sorted(net.nodes["H-00000000000000aa"].ports) == [1, 2]
    assert len(list(net.links())) == 2


@pytest.mark.parametrize(
    ("line", "noted"),
    [
        ("what is this", "line 2: not understood"),
        ('[0] "S-2"[1]', "port 0 of a node with 8 ports"),
        ('[9] "S-2"[1]', "port 9 of a node with 8 ports"),
        ('[1] "S-2"', "not understood"),
        ("[1] S-2[1]", "not understood"),
        ('[1] "S-2"[1234]', "not understood"),
        ('[1] "' + "S" * 2000 + '"[1]', "not understood"),
        ('[1] "S-9"[1]', "a node that is not described"),
        ('[1] "S-2"[2]', "says otherwise"),
        ('[1] "S-2"[3]', "says otherwise"),
        ('\n[1] "S-2"[1]', "belongs to no node"),
        ("vendid=0xzz", "not understood"),
        ("\x00\xff", "not understood"),
    ],
)
def test_a_bad_line_costs_itself_and_a_note(line: str, noted: str) -> None:
    net = parse_ibnet(f'Switch 8 "S-1"\n{line}\n[4] "S-2"[4]\n\nSwitch 8 "S-2"\n[2] "S-1"[7]\n[4] "S-1"[4]\n')
    assert set(net.nodes) == {"S-1", "S-2"}
    assert any(noted in note for note in net.notes), net.notes


def test_facts_of_a_broken_record_are_not_the_next_ones() -> None:
    net = parse_ibnet('switchguid=0x77\nvendid=0x1\nSwitch many "S-x"\n\nSwitch 8 "S-y"\n')
    assert (net.nodes["S-y"].guid, net.nodes["S-y"].vendor_id) == ("", None)


@pytest.mark.parametrize(
    "text", ["", "\n\n", "#\n", "{}", "Switch", 'Switch 8 ""', "[1]", "\x00" * 100, "a\n" * 10_000, "vendid=0x1\n"]
)
def test_what_is_no_such_text(text: str) -> None:
    with pytest.raises(ParseError, match=r"left\.txt names no InfiniBand node.*expected lines such as"):
        parse_ibnet(text, what="left.txt")


def test_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(parse_ibnet('Switch 8 "S-1"\n' + "?\n" * 1000).notes) == 50
    monkeypatch.setattr(ibnet, "_MAX_NODES", 2)
    with pytest.raises(ParseError, match="line 3: more than 2 InfiniBand nodes"):
        parse_ibnet("".join(f'Ca 1 "{number}"\n' for number in range(3)))
    monkeypatch.setattr(ibnet, "MAX_BYTES", 10)
    with pytest.raises(ParseError, match="larger than 10 bytes"):
        parse_ibnet('Switch 8 "S-1"\n')


PIECES = (
    "Switch ",
    "Ca ",
    "Rt ",
    "8",
    ' "S-1"',
    ' "H-2"',
    "[1]",
    "[2]",
    "(ab) ",
    "# ",
    "lid 7",
    " lmc 0",
    " 4xNDR",
    '"',
    "\n",
)


@given(st.lists(st.sampled_from(PIECES) | st.text(max_size=5), max_size=60))
def test_any_text_is_a_net_or_an_error(pieces: list[str]) -> None:
    try:
        net = parse_ibnet("".join(pieces))
    except ParseError:
        return
    check(net)


def check(net: IbNet) -> None:
    """What holds of every net."""
    links = list(net.links())
    assert len(links) == len(set(links))
    ends = {end for link in links for end in link}
    for node in net.nodes.values():
        assert all(1 <= number <= node.port_count for number in node.ports)
        assert ends >= {(node.id, number) for number in node.ports}


@pytest.mark.parametrize(
    ("digits", "guid"),
    [("2c5eab0300b87b40", "2c5e:ab03:00b8:7b40"), ("8F10400410015", "0008:f104:0041:0015"), ("0", ""), ("", "")],
)
def test_guids(digits: str, guid: str) -> None:
    assert group_digits(digits) == guid


def test_rates_are_the_kernels() -> None:
    rates = {speed: infiniband_rate(speed, 4) for speed in ("SDR", "QDR", "FDR10", "FDR", "EDR", "HDR", "NDR", "XDR")}
    gigabits = {speed: rate * 8 / 1e9 for speed, rate in rates.items() if rate}
    assert gigabits == {
        "SDR": 10, "QDR": 40, "FDR10": 40, "FDR": 56, "EDR": 100, "HDR": 200, "NDR": 400, "XDR": 800
    }  # fmt: skip
    assert infiniband_rate("undefined", 4) is None


@pytest.mark.corpus
class TestPublic:
    """Captures of public origin."""

    FOLDER = Path(os.environ.get("FABRICD_CORPUS", "")) / "topologies/public/ibnet"

    @pytest.mark.parametrize(
        ("name", "nodes", "links"),
        [
            ("ibnetdiscover_manpage_sdr.txt", 6, 7),
            ("ibsim_net.txt", 4, 4),
            ("ibsim_net_1.txt", 3, 2),
            ("ibsim_net_2sw2path.txt", 4, 4),
            ("ibsim_net_2sw2path4hca.txt", 6, 6),
            ("ibsim_net_2sw2path4hca2port.txt", 4, 6),
            ("topograph_example-bad.out", 1, 0),
            ("topograph_example.out", 622, 1114),
        ],
    )
    def test_each(self, name: str, nodes: int, links: int) -> None:
        net = parse_ibnet((self.FOLDER / name).read_text(), what=name)
        assert (len(net.nodes), len(list(net.links())), net.notes) == (nodes, links, [])
        check(net)

    def test_a_cluster_of_540_adapters(self) -> None:
        net = parse_ibnet((self.FOLDER / "topograph_example.out").read_text())
        kinds = [node.kind for node in net.nodes.values()]
        counts = [kinds.count(kind) for kind in (IbKind.SWITCH, IbKind.HCA, IbKind.AGGREGATION, IbKind.ROUTER)]
        assert counts == [40, 542, 40, 0]
        assert {(port.width, port.speed) for node in net.nodes.values() for port in node.ports.values()} == {(4, "NDR")}

    def test_no_capture_is_left_out(self) -> None:
        texts = [path for path in self.FOLDER.iterdir() if path.suffix in (".txt", ".out")]
        captures = [path for path in texts if "README" not in path.name]
        assert len(captures) >= 8
        assert [path.name for path in captures if parse_ibnet(path.read_text()).notes] == []
