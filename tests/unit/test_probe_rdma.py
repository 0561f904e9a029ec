"""Probe ``rdma`` on rendered devices of every fabric, and on public captures."""

import os
import subprocess
from pathlib import Path

import pytest

from fabricd.model.device import Gid, Hca, HcaPort
from fabricd.model.observation import Outcome
from fabricd.probe.base import ProbeAbsent, ProbeContext, ProbeResult, Roots
from fabricd.probe.rdma_sysfs import RECORDED, RdmaProbe
from fabricd.probe.runner import take_snapshot
from tests.support.tree import Entry, Link, Pipe, Tree

HCA_CLASS = 0x020700
GID = "fe80:0000:0000:0000:b8ce:f603:0000:0001"
V4_GID = "0000:0000:0000:0000:0000:ffff:0a01:0001"
EMPTY = "0000:0000:0000:0000:0000:0000:0000:0000"


def probe(root: Path, tree: Tree) -> ProbeResult:
    return RdmaProbe().run(ProbeContext(roots=Roots.under(tree.write(root)), this_host=False))


def test_numbers_are_the_kernels_where_it_tells_them(tmp_path: Path) -> None:
    tree = Tree()
    for bus, name in enumerate(("mlx5_ib0", "mlx5_eth0"), 0x17):
        add_hca(tree, name, bus=bus)
    answers = {RECORDED: b'{"devices": [{"name": "mlx5_ib0", "index": 3}, {"name": "gone", "index": 1}]}'}
    ctx = ProbeContext(roots=Roots.under(tree.write(tmp_path)), this_host=False, answers=answers)
    assert {hca.name: hca.index for hca in RdmaProbe().run(ctx).facts["hcas"]} == {"mlx5_eth0": None, "mlx5_ib0": 3}


def hcas(root: Path, tree: Tree) -> dict[str, Hca]:
    return {hca.name: hca for hca in probe(root, tree).facts["hcas"]}


def add_hca(
    tree: Tree,
    name: str,
    *,
    vendor: int = 0x15B3,
    device: int = 0x1021,
    driver: str = "mlx5_core",
    bus: int = 0x17,
    layer: str = "InfiniBand",
    node_type: str = "1: CA",
    **files: Entry,
) -> str:
    """Add a device with one active port; ``files`` are relative to the port."""
    card = tree.pci(
        f"pci0000:16/0000:{bus:02x}:00.0",
        class_code=HCA_CLASS,
        vendor=vendor,
        device=device,
        numa_node="1\n",
        driver=Link(f"../../../bus/pci/drivers/{driver}"),
    )
    folder = f"{card}/infiniband/{name}"
    tree.link(f"{folder}/device", card)
    tree.link(f"sys/class/infiniband/{name}", folder)
    tree.update(
        folder,
        {
            "node_guid": "b8ce:f603:0000:0001\n",
            "node_type": f"{node_type}\n",
            "fw_ver": "28.39.2048\n",
            "board_id": "MT_0000000838\n",
        },
    )
    port: dict[str, Entry] = {
        "state": "4: ACTIVE\n",
        "phys_state": "5: LinkUp\n",
        "link_layer": f"{layer}\n",
        "rate": "400 Gb/sec (4X NDR)\n",
        "lid": "0x1a\n",
        "sm_lid": "0x1\n",
    }
    tree.update(f"{folder}/ports/1", {**port, **files})
    return card


