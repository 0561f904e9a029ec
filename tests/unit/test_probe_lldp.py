"""Probe ``lldp``: frames as systemd-networkd keeps them, and both forms in which lldpd's client prints."""

import json
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fabricd.model.codec import to_json
from fabricd.model.device import LldpNeighbor
from fabricd.probe.base import ProbeAbsent, ProbeContext, ProbeResult, ProbeUnsupported, Roots
from fabricd.probe.lldp import LEFT_FACTS, LldpProbe
from fabricd.probe.lldp_frame import parse_frame
from tests.support.tree import Entry, Link, Pipe, Tree

MAC = bytes.fromhex("0180c200000eda870b05767d")
LEAF = LldpNeighbor(
    interface="eth0",
    chassis_id="da:87:0b:05:76:7d",
    system_name="leaf-7",
    port_id="Ethernet7/1",
    port_description="gpu-17 rail 0",
    vlan_id=100,
)


def field(kind: int, value: bytes) -> bytes:
    return struct.pack(">H", kind << 9 | len(value)) + value


def frame(*fields: bytes, tag: bytes = b"") -> bytes:
    return MAC + tag + b"\x88\xcc" + b"".join(fields) + b"\0\0"


CHASSIS = field(1, b"\x04" + bytes.fromhex("da870b05767d"))
PORT = field(2, b"\x05Ethernet7/1")
TTL = field(3, b"\0\x78")
LEAF_FRAME = frame(
    CHASSIS,
    PORT,
    TTL,
    field(4, b"gpu-17 rail 0"),
    field(5, b"leaf-7"),
    field(6, b"a switch"),
    field(127, b"\x00\x12\x0f\x03\x01\0\0\0\0"),
    field(127, b"\x00\x80\xc2\x01\x00\x64"),
)


def probe(root: Path, entries: dict[str, Entry]) -> ProbeResult:
    tree = Tree(dict(entries))
    tree.net("eth0", index=2)
    tree.net("eth1", index=3)
    return LldpProbe().run(ProbeContext(roots=Roots.under(tree.write(root)), this_host=False))


def kept(*frames: bytes) -> bytes:
    return b"".join(struct.pack("<Q", len(one)) + one for one in frames)


class TestFrames:
    """What a switch sends."""

    def test_in_full(self) -> None:
        assert parse_frame("eth0", LEAF_FRAME) == LEAF

    def test_behind_a_vlan_tag(self) -> None:
        tagged = frame(CHASSIS, PORT, TTL, tag=b"\x81\x00\x00\x07")
        assert parse_frame("eth0", tagged) == LldpNeighbor(
            interface="eth0", chassis_id="da:87:0b:05:76:7d", port_id="Ethernet7/1"
        )

    @pytest.mark.parametrize("vlan", [0, 4095, 4096, 65535])
    def test_absurd_vlans(self, vlan: int) -> None:
        own = field(127, b"\x00\x80\xc2\x01" + struct.pack(">H", vlan))
        told = parse_frame("eth0", frame(CHASSIS, PORT, TTL, own))
        assert told is not None
        assert told.vlan_id is None

    def test_good_bye(self) -> None:
        assert parse_frame("eth0", frame(CHASSIS, PORT, field(3, b"\0\0"))) is None

    @pytest.mark.parametrize(
        ("chassis", "port", "expected"),
        [
            (b"\x07local-id", b"\x07swp1", ("local-id", "swp1")),
            (b"\x06mgmt0", b"\x03\xda\x87\x0b\x05\x76\x7d", ("mgmt0", "da:87:0b:05:76:7d")),
            (b"\x05\x01\x0a\x01\x00\x01", b"\x04\x02" + b"\0" * 15 + b"\x01", ("10.1.0.1", "::1")),
            (b"\x04" + b"\0" * 6, b"\x05\xffx\0", ("00:00:00:00:00:00", "\\xffx")),
        ],
    )
    def test_ids(self, chassis: bytes, port: bytes, expected: tuple[str, str]) -> None:
        found = parse_frame("e", frame(field(1, chassis), field(2, port), TTL))
        assert found is not None
        assert (found.chassis_id, found.port_id) == expected

    @pytest.mark.parametrize(
        "bad",
        [
            b"",
            b"\0" * 13,
            b"\0" * 200,
            frame(CHASSIS, PORT),
            frame(PORT, TTL),
            frame(field(1, b"\x04"), PORT, TTL),
            LEAF_FRAME[:30],
            MAC + b"\x81\x00\x00",
        ],
    )
    def test_what_is_none(self, bad: bytes) -> None:
        with pytest.raises(ValueError, match="LLDP"):
            parse_frame("eth0", bad)

    @given(st.binary(max_size=200))
    def test_any_bytes_are_a_neighbour_or_an_error(self, payload: bytes) -> None:
        try:
            found = parse_frame("eth0", MAC + b"\x88\xcc" + payload)
        except ValueError:
            return
        assert found is None or to_json(found)


def test_networkd(tmp_path: Path) -> None:
    other = frame(CHASSIS, field(2, b"\x05Ethernet8/1"), TTL)
    result = probe(
        tmp_path,
        {
            "run/systemd/netif/lldp/2": kept(LEAF_FRAME),
            "run/systemd/netif/lldp/3": kept(other, LEAF_FRAME),
            "run/systemd/netif/lldp/99": kept(LEAF_FRAME),
        },
    )
    seen = [(one.interface, one.port_id) for one in result.facts["lldp"]]
    assert seen == [("eth0", "Ethernet7/1"), ("eth1", "Ethernet7/1"), ("eth1", "Ethernet8/1")]
    assert result.facts["lldp"][0] == LEAF
    assert result.notes == ()


