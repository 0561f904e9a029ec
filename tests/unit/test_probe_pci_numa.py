"""Probes ``pci`` and ``numa`` on rendered trees, odd ones above all."""

from pathlib import Path

import pytest

from fabricd.model.device import NumaNode, PciDevice, PcieLink
from fabricd.model.observation import Outcome
from fabricd.probe.base import ProbeAbsent, ProbeContext, ProbeResult, Roots
from fabricd.probe.numa import NumaProbe
from fabricd.probe.pci import PciProbe
from fabricd.probe.runner import take_snapshot
from tests.support.tree import Link, Pipe, Tree

GPU, NIC, VGA, NVME, SWITCH = 0x030200, 0x020000, 0x030000, 0x010802, 0x068000
NVIDIA, MELLANOX, BROADCOM, ASPEED, AMD = 0x10DE, 0x15B3, 0x1000, 0x1A03, 0x1002


def probe_pci(root: Path, tree: Tree) -> ProbeResult:
    return PciProbe().run(ProbeContext(roots=Roots.under(tree.write(root)), this_host=False))


def devices(root: Path, tree: Tree) -> dict[str, PciDevice]:
    return {device.address: device for device in probe_pci(root, tree).facts["pci"]}


def test_correctable_errors_are_those_that_the_kernel_has_added_up(tmp_path: Path) -> None:
    tree = Tree()
    told = "Receiver Error 14\nBad TLP 2\nBad DLLP 0\nRELAY_NUM Rollover 0\nReplay Timer Timeout 1\nTOTAL_ERR_COR 17\n"
    tree.pci("pci0000:16/0000:16:01.0", aer_dev_correctable="Receiver Error 0\nTOTAL_ERR_COR 0\n")
    tree.pci("pci0000:16/0000:16:01.0/0000:17:00.0", class_code=NIC, vendor=MELLANOX, aer_dev_correctable=told)
    tree.pci("pci0000:20/0000:20:01.0", aer_dev_correctable="TOTAL_ERR_COR -1\n")
    tree.pci("pci0000:20/0000:20:01.0/0000:21:00.0", class_code=NIC, vendor=MELLANOX, aer_dev_correctable="what?")
    tree.pci("pci0000:30/0000:30:00.0", class_code=NIC, vendor=MELLANOX)
    assert probe_pci(tmp_path, tree).facts["pcie_errors"] == (("0000:16:01.0", 0), ("0000:17:00.0", 17))


def test_gpu_and_nic_under_one_switch(tmp_path: Path) -> None:
    tree = Tree()
    top = "pci0000:16/0000:16:01.0"
    link = {
        "current_link_speed": "16.0 GT/s PCIe\n",
        "current_link_width": "8\n",
        "max_link_speed": "32.0 GT/s PCIe\n",
        "max_link_width": "16\n",
    }
    tree.pci(top)
    tree.pci(
        f"{top}/0000:17:00.0", vendor=BROADCOM, device=0xC030, subsystem_vendor="0x1000\n", subsystem_device="0x1\n"
    )
    tree.pci(f"{top}/0000:17:00.0/0000:18:00.0", vendor=BROADCOM, device=0xC030)
    tree.pci(f"{top}/0000:17:00.0/0000:18:01.0", vendor=BROADCOM, device=0xC030)
    gpu = tree.pci(
        f"{top}/0000:17:00.0/0000:18:00.0/0000:19:00.0",
        class_code=GPU,
        vendor=NVIDIA,
        device=0x2330,
        numa_node="1\n",
        local_cpulist="56-57,168\n",
        driver=Link("../../../../../../../bus/pci/drivers/nvidia"),
        iommu_group=Link("../../../../../../kernel/iommu_groups/27"),
        resource=(
            "0x000000c8d0000000 0x000000c8d0ffffff 0x0000000000140204\n"
            "0x0000000000000000 0x0000000000000000 0x0000000000000000\n"
            "0x0000380000000000 0x0000381fffffffff 0x000000000014220c\n"
        ),
        **link,
    )
    tree.pci(f"{top}/0000:17:00.0/0000:18:01.0/0000:1a:00.0", class_code=NIC, vendor=MELLANOX, sriov_numvfs="2\n")
    tree.pci("pci0000:00/0000:00:1f.0", class_code=NVME)
    tree.pci("pci0000:00/0000:00:02.0", class_code=VGA, vendor=ASPEED)

    found = devices(tmp_path, tree)
    assert list(found) == [
        "0000:16:01.0", "0000:17:00.0", "0000:18:00.0", "0000:18:01.0", "0000:19:00.0", "0000:1a:00.0",
    ]  # fmt: skip
    assert found["0000:19:00.0"] == PciDevice(
        address="0000:19:00.0",
        parent="0000:18:00.0",
        root="pci0000:16",
        class_code=GPU,
        vendor_id=NVIDIA,
        device_id=0x2330,
        driver="nvidia",
        numa_node=1,
        local_cpus=(56, 57, 168),
        link=PcieLink(speed_gts=16.0, width=8, max_speed_gts=32.0, max_width=16),
        iommu_group=27,
        largest_bar_bytes=128 * 1024**3,
    )
    assert found["0000:16:01.0"].parent == ""
    assert found["0000:17:00.0"].subsystem_vendor_id == 0x1000
    assert found["0000:1a:00.0"].virtual_function_count == 2
    assert gpu.endswith("0000:19:00.0")


