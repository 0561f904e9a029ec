"""Renders a machine's /sys, /proc, /etc and /dev."""

from typing import Any

from fabricd.probe.files import parse_cpu_list
from fabricd.units import format_ranges
from tests.support.machine import Machine, PciNode, hardware
from tests.support.machine_rdma import add_adapters
from tests.support.tree import Denied, Tree

_GIGATRANSFERS = {1: "2.5", 2: "5.0", 3: "8.0", 4: "16.0", 5: "32.0", 6: "64.0"}
_NVIDIA, _NVSWITCH_CLASS = 0x10DE, 0x068000


def render(machine: Machine) -> Tree:
    """Return the tree."""
    tree = Tree()
    _add_host(tree, machine)
    _add_numa(tree, machine)
    for node in machine.nodes:
        _add_function(tree, machine, node)
    add_adapters(tree, machine)
    _add_driver(tree, machine)
    for path, content in machine.section("files").items():
        tree[path] = content
    for path in machine.facts.get("denied", []):
        tree[path] = Denied()
    for path in machine.facts.get("missing", []):
        tree.entries = {name: entry for name, entry in tree.entries.items() if not name.startswith(path)}
    return tree


def cpu_text(cpu: dict[str, Any], cpus: tuple[int, ...], sockets: int, *, virtual: bool) -> str:
    """Return /proc/cpuinfo in the form of the processor's architecture."""
    lines = []
    for position, number in enumerate(cpus):
        lines.append(f"processor\t: {number}")
        if "arm" in cpu:
            implementer, architecture, part = cpu["arm"]
            lines += [f"CPU implementer\t: {implementer:#04x}", f"CPU architecture: {architecture}"]
            lines += [f"CPU part\t: {part:#05x}"]
        elif "power" in cpu:
            lines += [f"cpu\t\t: {cpu['power']}"]
        else:
            lines += [f"vendor_id\t: {cpu['vendor']}", f"cpu family\t: {cpu['family']}", f"model\t\t: {cpu['model']}"]
            lines += [f"model name\t: {cpu['name']}", f"physical id\t: {position * sockets // len(cpus)}"]
            lines += [f"flags\t\t: fpu vme de{' hypervisor' if virtual else ''}"]
        lines.append("")
    return "\n".join(lines) + ("\nplatform\t: PowerNV\n" if "power" in cpu else "")


def _add_host(tree: Tree, machine: Machine) -> None:
    host = machine.section("host")
    if not host:
        return
    numa = machine.facts.get("numa", [])
    cpus = tuple(sorted(cpu for node in numa for cpu in parse_cpu_list(node.get("cpus", ""))))
    sockets = len({node.get("socket", index) for index, node in enumerate(numa) if node.get("cpus")}) or 1
    memory = sum(node.get("memory_gib", 0) for node in numa)
    tree["proc/sys/kernel/hostname"] = f"{machine.name}\n"
    tree["proc/sys/kernel/osrelease"] = f"{host.get('kernel', '6.8.0-45-generic')}\n"
    tree["proc/sys/kernel/random/boot_id"] = "6f1d3a52-0b5e-4a8e-9c77-d1a4c2b7e901\n"
    tree["proc/meminfo"] = f"MemTotal:       {memory * 2**20} kB\nMemFree:         1048576 kB\n"
    tree["etc/os-release"] = f'PRETTY_NAME="{host.get("os", "Ubuntu 24.04.1 LTS")}"\n'
    if "product" in host:
        tree["sys/class/dmi/id/product_name"] = f"{host['product']}\n"
        tree["sys/class/dmi/id/sys_vendor"] = f"{host['vendor']}\n"
    if "cpu" in host:
        cpu = hardware()["cpu"][host["cpu"]]
        tree["proc/cpuinfo"] = cpu_text(cpu, cpus, sockets, virtual=host.get("virtual", False))
        tree["sys/devices/system/cpu/online"] = f"{format_ranges(cpus)}\n"


def _add_numa(tree: Tree, machine: Machine) -> None:
    nodes = machine.facts.get("numa", [])
    numbers = [node.get("node", index) for index, node in enumerate(nodes)]
    for position, node in enumerate(nodes):
        number = numbers[position]
        folder = f"sys/devices/system/node/node{number}"
        kilobytes = node.get("memory_gib", 0) * 2**20
        tree[f"{folder}/cpulist"] = f"{node.get('cpus', '')}\n"
        tree[f"{folder}/meminfo"] = f"Node {number} MemTotal:       {kilobytes} kB\n"
        if "distances" not in node:
            sockets = [other.get("socket", index) for index, other in enumerate(nodes)]
            node = {**node, "distances": [_distance(position, other, sockets) for other in range(len(nodes))]}
        tree[f"{folder}/distance"] = " ".join(map(str, node["distances"])) + "\n"


def _distance(a: int, b: int, sockets: list[int]) -> int:
    if a == b:
        return 10
    return 12 if sockets[a] == sockets[b] else 21


