"""Renders a machine's NVML: the scenario file of the simulated library."""

import itertools
import uuid
from pathlib import Path
from typing import Any

from tests.support.machine import Machine, PciNode
from tests.support.machine_files import device_link

_NAMESPACE = uuid.UUID("7d7e3c1a-5f0c-4d7b-9a51-3f1f6b7c9e21")
# nvmlGpuTopologyLevel_t and nvmlGpuP2PStatus_t. Source: NVIDIA's NVML API reference.
_SINGLE, _MULTIPLE, _HOST_BRIDGE, _NODE, _SYSTEM = 10, 20, 30, 40, 50
P2P = {"ok": 0, "chipset-not-supported": 1, "gpu-not-supported": 2, "topology-not-supported": 3, "not-supported": 5}
_GPU, _CPU, _SWITCH = 0, 1, 2

Scenario = dict[str, str]


def scenario(machine: Machine) -> Scenario:
    """Return the library's answers, key -> value."""
    driver = machine.section("driver")
    gpus = _visible(machine)
    answers: dict[str, Any] = {
        "driver": driver["version"],
        "nvml": f"12.{driver['version']}",
        "cuda": _cuda_number(driver["cuda"]),
        "count": len(gpus),
    }
    for key in ("newest_field", "fabric_version"):
        if key in driver:
            answers[key] = driver[key]
    for index, gpu in enumerate(gpus):
        facts = _gpu(machine, gpu) | _mode_facts(machine, gpu, index) | _domain(machine)
        answers |= {f"gpu{index}.{key}": value for key, value in facts.items()}
    answers |= _links(machine, gpus)
    answers |= _peers(machine, gpus, answers)
    answers |= machine.section("nvml")
    return {key: str(value) for key, value in answers.items() if value != ""}


def _cuda_number(version: str) -> int:
    major, _, minor = version.partition(".")
    return 1000 * int(major) + 10 * int(minor or 0)


def write_scenario(answers: Scenario, path: Path) -> Path:
    """Write a scenario file and return its path."""
    path.write_text("".join(f"{key} = {value}\n" for key, value in answers.items()))
    return path


def _visible(machine: Machine) -> list[PciNode]:
    gpus = machine.of_kind("gpu")
    shown = machine.section("view").get("gpus")
    return gpus if shown is None else [gpus[index] for index in shown]


def _nvml_address(node: PciNode) -> str:
    return node.address.rpartition(".")[0]


def _gpu(machine: Machine, gpu: PciNode) -> dict[str, Any]:
    model, link = gpu.model, device_link(machine, gpu)
    facts = {
        "uuid": f"GPU-{uuid.uuid5(_NAMESPACE, f'{machine.name}/{gpu.address}')}",
        "pci": _nvml_address(gpu),
        "name": model["name"],
        "compute_capability": model["compute"],
        "memory_bytes": model.get("memory", "NOT_SUPPORTED"),
        "bar1_bytes": model.get("bar1", "NOT_SUPPORTED"),
        "persistence": 1,
    }
    if link is not None:
        (generation, lanes), (_, max_lanes) = link
        facts |= {"pcie.generation": generation, "pcie.width": lanes, "pcie.max_width": max_lanes}
        facts["pcie.max_generation"] = gpu.model["pcie"][0]
    elif "pcie" in model:  # a virtual machine: the GPU knows its link, the kernel does not
        generation, lanes = model["pcie"]
        facts |= {"pcie.generation": generation, "pcie.width": lanes}
        facts |= {"pcie.max_generation": generation, "pcie.max_width": lanes}
    return facts


def _mode_facts(machine: Machine, gpu: PciNode, index: int) -> dict[str, Any]:
    facts: dict[str, Any] = {}
    numa = machine.facts.get("numa", [])
    near = next((node for at, node in enumerate(numa) if node.get("node", at) == gpu.numa), None)
    cpus = near.get("cpus", "") if near else ",".join(node["cpus"] for node in numa if node.get("cpus"))
    facts["cpus"] = machine.section("view").get("cpus", cpus) or "NOT_SUPPORTED"
    # Where firmware names no NUMA node, all are near.
    nodes = str(gpu.numa) if near else ",".join(str(node.get("node", at)) for at, node in enumerate(numa))
    facts["numa"] = gpu.attributes.get("near", nodes) or "NOT_SUPPORTED"
    if "memory" in gpu.attributes:
        facts["memory_numa_node"] = gpu.attributes["memory"]
    if gpu.model.get("ecc"):
        facts |= {"ecc.mode": 1, "ecc.uncorrected": 0, "ecc.corrected": 0}
    if "mig" in gpu.model:
        instances = machine.section("mig").get(str(index), [])
        facts |= {"mig.mode": int(bool(instances)), "mig.max": gpu.model["mig"]}
        for number, instance in enumerate(instances):
            facts |= _mig(machine, gpu, number, instance)
    c2c = machine.section("c2c")
    if c2c:
        facts["c2c.links"] = c2c["links"]
        for link in range(c2c["links"]):
            facts |= {f"c2c.link{link}.state": 1, f"c2c.link{link}.max_mbps": c2c["mbps"]}
    return facts