def test_an_infiniband_card_in_full(tmp_path: Path) -> None:
    tree = Tree({"sys/module/nvidia_peermem/version": "550.54\n"})
    add_hca(
        tree,
        "mlx5_0",
        **{
            "pkeys/0": "0xffff\n",
            "pkeys/1": "0x0000\n",
            "pkeys/10": "0x8001\n",
            "pkeys/2": "0x8002\n",
            "gids/0": f"{GID}\n",
            "gids/1": f"{EMPTY}\n",
            "gid_attrs/types/0": "IB/RoCE v1\n",
            "counters/port_xmit_data": "1000\n",
            "counters/port_xmit_packets": "7\n",
            "counters/symbol_error": "N/A (no PMA)\n",
            "counters_ext/port_rcv_data_64": "2\n",
            "hw_counters/lifespan": "10\n",
            "hw_counters/out_of_sequence": "3\n",
            "hw_counters/broken": Pipe(),
        },
    )
    result = probe(tmp_path, tree)
    assert result.facts["hcas"] == (
        Hca(
            name="mlx5_0",
            kind="infiniband",
            node_guid="b8ce:f603:0000:0001",
            firmware="28.39.2048",
            board_id="MT_0000000838",
            vendor_id=0x15B3,
            device_id=0x1021,
            pci_address="0000:17:00.0",
            numa_node=1,
            peer_memory=True,
            ports=(
                HcaPort(
                    port=1,
                    state="active",
                    physical_state="linkup",
                    link_layer="infiniband",
                    rate_bytes_per_second=50_000_000_000,
                    width=4,
                    lid=0x1A,
                    sm_lid=1,
                    pkeys=(0xFFFF, 0x8002, 0x8001),
                    gids=(Gid(index=0, gid=GID, type="ib"),),
                    counters=(("port_xmit_data", 4000), ("port_xmit_packets", 7), ("port_rcv_data_64", 8)),
                    hw_counters=(("out_of_sequence", 3),),
                ),
            ),
        ),
    )
    assert result.notes == ()


def test_gids_of_roce(tmp_path: Path) -> None:
    tree = Tree()
    add_hca(
        tree,
        "mlx5_0",
        layer="Ethernet",
        **{
            "gids/0": GID,
            "gids/1": GID,
            "gids/10": EMPTY,
            "gids/2": V4_GID,
            "gids/3": V4_GID,
            "gids/4": "nonsense",
            "gids/x": GID,
            "gid_attrs/types/0": "IB/RoCE v1\n",
            "gid_attrs/types/1": "RoCE v2\n",
            "gid_attrs/types/3": "RoCE v2\n",
            "gid_attrs/ndevs/0": "eth0\n",
            "gid_attrs/ndevs/1": "eth0\n",
            "gid_attrs/ndevs/3": "eth0.7\n",
        },
    )
    hca = hcas(tmp_path, tree)["mlx5_0"]
    assert hca.kind == "roce"
    assert hca.ports[0].gids == (
        Gid(index=0, gid=GID, type="roce-v1", interface="eth0"),
        Gid(index=1, gid=GID, type="roce-v2", interface="eth0"),
        Gid(index=2, gid=V4_GID, type=""),
        Gid(index=3, gid=V4_GID, type="roce-v2", interface="eth0.7"),
    )


@pytest.mark.parametrize(
    ("vendor", "device", "driver", "layer", "node_type", "kind", "virtual"),
    [
        (0x15B3, 0x1021, "mlx5_core", "InfiniBand", "1: CA", "infiniband", False),
        (0x15B3, 0x1021, "mlx5_core", "Ethernet", "1: CA", "roce", False),
        # A guest sees nothing of the physical function (Azure's HPC machines, for one); the device id tells.
        (0x15B3, 0x101E, "mlx5_core", "InfiniBand", "1: CA", "infiniband", True),
        (0x1D0F, 0xEFA2, "efa", "Unspecified", "7: unspecified", "efa", False),
        (0x1D0F, 0xEFA2, "", "Unspecified", "<unknown>", "efa", False),
        (0x1414, 0x00BA, "mana", "Ethernet", "1: CA", "mana", True),
        (0x8086, 0x1572, "i40e", "Ethernet", "4: RNIC", "iwarp", False),
        (0x8086, 0x24F0, "hfi1", "InfiniBand", "1: CA", "omni-path", False),
        (0x14E4, 0x1750, "bnxt_en", "Ethernet", "1: CA", "roce", False),
        (0x1137, 0x0043, "usnic_verbs", "Unspecified", "6: usNIC UDP", "other", False),
    ],
)
def test_fabrics(
    tmp_path: Path, vendor: int, device: int, driver: str, layer: str, node_type: str, kind: str, virtual: bool
) -> None:
    tree = Tree()
    add_hca(tree, "dev0", vendor=vendor, device=device, driver=driver, layer=layer, node_type=node_type)
    found = hcas(tmp_path, tree)["dev0"]
    assert (found.kind, found.virtual_function) == (kind, virtual)


