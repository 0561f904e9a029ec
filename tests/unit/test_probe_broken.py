"""A whole machine whose files are broken in every way: each probe still comes to an end that it understands."""

import random
import shutil
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fabricd.model.codec import from_json, to_json
from fabricd.model.observation import Outcome
from fabricd.model.snapshot import Snapshot
from fabricd.probe import acs, ibfabric, lldp
from fabricd.probe.base import ProbeContext, Roots
from fabricd.probe.runner import take_snapshot
from tests.support.rights import as_nobody, open_folder
from tests.support.tree import Denied, Entry, Link, Pipe, Tree

BROKEN: list[Entry] = [
    "",
    "\n",
    "N/A\n",
    "-1\n",
    "9" * 4000,
    "0x" + "f" * 4000,
    b"\xff\xfe\x00" * 100,
    "1-" * 2000,
    ": " * 2000,
    "GPU UUID: " + "x" * 100_000,
    "{" * 5000,
    Pipe(),
    Link("loop-of-itself"),
    Link("../../../../../../../../../../nowhere"),
    Link("/dev/zero"),
    None,
]


def machine() -> Tree:
    """Two GPUs and two adapters below a switch, bond, RDMA, two NUMA nodes, LLDP: a bit of everything."""
    tree = Tree(
        {
            "etc/machine-id": "4b0f1c7ae9a14c6f8a9f6b2d8d3a7c11\n",
            "etc/os-release": 'PRETTY_NAME="Ubuntu 22.04"\n',
            "etc/hostname": "gpu-17\n",
            "proc/cpuinfo": "processor\t: 0\nvendor_id\t: GenuineIntel\ncpu family\t: 6\nflags\t: fpu hypervisor\n",
            "proc/meminfo": "MemTotal: 1024 kB\n",
            "proc/version": "Linux version 6.8.0\n",
            "proc/1/cgroup": "0::/\n",
            "proc/sys/kernel/hostname": "gpu-17\n",
            "proc/sys/kernel/osrelease": "6.8.0\n",
            "proc/sys/kernel/random/boot_id": "boot-1\n",
            "sys/class/dmi/id/product_uuid": "4C4C4544-0042-3510-8052-B4C04F4D3632\n",
            "sys/class/dmi/id/product_name": "DGXH100\n",
            "sys/devices/system/clocksource/clocksource0/available_clocksource": "tsc\n",
            "sys/devices/system/cpu/online": "0-3\n",
            f"run/{acs.LEFT_FACTS}": '{"boot_id": "boot-1", "acs": {}}',
            f"run/{lldp.LEFT_FACTS}": '{"lldp": {"interface": {"eth0": {"via": "LLDP"}}}}',
            f"run/{ibfabric.LEFT_FACTS}": 'Switch 2 "S-1"\n[1] "H-b8cef60300000001"[1]\n\nCa 1 "H-b8cef60300000001"\n',
            "run/systemd/netif/lldp/2": b"",
        }
    )
    for index in range(2):
        node = f"sys/devices/system/node/node{index}"
        tree.update(node, {"cpulist": "0-1\n", "distance": "10 20\n", "meminfo": "Node 0 MemTotal: 5 kB\n"})
    top = "pci0000:16/0000:16:01.0"
    link = {"current_link_speed": "16.0 GT/s PCIe\n", "current_link_width": "8\n", "numa_node": "0\n"}
    tree.pci(top, config=b"\0" * 4096, **link)
    for number in range(2):
        gpu = f"{top}/0000:1{number}:00.0"
        tree.pci(gpu, class_code=0x030200, vendor=0x10DE, resource="0x0 0xff 0x0\n", resource1_resize="1c0\n", **link)
        card = tree.pci(f"{top}/0000:2{number}:00.0", class_code=0x020000, vendor=0x15B3, sriov_numvfs="0\n", **link)
        tree.net(f"eth{number}", index=number + 2, device=card, speed="100000\n", carrier="1\n", iflink="2\n")
        hca = f"{card}/infiniband/mlx5_{number}"
        tree.update(hca, {"node_guid": "b8ce:f603:0000:0001\n", "fw_ver": "28.1\n", "node_type": "1: CA\n"})
        layer = ("Ethernet", "InfiniBand")[number]
        port = {"state": "4: ACTIVE\n", "link_layer": f"{layer}\n", "rate": "400 Gb/sec (4X NDR)\n", "lid": "0x1\n"}
        tables = {"gids/0": "fe80:0000:0000:0000:b8ce:f603:0000:0001\n", "pkeys/0": "0xffff\n", "counters/x": "1\n"}
        tree.update(f"{hca}/ports/1", {**port, **tables, "gid_attrs/ndevs/0": f"eth{number}\n"})
        tree.link(f"{hca}/device", card)
        tree.link(f"sys/class/infiniband/mlx5_{number}", hca)
        tree[f"sys/class/infiniband_verbs/uverbs{number}/ibdev"] = f"mlx5_{number}\n"
    tree.net("bond0", index=9, **{"bonding/mode": "802.3ad 4\n"})
    return tree