def slot_link(machine: Machine, node: PciNode) -> tuple[int, int] | None:
    """Return what the slot of a function can do at most: generation and lanes; None for no link at all."""
    said = (above.attributes["link"] for above in node.chain if "link" in above.attributes)
    text = next(said, machine.facts.get("link", "none"))
    return None if text == "none" else _generation_and_lanes(text)


def device_link(machine: Machine, node: PciNode) -> tuple[tuple[int, int], tuple[int, int]] | None:
    """Return a function's link now and at most."""
    slot = slot_link(machine, node)
    if slot is None:
        return None
    most = tuple(node.model["pcie"]) if node.kind in ("gpu", "nic") and "pcie" in node.model else slot
    if "now" in node.attributes:
        return _generation_and_lanes(node.attributes["now"]), most
    if node.kind in ("port", "switch") and len(node.children) == 1:
        below = device_link(machine, node.children[0])
        return (below[0] if below else slot), slot
    return (min(most[0], slot[0]), min(most[1], slot[1])), most


def _generation_and_lanes(text: str) -> tuple[int, int]:
    generation, lanes = text.split("x")
    return int(generation), int(lanes)


def _add_function(tree: Tree, machine: Machine, node: PciNode) -> None:
    files: dict[str, str] = {"numa_node": f"{node.numa}\n"}
    near = [numa for index, numa in enumerate(machine.facts.get("numa", [])) if numa.get("node", index) == node.numa]
    files["local_cpulist"] = f"{near[0].get('cpus', '') if near else _all_cpus(machine)}\n"
    link = device_link(machine, node)
    if link is None:
        files |= {"current_link_speed": "Unknown\n", "current_link_width": "0\n"}
        files |= {"max_link_speed": "Unknown\n", "max_link_width": "255\n"}
    else:
        for name, (generation, lanes) in zip(("current", "max"), link, strict=True):
            files[f"{name}_link_speed"] = f"{_GIGATRANSFERS[generation]} GT/s PCIe\n"
            files[f"{name}_link_width"] = f"{lanes}\n"
    ids = _ids(node)
    files |= {"subsystem_vendor": f"{ids[2]:#06x}\n", "subsystem_device": f"{ids[3]:#06x}\n"}
    if node.kind == "gpu" and "bar1" in node.model:
        bar = node.model["bar1"]
        start = 0x2000_0000_0000
        files["resource"] = (
            f"0x{0xA0000000:016x} 0x{0xA0FFFFFF:016x} 0x40200\n0x{start:016x} 0x{start + bar - 1:016x} 0x14220c\n"
        )
    if "vfs" in node.attributes:
        files["sriov_numvfs"] = f"{node.attributes['vfs']}\n"
    folder = tree.pci(node.place, class_code=_class(node), vendor=ids[0], device=ids[1], **files)
    driver = {"gpu": "nvidia", "port": "pcieport", "switch": "pcieport"}.get(node.kind) or (
        node.model["driver"] if node.kind == "nic" else ""
    )
    if driver and not (driver == "nvidia" and "driver" not in machine.facts):
        tree.link(f"{folder}/driver", f"sys/bus/pci/drivers/{driver}")
    if "iommu" in node.attributes:
        tree.link(f"{folder}/iommu_group", f"sys/kernel/iommu_groups/{node.attributes['iommu']}")


def _all_cpus(machine: Machine) -> str:
    return format_ranges(cpu for node in machine.facts.get("numa", []) for cpu in parse_cpu_list(node.get("cpus", "")))


def _class(node: PciNode) -> int:
    if "class" in node.attributes:
        return int(node.attributes["class"], 16)
    if node.kind in ("port", "switch"):
        return 0x060400
    if node.kind == "nvswitch":
        return _NVSWITCH_CLASS
    return int(node.model.get("class", 0x030200))


def _ids(node: PciNode) -> tuple[int, int, int, int]:
    if node.kind in ("port", "switch"):
        ids = hardware()["bridge"][node.words[0]]
        return ids[0], ids[1], ids[2], ids[3]
    if node.kind == "nvswitch":
        device = hardware()["nvswitch"][node.words[0]]
        return _NVIDIA, device, _NVIDIA, device
    if node.kind == "other":
        return int(node.attributes.get("vendor", "0x8086"), 16), int(node.attributes.get("device", "1"), 16), 0, 0
    vendor = node.model.get("vendor", _NVIDIA)
    return vendor, node.model["device"], vendor, node.model.get("subsystem", 1)


def _add_driver(tree: Tree, machine: Machine) -> None:
    driver = machine.section("driver")
    if not driver:
        return
    tree["proc/driver/nvidia/version"] = f"NVRM version: NVIDIA UNIX Open Kernel Module  {driver['version']}\n"
    if driver.get("device_nodes", True):
        tree["dev/nvidiactl"] = ""
    for channel in driver.get("imex", []):
        tree[f"dev/nvidia-caps-imex-channels/channel{channel}"] = ""