@pytest.mark.parametrize(
    ("class_code", "vendor", "kept"),
    [
        (GPU, NVIDIA, True),
        (0x038000, AMD, True),
        (0x120000, AMD, True),
        (0x120000, 0x1DA3, True),
        (VGA, ASPEED, False),
        (0x120000, 0x1D0F, False),
        (NIC, 0x1D0F, True),
        (0x020700, MELLANOX, True),
        (0x028000, 0x1AE0, True),
        (SWITCH, NVIDIA, True),
        (SWITCH, 0x8086, False),
        (NVME, 0x144D, False),
        (0xFFFF00, 0x1AF4, False),
    ],
)
def test_what_matters(tmp_path: Path, class_code: int, vendor: int, kept: bool) -> None:
    tree = Tree()
    tree.pci("pci0000:00/0000:00:01.0", class_code=class_code, vendor=vendor)
    assert bool(devices(tmp_path, tree)) is kept


def test_virtual_functions_name_their_physical_one(tmp_path: Path) -> None:
    tree = Tree()
    physical = tree.pci("pci0000:00/0000:00:01.0", class_code=NIC, vendor=MELLANOX)
    virtual = tree.pci("pci0000:00/0000:00:01.2", class_code=NIC, vendor=MELLANOX)
    tree.link(f"{virtual}/physfn", physical)
    assert devices(tmp_path, tree)["0000:00:01.2"].physical_function == "0000:00:01.0"


@pytest.mark.parametrize(
    ("place", "address", "parent", "root"),
    [
        ("pci0009:00/0009:00:00.0/0009:01:00.0", "0009:01:00.0", "0009:00:00.0", "pci0009:00"),
        # Behind a VMD controller a domain of its own begins.
        ("pci0000:00/0000:00:0e.0/pci10000:00/10000:00:02.0", "10000:00:02.0", "", "pci10000:00"),
        ("LNXSYSTM:00/VMBUS:01/47505500-0001/pci0001:00/0001:00:00.0", "0001:00:00.0", "", "pci0001:00"),
        ("platform/soc/pci000a:00/000a:00:00.0", "000a:00:00.0", "", "pci000a:00"),
    ],
)
def test_places(tmp_path: Path, place: str, address: str, parent: str, root: str) -> None:
    tree = Tree()
    parts = place.split("/")
    for end in range(1, len(parts) - 1):
        if "." in parts[end]:
            tree.pci("/".join(parts[: end + 1]))
    tree.pci(place, class_code=NIC)
    device = devices(tmp_path, tree)[address]
    assert (device.parent, device.root) == (parent, root)


@pytest.mark.parametrize(
    ("files", "expected", "noted"),
    [
        ({"numa_node": "-1\n"}, {"numa_node": None}, False),
        ({"numa_node": "-7\n"}, {"numa_node": None}, True),
        ({"numa_node": "eth\n"}, {"numa_node": None}, True),
        ({"current_link_speed": "Unknown\n", "current_link_width": "0\n"}, {"link": PcieLink()}, False),
        ({"current_link_speed": "Unknown speed\n", "current_link_width": "255\n"}, {"link": PcieLink()}, False),
        ({"current_link_speed": "2.5 GT/s PCIe\n"}, {"link": PcieLink(speed_gts=2.5)}, False),
        ({"current_link_speed": "fast\n"}, {"link": PcieLink()}, True),
        ({"current_link_speed": "9999999.0 GT/s PCIe\n"}, {"link": PcieLink()}, True),
        ({"current_link_width": "64\n"}, {"link": PcieLink()}, True),
        ({"resource": "0x0 0x0 0x0\n"}, {"largest_bar_bytes": None}, False),
        ({"resource": "what\n"}, {"largest_bar_bytes": None}, True),
        ({"resource": "0xffffffffffff 0x1 0x0\n"}, {"largest_bar_bytes": None}, False),
        ({"local_cpulist": "0-\n"}, {"local_cpus": ()}, True),
        ({"subsystem_vendor": Pipe()}, {"subsystem_vendor_id": None}, True),
        ({"driver": Link("driver")}, {"driver": "driver"}, False),
        ({"iommu_group": Link("../x")}, {"iommu_group": None}, False),
        ({"sriov_numvfs": "many"}, {"virtual_function_count": None}, True),
    ],
)
def test_odd_files_cost_their_field(
    tmp_path: Path, files: dict[str, object], expected: dict[str, object], noted: bool
) -> None:
    tree = Tree()
    tree.pci("pci0000:00/0000:00:01.0", class_code=NIC, **files)  # type: ignore[arg-type]
    result = probe_pci(tmp_path, tree)
    device = result.facts["pci"][0]
    assert {name: getattr(device, name) for name in expected} == expected
    assert bool(result.notes) is noted