def probed(root: Path) -> Snapshot:
    context = ProbeContext(roots=Roots.under(root), this_host=False, answers=root / "answers")
    snapshot = take_snapshot(context)
    assert from_json(to_json(snapshot), Snapshot) == snapshot
    return snapshot


def failures(snapshot: Snapshot) -> list[str]:
    """Return the failures, but for that of a probe whose only source is one file, and which names it."""
    failed = [report for report in snapshot.probes if report.outcome is Outcome.FAILED]
    return [f"{one.name}: {one.reason}" for one in failed if ibfabric.LEFT_FACTS not in one.reason]


def files(tree: Tree) -> list[str]:
    """Return the paths that are no folders of others and no links."""
    return [path for path, entry in tree.entries.items() if entry is not None and not isinstance(entry, Link)]


def test_the_machine_is_found_while_it_is_whole(tmp_path: Path) -> None:
    snapshot = probed(machine().write(tmp_path))
    assert failures(snapshot) == []
    assert [len(fabric.switches) for fabric in snapshot.ib_fabrics] == [1]
    assert (len(snapshot.numa), len(snapshot.pci), len(snapshot.hcas)) == (2, 5, 2)
    assert {nic.name for nic in snapshot.interfaces} == {"eth0", "eth1", "bond0"}


@pytest.mark.parametrize("broken", BROKEN, ids=[repr(entry)[:20] for entry in BROKEN])
def test_every_file_broken_in_one_way(tmp_path: Path, broken: Entry) -> None:
    tree = machine()
    for path in files(tree):
        tree[path] = broken
    assert failures(probed(tree.write(tmp_path))) == []


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(min_value=0, max_value=2**32))
def test_files_broken_at_random(tmp_path: Path, seed: int) -> None:
    """Some broken, some gone, some whole; links too."""
    draw = random.Random(seed)
    tree = machine()
    for path in list(tree.entries):
        chance = draw.random()
        if chance < 0.25:
            tree[path] = draw.choice(BROKEN)
        elif chance < 0.35:
            del tree.entries[path]
    # What is below a file or link that was a folder cannot be written; leave it out.
    for path in list(tree.entries):
        parents = [path.rsplit("/", count)[0] for count in range(1, path.count("/") + 1)]
        if any(tree.entries.get(parent, None) is not None for parent in parents):
            tree.entries.pop(path)
    shutil.rmtree(tmp_path / "root", ignore_errors=True)
    assert failures(probed(tree.write(tmp_path / "root"))) == []


def test_every_file_denied() -> None:
    tree = machine()
    for path in files(tree):
        tree[path] = Denied()
    with open_folder() as root:
        tree.write(root)
        snapshot = as_nobody(lambda: probed(root))
    assert failures(snapshot) == []
    assert any("denied" in note for report in snapshot.probes for note in report.notes)