def test_software_devices(tmp_path: Path) -> None:
    tree = Tree()
    for name, node_type in (("rxe0", "1: CA"), ("siw0", "4: RNIC")):
        folder = f"sys/devices/virtual/infiniband/{name}"
        tree.update(folder, {"node_type": node_type, "ports/1/link_layer": "Ethernet\n", "parent": "eth0\n"})
        tree.link(f"sys/class/infiniband/{name}", folder)
    assert {name: hca.kind for name, hca in hcas(tmp_path, tree).items()} == {"rxe0": "soft-roce", "siw0": "iwarp"}


def test_a_virtual_function_beside_its_physical_one(tmp_path: Path) -> None:
    tree = Tree()
    physical = add_hca(tree, "mlx5_0")
    virtual = add_hca(tree, "mlx5_1", bus=0x18)
    tree.link(f"{virtual}/physfn", physical)
    found = hcas(tmp_path, tree)
    assert (found["mlx5_0"].virtual_function, found["mlx5_1"].virtual_function) == (False, True)


def test_slingshot_is_named_for_what_it_is(tmp_path: Path) -> None:
    tree = Tree()
    card = tree.pci("pci0000:c0/0000:c1:00.0", class_code=0x020000, vendor=0x17DB, device=0x0501, numa_node="3\n")
    tree.link(f"{card}/cxi/cxi0/device", card)
    tree.link("sys/class/cxi/cxi0", f"{card}/cxi/cxi0")
    assert hcas(tmp_path, tree)["cxi0"] == Hca(
        name="cxi0", kind="slingshot", vendor_id=0x17DB, device_id=0x0501, pci_address="0000:c1:00.0", numa_node=3
    )


def test_slingshot_in_full_and_with_odd_files(tmp_path: Path) -> None:
    tree = Tree()
    for number, place in enumerate(("c0/0000:c1:00.0", "80/0000:81:00.0")):
        card = tree.pci(f"pci0000:{place}", class_code=0x020000, vendor=0x17DB, device=0x0501)
        tree.link(f"{card}/cxi/cxi{number}/device", card)
        tree.link(f"sys/class/cxi/cxi{number}", f"{card}/cxi/cxi{number}")
        odd = number == 1
        tree.update(
            card,
            {
                "properties/nid": "what\n" if odd else "0x1a2\n",
                "fru/part_number": "P43012-001\n",
                "telemetry/hni_sts_rx_ok_octets": f"{'9' * 40}@1\n" if odd else "1200@1732950000.123456789\n",
                "telemetry/hni_sts_tx_ok_octets": Pipe() if odd else "3400@1732950000.123456789\n",
            },
        )
    found = hcas(tmp_path, tree)
    assert (found["cxi0"].fabric_address, found["cxi0"].board_id) == ("0x1a2", "P43012-001")
    assert dict(found["cxi0"].counters) == {"hni_sts_rx_ok_octets": 1200, "hni_sts_tx_ok_octets": 3400}
    assert (found["cxi1"].fabric_address, found["cxi1"].counters) == ("", ())