@pytest.mark.parametrize("broken", [kept(LEAF_FRAME)[:-9], b"\xff" * 64, kept(b"\0" * 64), Pipe(), Link("2")])
def test_broken_files_of_networkd_cost_their_interface(tmp_path: Path, broken: Entry) -> None:
    result = probe(tmp_path, {"run/systemd/netif/lldp/2": broken, "run/systemd/netif/lldp/3": kept(LEAF_FRAME)})
    assert [one.interface for one in result.facts["lldp"]] == ["eth1"]
    assert len(result.notes) == 1


JSON = {
    "via": "LLDP",
    "rid": "1",
    "age": "0 day, 00:00:07",
    "chassis": {"leaf-7": {"id": {"type": "mac", "value": "da:87:0b:05:76:7d"}, "descr": "a switch"}},
    "port": {"id": {"type": "ifname", "value": "Ethernet7/1"}, "descr": "gpu-17 rail 0", "ttl": "120"},
    "vlan": {"vlan-id": "100", "pvid": True},
}
JSON0 = {
    "name": "eth0",
    "via": "LLDP",
    "chassis": [
        {
            "id": [{"type": "mac", "value": "da:87:0b:05:76:7d"}],
            "name": [{"value": "leaf-7"}],
            "descr": [{"value": "s"}],
        }
    ],
    "port": [{"id": [{"type": "ifname", "value": "Ethernet7/1"}], "descr": [{"value": "gpu-17 rail 0"}]}],
    "vlan": [{"vlan-id": "7", "pvid": False}, {"vlan-id": "100", "pvid": True}],
}
NAMELESS = {**JSON, "chassis": {"id": {"type": "mac", "value": "da:87:0b:05:76:7d"}}}


@pytest.mark.parametrize(
    ("printed", "expected"),
    [
        ({"lldp": {"interface": {"eth0": JSON}}}, [("eth0", "leaf-7")]),
        ({"lldp": {"interface": [{"eth0": JSON}, {"eth1": JSON}]}}, [("eth0", "leaf-7"), ("eth1", "leaf-7")]),
        ({"lldp": {"interface": {"eth0": [JSON, NAMELESS]}}}, [("eth0", ""), ("eth0", "leaf-7")]),
        ({"lldp": [{"interface": [JSON0]}]}, [("eth0", "leaf-7")]),
        ({"lldp": {}}, []),
        ({"lldp": [{}]}, []),
        ({}, []),
        ([], []),
        ({"lldp": {"interface": ["x", 5, None]}}, []),
    ],
)
def test_lldpd(tmp_path: Path, printed: object, expected: list[tuple[str, str]]) -> None:
    result = probe(tmp_path, {f"run/{LEFT_FACTS}": json.dumps(printed)})
    found = result.facts["lldp"]
    assert sorted((one.interface, one.system_name) for one in found) == expected
    for one in found:
        assert (one.chassis_id, one.port_id, one.vlan_id) == (LEAF.chassis_id, LEAF.port_id, 100)


def test_both_forms_say_the_same(tmp_path: Path) -> None:
    one = probe(tmp_path / "1", {f"run/{LEFT_FACTS}": json.dumps({"lldp": {"interface": {"eth0": JSON}}})})
    other = probe(tmp_path / "0", {f"run/{LEFT_FACTS}": json.dumps({"lldp": [{"interface": [JSON0]}]})})
    assert one.facts == other.facts == {"lldp": (LEAF,)}


def test_both_agents_hearing_the_same_are_one_neighbour(tmp_path: Path) -> None:
    result = probe(
        tmp_path,
        {
            "run/systemd/netif/lldp/2": kept(LEAF_FRAME),
            f"run/{LEFT_FACTS}": json.dumps({"lldp": [{"interface": [JSON0]}]}),
        },
    )
    assert result.facts["lldp"] == (LEAF,)


@pytest.mark.parametrize("left", ["", "{", "\xff", "[" * 100_000, Pipe()])
def test_broken_answers_of_lldpd(tmp_path: Path, left: Entry) -> None:
    result = probe(tmp_path, {f"run/{LEFT_FACTS}": left})
    assert result.facts["lldp"] == ()
    assert "not what lldpcli prints" in result.notes[0]


@pytest.mark.parametrize("vlan", ["0", "4095", "5000", "-1", "x", "９", None, {}, "1" * 5000, "000001" + "0" * 5000])
def test_absurd_vlans(tmp_path: Path, vlan: object) -> None:
    printed = {"lldp": {"interface": {"eth0": {**JSON, "vlan": {"vlan-id": vlan, "pvid": True}}}}}
    assert probe(tmp_path, {f"run/{LEFT_FACTS}": json.dumps(printed)}).facts["lldp"][0].vlan_id is None


def test_lldpd_without_answers_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ProbeUnsupported, match="have fabricd facts run as root"):
        probe(tmp_path, {"run/lldpd.socket": Pipe()})


@pytest.mark.parametrize("entries", [{}, {"run/systemd/netif/lldp": None}])
def test_no_agent_is_absent(tmp_path: Path, entries: dict[str, Entry]) -> None:
    with pytest.raises(ProbeAbsent, match="no LLDP agent"):
        probe(tmp_path, entries)