def _mig(machine: Machine, gpu: PciNode, number: int, profile: str) -> dict[str, Any]:
    gibibytes = int(profile.partition(".")[2].removesuffix("gb"))
    return {
        f"mig{number}.uuid": f"MIG-{uuid.uuid5(_NAMESPACE, f'{machine.name}/{gpu.address}/{number}')}",
        f"mig{number}.name": f"{gpu.model['name']} MIG {profile}",
        f"mig{number}.gpu_instance": number + 1,
        f"mig{number}.compute_instance": 0,
        f"mig{number}.memory_mib": gibibytes * 1024 - 256,
    }


def _domain(machine: Machine) -> dict[str, Any]:
    return {f"fabric.{key}": value for key, value in machine.section("fabric").items()}


def _links(machine: Machine, gpus: list[PciNode]) -> dict[str, Any]:
    """Return every GPU's NVLinks: wired as [nvlink] says, all others inactive."""
    layout = machine.section("nvlink")
    ends = {index: _wired(layout, index, machine) for index in range(len(gpus))}
    taken = dict.fromkeys(ends, 0)
    for pair, count in layout.get("pairs", {}).items():
        a, b = map(int, pair.split("-"))
        for _ in range(count):
            first, second = taken[a], taken[b]
            ends[a][first] = (_GPU, _nvml_address(gpus[b]), second)
            ends[b][second] = (_GPU, _nvml_address(gpus[a]), first)
            taken[a], taken[b] = first + 1, second + 1
    answers: dict[str, Any] = {}
    for index, gpu in enumerate(gpus):
        if "nvlink" not in gpu.model:
            continue
        version, count, mbps = gpu.model["nvlink"]
        answers[f"gpu{index}.links"] = count
        for link in range(count):
            prefix = f"gpu{index}.link{link}"
            end = ends[index].get(link)
            active = end is not None and f"{index}.{link}" not in layout.get("down", [])
            answers |= {f"{prefix}.state": int(active), f"{prefix}.version": version}
            answers |= {f"{prefix}.{name}": 0 for name in _error_names(version)}
            if active and end is not None:
                answers |= {f"{prefix}.speed_mbps": mbps, f"{prefix}.remote_type": end[0], f"{prefix}.capability0": 1}
                answers |= {f"{prefix}.remote_pci": end[1]} if end[1] else {}
                answers |= {f"{prefix}.remote_link": end[2]} if end[2] is not None else {}
    return answers


def _error_names(version: int) -> tuple[str, ...]:
    """Counters by generation: data-link errors up to NVLink 4, packet errors from 5 on."""
    if version >= 7:
        return ("receive_errors", "integrity_errors", "discards")
    return ("replay", "recovery", "crc") if version >= 6 else ("replay", "recovery", "crc_flit", "crc_data")


def _wired(layout: dict[str, Any], index: int, machine: Machine) -> dict[int, tuple[int, str, int | None]]:
    """Return the far ends of a GPU's links to switches or to its CPU."""
    gpu = _visible(machine)[index]
    count = gpu.model["nvlink"][1] if "nvlink" in gpu.model else 0
    if layout.get("switches"):
        switches = [_nvml_address(node) for node in machine.of_kind("nvswitch")]
        # A virtual machine without the switches, and switches that are no PCI functions, show an address of all ones.
        return {
            link: (_SWITCH, switches[link % len(switches)] if switches else "ffffffff:ff:1f", link + 18 * index)
            for link in range(count)
        }
    if "cpu_links" in layout:
        return {count - 1 - link: (_CPU, layout["cpu_address"], None) for link in range(layout["cpu_links"])}
    return {}


def _peers(machine: Machine, gpus: list[PciNode], answers: dict[str, Any]) -> dict[str, Any]:
    status = machine.section("p2p")
    found: dict[str, Any] = {}
    for a, b in itertools.permutations(range(len(gpus)), 2):
        linked = _linked(answers, a, gpus[b])
        over_pcie = P2P[status.get("pcie", "ok")]
        geforce = gpus[a].model.get("geforce", False)
        found |= {f"gpu{a}.peer{b}.{way}": 0 if linked else over_pcie for way in ("read", "write")}
        found[f"gpu{a}.peer{b}.nvlink"] = 0 if linked else P2P["not-supported"]
        found[f"gpu{a}.peer{b}.atomics"] = P2P["not-supported"] if geforce or not linked else 0
        found[f"gpu{a}.peer{b}.topology"] = topology_level(gpus[a], gpus[b])
    return found


def _linked(answers: dict[str, Any], a: int, other: PciNode) -> bool:
    prefixes = (f"gpu{a}.link{link}" for link in range(answers.get(f"gpu{a}.links", 0)))
    ends = [
        (answers.get(f"{p}.remote_type"), answers.get(f"{p}.remote_pci")) for p in prefixes if answers[f"{p}.state"]
    ]
    return any(kind == _SWITCH or address == _nvml_address(other) for kind, address in ends)


def topology_level(a: PciNode, b: PciNode) -> int:
    """Return the driver's word for the nearest thing that two functions share."""
    shared = next((bridge for bridge in a.bridges if bridge in b.bridges), None)
    if shared is not None:
        switches = {
            node for end in (a, b) for node in end.bridges[: end.bridges.index(shared) + 1] if node.kind == "switch"
        }
        return _SINGLE if len(switches) <= 1 else _MULTIPLE
    if a.root is b.root:
        return _HOST_BRIDGE
    return _NODE if a.numa == b.numa != -1 else _SYSTEM