@pytest.mark.parametrize(
    ("files", "expected", "noted"),
    [
        ({"rate": "0 Gb/sec (4X SDR)\n"}, {"rate_bytes_per_second": None, "width": 4}, False),
        ({"rate": "2.5 Gb/sec (1X SDR)\n"}, {"rate_bytes_per_second": 312_500_000, "width": 1}, False),
        ({"rate": "100 Gb/sec (4X EDR)\n"}, {"rate_bytes_per_second": 12_500_000_000, "width": 4}, False),
        ({"rate": "fast\n"}, {"rate_bytes_per_second": None, "width": None}, True),
        ({"rate": f"{'9' * 40} Gb/sec\n"}, {"rate_bytes_per_second": None}, True),
        ({"rate": f"{'9' * 400} Gb/sec\n"}, {"rate_bytes_per_second": None}, True),
        ({"state": "1: DOWN\n", "phys_state": "3: Disabled\n"}, {"state": "down", "physical_state": "disabled"}, False),
        ({"state": ""}, {"state": ""}, False),
        ({"lid": "0xffffffffff"}, {"lid": None}, True),
        ({"lid": Pipe()}, {"lid": None}, True),
        ({"pkeys/0": "key"}, {"pkeys": ()}, True),
        ({"counters": "no folder", "gids": Link("gids")}, {"counters": (), "gids": ()}, False),
        ({"counters/port_xmit_data": "9" * 30}, {"counters": ()}, False),
    ],
)
def test_odd_files_cost_their_field(
    tmp_path: Path, files: dict[str, Entry], expected: dict[str, object], noted: bool
) -> None:
    tree = Tree()
    add_hca(tree, "mlx5_0", **files)
    context = ProbeContext(roots=Roots.under(tree.write(tmp_path)), this_host=False)
    snapshot = take_snapshot(context, probes=(RdmaProbe(),))
    assert snapshot.probes[0].outcome is Outcome.OK
    port = snapshot.hcas[0].ports[0]
    assert {name: getattr(port, name) for name in expected} == expected
    assert bool(snapshot.probes[0].notes) is noted


def test_absurd_device_folders(tmp_path: Path) -> None:
    tree = Tree(
        {
            "sys/class/infiniband/loop": Link("loop"),
            "sys/class/infiniband/file": "x",
            "sys/class/infiniband/empty": None,
            "sys/class/infiniband/guid/node_guid": "zz" * 3000,
            "sys/class/infiniband/ports/ports/99999999999/state": "4: ACTIVE",
            "sys/class/infiniband/ports/ports/-1/state": "4: ACTIVE",
        }
    )
    found = hcas(tmp_path, tree)
    assert set(found) == {"loop", "file", "empty", "guid", "ports"}
    assert {hca.kind for hca in found.values()} == {"other"}
    assert not any(hca.ports or hca.node_guid for hca in found.values())


def test_no_device_is_absent(tmp_path: Path) -> None:
    with pytest.raises(ProbeAbsent, match="no RDMA device"):
        probe(tmp_path, Tree())


def test_of_hundreds_of_devices_only_some_are_counted(tmp_path: Path) -> None:
    tree = Tree()
    for number in range(200):
        add_hca(tree, f"mlx5_{number:03}", bus=number, **{"counters/port_xmit_data": "1"})
    result = probe(tmp_path, tree)
    assert [bool(hca.ports[0].counters) for hca in result.facts["hcas"]] == [True] * 64 + [False] * 136
    assert "first 64" in result.notes[0]


@pytest.mark.corpus
def test_an_h100_node_of_the_field(tmp_path: Path) -> None:
    archive = Path(os.environ["FABRICD_CORPUS"]) / "topologies/public/tools/gpud_sys-class-infiniband-h100.tar"
    subprocess.run(["tar", "-xf", archive, "-C", tmp_path], check=True)
    captured = next(tmp_path.rglob("mlx5_0")).parent
    (tmp_path / "sys/class").mkdir(parents=True)
    (tmp_path / "sys/class/infiniband").symlink_to(captured)
    found = hcas(tmp_path, Tree())
    assert len(found) == 9
    assert [hca.kind for hca in found.values()] == ["infiniband"] * 8 + ["roce"]
    assert {hca.ports[0].rate_bytes_per_second for hca in found.values()} == {50_000_000_000, 25_000_000_000}
    assert all(hca.ports[0].state == "active" for hca in found.values())
    counters = dict(found["mlx5_0"].ports[0].counters)
    raw = int((captured / "mlx5_0/ports/1/counters/port_rcv_data").read_text())
    assert counters["port_rcv_data"] == raw * 4