def test_broken_bus_folder(tmp_path: Path) -> None:
    tree = Tree()
    tree.pci("pci0000:00/0000:00:01.0", class_code=NIC)
    tree["sys/bus/pci/devices/0000:00:02.0"] = Link("0000:00:02.0")
    tree["sys/bus/pci/devices/0000:00:03.0"] = Link("../../../devices/pci0000:00/gone")
    tree["sys/bus/pci/devices/notes.txt"] = "hello"
    tree["sys/bus/pci/devices/0000:00:04.0"] = "a file"
    tree["sys/bus/pci/devices/0000:00:05.0/class"] = "0x020000"
    found = devices(tmp_path, tree)
    # What is no link into /sys/devices has no known place, but is there.
    assert list(found) == ["0000:00:01.0", "0000:00:05.0"]
    assert (found["0000:00:05.0"].root, found["0000:00:05.0"].parent) == ("", "")


def test_no_bus_is_absent(tmp_path: Path) -> None:
    with pytest.raises(ProbeAbsent, match="no PCI devices"):
        probe_pci(tmp_path, Tree({"sys": None}))


def test_a_thousand_functions_in_time(tmp_path: Path) -> None:
    tree = Tree()
    physical = tree.pci("pci0000:00/0000:00:01.0", class_code=NIC, vendor=MELLANOX)
    for number in range(1000):
        place = f"pci0000:00/0000:{1 + number // 256:02x}:{number // 8 % 32:02x}.{number % 8}"
        virtual = tree.pci(place, class_code=NIC, vendor=MELLANOX, numa_node="0\n", local_cpulist="0-31\n")
        tree.link(f"{virtual}/physfn", physical)
    context = ProbeContext(roots=Roots.under(tree.write(tmp_path)), this_host=False)
    snapshot = take_snapshot(context, probes=(PciProbe(),))
    assert snapshot.probes[0].outcome is Outcome.OK  # within its deadline
    assert len(snapshot.pci) == 1001


def probe_numa(root: Path, tree: Tree) -> ProbeResult:
    return NumaProbe().run(ProbeContext(roots=Roots.under(tree.write(root)), this_host=False))


def test_numa_nodes(tmp_path: Path) -> None:
    tree = Tree({"sys/devices/system/node/online": "0,8,255\n", "sys/devices/system/node/node8x": None})
    for index, cpus, distance in ((0, "0-1\n", "10 40 80\n"), (8, "88-89\n", "40 10 80\n"), (255, "\n", "80 80 10\n")):
        tree.update(
            f"sys/devices/system/node/node{index}",
            {"cpulist": cpus, "distance": distance, "meminfo": f"Node {index} MemTotal:       1024 kB\n"},
        )
    nodes = probe_numa(tmp_path, tree).facts["numa"]
    # The memory of a GPU is a node without CPUs (POWER9, GH200).
    assert nodes == (
        NumaNode(index=0, cpus=(0, 1), memory_bytes=1024 * 1024, distances=(10, 40, 80)),
        NumaNode(index=8, cpus=(88, 89), memory_bytes=1024 * 1024, distances=(40, 10, 80)),
        NumaNode(index=255, cpus=(), memory_bytes=1024 * 1024, distances=(80, 80, 10)),
    )


@pytest.mark.parametrize("distance", ["10 20", "10 x", "0", "1000", "-10"])
def test_absurd_distances(tmp_path: Path, distance: str) -> None:
    result = probe_numa(tmp_path, Tree({"sys/devices/system/node/node0/distance": distance}))
    assert result.facts["numa"] == (NumaNode(index=0),)
    assert len(result.notes) == 1


def test_a_kernel_without_numa_is_one_node_and_says_so(tmp_path: Path) -> None:
    tree = Tree({"sys/devices/system/cpu/online": "0-7\n", "proc/meminfo": "MemTotal: 2048 kB\n"})
    result = probe_numa(tmp_path, tree)
    assert result.facts["numa"] == (NumaNode(index=0, cpus=tuple(range(8)), memory_bytes=2048 * 1024, distances=(10,)),)
    assert "kernel has no NUMA" in result.notes[0]


def test_no_sysfs_is_absent(tmp_path: Path) -> None:
    with pytest.raises(ProbeAbsent, match="no NUMA nodes"):
        probe_numa(tmp_path, Tree({"proc": None}))
