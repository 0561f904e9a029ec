"""Probe ``host``: identity, processors, virtual machine and container from rendered files."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from fabricd.model.identity import Cpu, NodeIdentity
from fabricd.probe.base import ProbeContext, Roots
from fabricd.probe.host import HostProbe
from tests.support.rights import as_nobody, open_folder
from tests.support.tree import Denied, Pipe, Tree

X86 = """\
processor\t: {index}
vendor_id\t: GenuineIntel
cpu family\t: 6
model\t\t: 143
model name\t: Intel(R) Xeon(R) Platinum 8480C
physical id\t: {socket}
flags\t\t: fpu vme{hypervisor}

"""
ARM = """\
processor\t: 0
BogoMIPS\t: 2000.00
CPU implementer\t: 0x41
CPU architecture: 8
CPU variant\t: 0x0
CPU part\t: 0xd4f

"""
POWER = """\
processor\t: 0
cpu\t\t: POWER9, altivec supported

timebase\t: 512000000
platform\t: {platform}
machine\t\t: {machine}
"""
MACHINE_ID = "4b0f1c7ae9a14c6f8a9f6b2d8d3a7c11"
DMI_UUID = "4C4C4544-0042-3510-8052-B4C04F4D3632"


def x86(sockets: int = 2, hypervisor: bool = False) -> str:
    flag = " hypervisor" if hypervisor else ""
    return "".join(X86.format(index=index, socket=index % sockets, hypervisor=flag) for index in range(4))


def identity(root: Path, tree: Tree) -> NodeIdentity:
    result = HostProbe().run(ProbeContext(roots=Roots.under(tree.write(root)), this_host=False))
    node = result.facts["node"]
    assert isinstance(node, NodeIdentity)
    return node


def machine(**files: str) -> Tree:
    tree = Tree({"proc/cpuinfo": x86(), "etc/machine-id": MACHINE_ID + "\n", "sys/class/dmi/id/product_uuid": DMI_UUID})
    tree.entries.update(files)
    return tree


def test_all_fields(tmp_path: Path) -> None:
    tree = machine()
    tree.update(
        "proc/sys/kernel",
        {"hostname": "gpu-17\n", "osrelease": "6.8.0-45-generic\n", "random/boot_id": "0b2d\n", "arch": "x86_64\n"},
    )
    tree.update("sys/class/dmi/id", {"product_name": "DGXH100\n", "sys_vendor": "NVIDIA\n"})
    tree["sys/devices/system/cpu/online"] = "0-111\n"
    tree["proc/meminfo"] = "MemTotal:       2113391184 kB\nMemFree: 1 kB\n"
    tree["etc/os-release"] = 'NAME="Ubuntu"\nPRETTY_NAME="Ubuntu 22.04.4 LTS"\n'
    node = identity(tmp_path, tree)
    cpu = Cpu(
        vendor="GenuineIntel",
        family=6,
        model=143,
        name="Intel(R) Xeon(R) Platinum 8480C",
        architecture="x86_64",
        sockets=2,
        logical=112,
    )
    expected = NodeIdentity(
        node_id=node.node_id,
        name="gpu-17",
        hostname="gpu-17",
        id_source="machine-id+dmi",
        boot_id="0b2d",
        kernel="6.8.0-45-generic",
        os="Ubuntu 22.04.4 LTS",
        virtualization="none",
        product="DGXH100",
        vendor="NVIDIA",
        memory_bytes=2113391184 * 1024,
        cpu=cpu,
    )
    assert node == expected
    assert len(node.node_id) == 32
    assert MACHINE_ID not in node.node_id


class TestNodeId:
    """Which facts the id rests on."""

    def test_clones_of_a_machine_id_differ_by_dmi(self, tmp_path: Path) -> None:
        one = identity(tmp_path / "1", machine())
        other = identity(tmp_path / "2", machine(**{"sys/class/dmi/id/product_uuid": DMI_UUID.replace("4C", "5D")}))
        again = identity(tmp_path / "3", machine(**{"etc/hostname": "renamed"}))
        assert one.node_id != other.node_id
        assert one.node_id == again.node_id

    def test_dmi_denied_falls_back_to_addresses(self) -> None:
        def tree(mac: str) -> Tree:
            denied = machine()
            denied["sys/class/dmi/id/product_uuid"] = Denied(DMI_UUID)
            nic = denied.pci("pci0000:00/0000:00:01.0", class_code=0x020000)
            denied.net("eth0", index=2, device=nic, mac=mac)
            denied.net("veth9", index=3, mac="02:aa:00:00:00:09")
            return denied

        ids = []
        for mac in ["b8:ce:f6:00:00:01", "b8:ce:f6:00:00:02", "b8:ce:f6:00:00:01"]:
            with open_folder() as folder:
                context = ProbeContext(roots=Roots.under(tree(mac).write(folder)), this_host=False)
                node = as_nobody(lambda context=context: HostProbe().run(context).facts["node"])
            assert node.id_source == "addresses"
            ids.append(node.node_id)
        assert ids[0] != ids[1]
        assert ids[0] == ids[2]

    def test_addresses_are_the_hardwares_own(self, tmp_path: Path) -> None:
        def tree(mac: str, **files: str) -> Tree:
            one = Tree({"etc/machine-id": MACHINE_ID})
            nic = one.pci("pci0000:00/0000:00:01.0", class_code=0x020000)
            folder = one.net("eth0", index=2, device=nic, mac=mac, addr_assign_type=files.get("assigned", "0\n"))
            if "own" in files:
                one[f"{folder}/bonding_slave/perm_hwaddr"] = files["own"]
            return one

        alone = identity(tmp_path / "alone", tree("b8:ce:f6:00:00:01"))
        bonded = identity(tmp_path / "bonded", tree("b8:ce:f6:00:00:09", assigned="3\n", own="b8:ce:f6:00:00:01\n"))
        assert (alone.id_source, alone.node_id) == ("addresses", bonded.node_id)
        drawn = identity(tmp_path / "drawn", tree("b6:12:34:56:78:9a", assigned="1\n"))
        assert drawn.id_source == "machine-id"

    def test_virtual_functions_and_virtual_interfaces_do_not_count(self, tmp_path: Path) -> None:
        tree = Tree({"etc/machine-id": MACHINE_ID})
        virtual_function = tree.pci("pci0000:00/0000:00:02.0", class_code=0x020000)
        tree.link(f"{virtual_function}/physfn", "sys/devices/pci0000:00/0000:00:01.0")
        tree["sys/devices/pci0000:00/0000:00:01.0"] = None
        tree.net("vf0", index=2, device=virtual_function)
        tree.net("br0", index=3)
        assert identity(tmp_path, tree).id_source == "machine-id"

    @pytest.mark.parametrize(
        ("entries", "source"),
        [
            ({"etc/machine-id": MACHINE_ID, "sys/class/dmi/id/product_uuid": DMI_UUID}, "machine-id+dmi"),
            ({"etc/machine-id": "uninitialized\n", "sys/class/dmi/id/product_uuid": DMI_UUID}, "dmi"),
            ({"etc/machine-id": MACHINE_ID, "sys/class/dmi/id/product_uuid": "Not Settable"}, "machine-id"),
            ({"etc/machine-id": MACHINE_ID, "sys/class/dmi/id/product_uuid": "0" * 32}, "machine-id"),
            ({"etc/machine-id": MACHINE_ID, "sys/class/dmi/id/product_uuid": "FFFFFFFF-" + "F" * 24}, "machine-id"),
            (
                {
                    "etc/machine-id": MACHINE_ID,
                    "sys/class/dmi/id/product_uuid": "03000200-0400-0500-0006-000700080009",
                },
                "machine-id",
            ),
            ({"sys/class/infiniband/mlx5_0/node_guid": "b8ce:f603:0000:0001\n"}, "addresses"),
            ({"sys/class/infiniband/mlx5_0/node_guid": "0000:0000:0000:0000\n"}, "hostname"),
            ({"etc/machine-id": Pipe()}, "hostname"),
        ],
    )
    def test_source(self, tmp_path: Path, entries: dict[str, str], source: str) -> None:
        node = identity(tmp_path, Tree(dict(entries)))
        assert node.id_source == source
        assert len(node.node_id) == 32


@pytest.mark.parametrize(
    ("cpuinfo", "expected"),
    [
        (ARM, Cpu(vendor="ARM", family=8, model=0xD4F, architecture="aarch64", logical=1)),
        (
            POWER.format(platform="PowerNV", machine="PowerNV 8335-GTW"),
            Cpu(vendor="IBM", name="POWER9, altivec supported", architecture="ppc64le", logical=1),
        ),
        ("", Cpu()),
        ("processor\t: 0\nvendor_id\t: AuthenticAMD\ncpu family\t: N/A\nmodel\t: 99999999999999999999\n", None),
        (ARM.replace("0x41", "0xff"), Cpu(vendor="0xff", family=8, model=0xD4F, architecture="aarch64", logical=1)),
    ],
)
def test_processors(tmp_path: Path, cpuinfo: str, expected: Cpu | None) -> None:
    cpu = identity(tmp_path, Tree({"proc/cpuinfo": cpuinfo})).cpu
    assert cpu == (expected or Cpu(vendor="AuthenticAMD", logical=1))


def test_sockets_of_arm_come_from_sysfs(tmp_path: Path) -> None:
    tree = Tree({"proc/cpuinfo": ARM, "sys/devices/system/cpu/online": "0-3\n"})
    for index, package in enumerate(["0", "0", "1", "-1"]):
        tree[f"sys/devices/system/cpu/cpu{index}/topology/physical_package_id"] = package
    cpu = identity(tmp_path, tree).cpu
    assert (cpu.sockets, cpu.logical) == (2, 4)


def test_of_many_cpus_one_of_each_socket_is_read(tmp_path: Path) -> None:
    """The kernel interrupts each CPU that cpuinfo tells of, so only its beginning is read."""
    tree = Tree({"proc/cpuinfo": x86(sockets=1) * 500, "sys/devices/system/cpu/online": "0-1999\n"})
    for cpu, package, siblings in ((0, "0", "0-999"), (1000, "36", "1000-1999")):
        folder = f"sys/devices/system/cpu/cpu{cpu}/topology"
        tree.update(folder, {"physical_package_id": package, "package_cpus_list": siblings})
    cpu = identity(tmp_path, tree).cpu
    assert (cpu.sockets, cpu.logical, cpu.model) == (2, 2000, 143)


@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        ({"proc/cpuinfo": x86()}, "none"),
        ({"proc/cpuinfo": x86(hypervisor=True)}, "vm-other"),
        ({"proc/cpuinfo": x86(hypervisor=True), "sys/class/dmi/id/sys_vendor": "Amazon EC2"}, "amazon"),
        # Bare metal of the same cloud writes the same vendor; the CPU knows better.
        ({"proc/cpuinfo": x86(), "sys/class/dmi/id/sys_vendor": "Amazon EC2"}, "none"),
        ({"proc/cpuinfo": x86(hypervisor=True), "sys/class/dmi/id/product_name": "VMware7,1"}, "vmware"),
        ({"proc/cpuinfo": x86(hypervisor=True), "sys/class/dmi/id/product_name": "Virtual Machine"}, "microsoft"),
        ({"proc/cpuinfo": x86(hypervisor=True), "sys/class/dmi/id/product_name": "Google Compute Engine"}, "google"),
        (
            {
                "proc/cpuinfo": x86(hypervisor=True),
                "sys/class/dmi/id/sys_vendor": "QEMU",
                "sys/devices/system/clocksource/clocksource0/available_clocksource": "tsc kvm-clock acpi_pm",
            },
            "kvm",
        ),
        ({"proc/cpuinfo": x86(hypervisor=True), "sys/class/dmi/id/sys_vendor": "QEMU"}, "qemu"),
        ({"proc/cpuinfo": x86(), "sys/hypervisor/type": "xen"}, "xen"),
        ({"proc/cpuinfo": x86(), "sys/hypervisor/type": "xen", "proc/xen/capabilities": "control_d\n"}, "none"),
        ({"proc/cpuinfo": ARM}, ""),
        ({"proc/cpuinfo": ARM, "sys/class/dmi/id/product_name": "NVIDIA_DGX_Spark"}, "none"),
        ({"proc/cpuinfo": ARM, "sys/class/dmi/id/sys_vendor": "QEMU", "sys/class/dmi/id/product_name": "virt"}, "qemu"),
        (
            {
                "proc/cpuinfo": ARM,
                "sys/class/dmi/id/sys_vendor": "Amazon EC2",
                "sys/class/dmi/id/product_name": "c7g.metal",
            },
            "none",
        ),
        ({"proc/cpuinfo": ARM, "sys/firmware/devicetree/base/hypervisor/compatible": "linux,kvm\0"}, "kvm"),
        ({"proc/cpuinfo": POWER.format(platform="PowerNV", machine="PowerNV 8335-GTW")}, "none"),
        ({"proc/cpuinfo": POWER.format(platform="pSeries", machine="CHRP IBM,9009-42A")}, "powervm"),
        ({"proc/cpuinfo": POWER.format(platform="pSeries", machine="CHRP IBM pSeries (emulated by qemu)")}, "kvm"),
        ({}, ""),
    ],
)
def test_virtualization(tmp_path: Path, entries: dict[str, str], expected: str) -> None:
    assert identity(tmp_path, Tree(dict(entries))).virtualization == expected


@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        ({}, ""),
        ({"proc/1/cgroup": "0::/\n"}, ""),
        ({".dockerenv": ""}, "docker"),
        ({"run/.containerenv": ""}, "podman"),
        ({"run/systemd/container": "systemd-nspawn\n"}, "systemd-nspawn"),
        ({".singularity.d/env": ""}, "apptainer"),
        ({"proc/1/cgroup": "0::/kubepods.slice/kubepods-pod1.slice/cri-containerd-9.scope\n"}, "kubernetes"),
        ({".dockerenv": "", "run/secrets/kubernetes.io/serviceaccount/namespace": "ai"}, "kubernetes"),
        ({"proc/self/cgroup": "12:cpu:/docker/7b0d\n"}, "docker"),
        ({"proc/1/cgroup": "1:name=systemd:/lxc/web\n"}, "lxc"),
    ],
)
def test_container(tmp_path: Path, entries: dict[str, str], expected: str) -> None:
    assert identity(tmp_path, Tree(dict(entries))).container == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('PRETTY_NAME="Debian GNU/Linux 12 (bookworm)"\n', "Debian GNU/Linux 12 (bookworm)"),
        ("PRETTY_NAME=Alpine\n", "Alpine"),
        ("PRETTY_NAME='it''s'\n", "its"),
        ('PRETTY_NAME="open\n', "open"),
        ("NAME=x\n", ""),
    ],
)
def test_os_name(tmp_path: Path, text: str, expected: str) -> None:
    assert identity(tmp_path, Tree({"usr/lib/os-release": text})).os == expected


@pytest.mark.parametrize(
    ("host", "name"),
    [
        ("gpu-17.rack_2.example", "gpu-17.rack_2.example"),
        ("käfer", "käfer"),
        ("a/b,c d", "a_b_c_d"),
        ("\x1b[2J\nx\u202e", "__2J_x_"),
    ],
)
def test_a_node_is_called_what_can_be_printed_and_told_from_its_devices(tmp_path: Path, host: str, name: str) -> None:
    found = identity(tmp_path, machine(**{"proc/sys/kernel/hostname": host}))
    assert (found.name, found.hostname) == (name, host.strip())


def test_absurd_files_cost_only_their_field(tmp_path: Path) -> None:
    tree = Tree(
        {
            "proc/cpuinfo": os.urandom(5000),
            "proc/meminfo": "MemTotal: lots\n",
            "proc/version": "Linux",
            "etc/machine-id": b"\xff" * 10_000,
            "etc/os-release": Pipe(),
            "sys/devices/system/cpu/online": "0-99999999999",
            "sys/class/dmi/id": "a file, not a folder",
        }
    )
    node = identity(tmp_path, tree)
    assert replace(node, node_id="", id_source="", name="", cpu=Cpu()) == NodeIdentity(node_id="", name="")
    assert node.cpu.logical is None


def test_this_host() -> None:
    node = HostProbe().run(ProbeContext()).facts["node"]
    assert node.hostname == os.uname().nodename
    assert node.kernel == os.uname().release
    assert node.cpu.architecture == os.uname().machine
    assert node.cpu.logical == len(os.sched_getaffinity(1)) or node.cpu.logical == os.cpu_count()
    assert (node.memory_bytes or 0) > 100_000_000
