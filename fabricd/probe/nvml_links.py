"""What a GPU is joined to, as NVML tells it: NVLinks, C2C, the NVLink domain, and other GPUs."""

import ctypes
from collections.abc import Iterable
from typing import Any

from fabricd.probe.nvml_library import ARGUMENT_VERSION_MISMATCH, INVALID_ARGUMENT, NOT_SUPPORTED, Reader, Refusal

# Field numbers (nvmlFieldValue_t.fieldId); with a link as scope from 146 on. Source: NVIDIA's nvml.h.
_LINK_COUNT = 91
_REMOTE_LINK, _SPEED, _STATE, _VERSION = 146, 164, 165, 166
_SPEED_BY_LINK = (*range(84, 90), *range(132, 138))  # drivers before 520
_C2C_COUNT, _C2C_STATE, _C2C_BANDWIDTH = 170, 171, 172
_DATA_LINK_ERRORS = {161: "replay", 162: "recovery", 163: "crc"}
_PACKET_ERRORS = {
    206: "malformed_packets", 207: "buffer_overruns", 208: "receive_errors", 209: "remote_errors",
    210: "general_errors", 211: "link_integrity", 212: "transmit_discards",
}  # fmt: skip
_COUNTERS = ("replay", "recovery", "crc_flit", "crc_data")  # nvmlNvLinkErrorCounter_t

# NVML's version is an enumeration, not the generation: an A100 says 5, which is NVLink 3.1.
# Source: nvmlNvlinkVersion_t in NVIDIA's NVML API reference; open-mpi/hwloc#658.
_GENERATIONS = {1: 1, 2: 2, 3: 2, 4: 3, 5: 3, 6: 4, 7: 5, 8: 6}
# Nominal bytes/s of one link in each direction where the driver does not report it: eight pairs of 20 Gb/s, then
# 25 Gb/s, then four of 50 Gb/s, two of 100 Gb/s, two of 200 Gb/s. Source: NVIDIA's architecture white papers for
# P100, V100, A100, H100, and the GB200 NVL72 data sheet (1.8 TB/s both ways over 18 links); for the sixth the
# Vera Rubin NVL72 data sheet (3.6 TB/s over 36 links).
_NOMINAL_SPEED = {1: 20 * 10**9, 2: 25 * 10**9, 3: 25 * 10**9, 4: 25 * 10**9, 5: 50 * 10**9, 6: 50 * 10**9}
# Whether a link in a state carries data: inactive, active, asleep until it has to, active with traffic disabled.
# Source: NVML_NVLINK_STATE_* in NVIDIA's nvml.h.
_CARRIES = {0: False, 1: True, 2: True, 3: False}
_REMOTE_TYPES = {0: "gpu", 1: "cpu", 2: "switch"}
_MAX_LINKS = 64

_FABRIC_STATES = {0: "not-supported", 1: "not-started", 2: "in-progress", 3: "completed"}
_FABRIC_HEALTH = {1: "healthy", 2: "unhealthy", 3: "limited-capacity"}

_P2P_FIELDS = ("read", "write", "nvlink", "atomics")  # in order of nvmlGpuP2PCapsIndex_t
_P2P_STATUS = {
    0: "ok", 1: "chipset-not-supported", 2: "gpu-not-supported", 3: "topology-not-supported",
    4: "disabled-by-regkey", 5: "not-supported",
}  # fmt: skip
_TOPOLOGY = {0: "internal", 10: "single", 20: "multiple", 30: "hostbridge", 40: "node", 50: "system"}


def pci_address(info: Any) -> str:
    """Return an nvmlPciInfo_t's address in the kernel's form, ``"0000:17:00.0"``; "" for the mark of a hidden device.

    NVML writes eight digits of domain, the kernel at least four. A virtual machine that does not see a switch gets an
    address of all ones. Only the text form has the function, which is not 0 for a virtual function.
    """
    if info.bus > 0xFF or info.device > 0x1F or info.domain == 0xFFFFFFFF:
        return ""
    text = info.busId.decode("ascii", "replace") if isinstance(info.busId, bytes) else info.busId
    function = text.rpartition(".")[2]
    return f"{info.domain:04x}:{info.bus:02x}:{info.device:02x}.{function if function in tuple('01234567') else 0}"


def read_links(reader: Reader) -> dict[str, Any]:
    """Return ``links``: what fields tell in one call for all links, and a few calls for each active one."""
    states = _states(reader)
    values = _table(reader, (_VERSION, _SPEED, _REMOTE_LINK), states)
    errors = _errors(reader, states)
    links = []
    for index, state in states.items():
        version = values.get((_VERSION, index))
        if version is None:
            version = reader.ask("links.version", "nvmlDeviceGetNvLinkVersion", index, link=index)
        generation = _GENERATIONS.get(version or 0)
        link: dict[str, Any] = {"index": index, "active": _CARRIES.get(state), "version": generation}
        link["errors"] = errors[index]
        if state:  # of a link that is down, drivers report no far end and no speed, or zero
            link.update(_speed(reader, index, generation, values.get((_SPEED, index))))
            link.update(_remote(reader, index))
            link["remote_link"] = values.get((_REMOTE_LINK, index))
        links.append(link)
    return {"links": links}


def _table(reader: Reader, fields: Iterable[int], links: Iterable[int]) -> dict[tuple[int, int], int]:
    """Return values by field and link; those that the driver does not give are left out."""
    wanted = [(field, link) for field in fields for link in links]
    return {key: value for key, value in zip(wanted, reader.fields(wanted), strict=True) if value is not None}


def _states(reader: Reader) -> dict[int, int]:
    """Return the state of each link that this GPU has.

    NVML's greatest number of links is that of the largest GPU; smaller ones refuse higher numbers as a bad argument.
    """
    (count,) = reader.fields([(_LINK_COUNT, 0)])
    if count is not None and count > _MAX_LINKS:
        reader.note("links", f"not a credible number of links: {count}")
        count = None
    numbers = range(_MAX_LINKS if count is None else count)
    known = {} if count is None else _table(reader, (_STATE,), numbers)
    found = {}
    for link in numbers:
        state = known.get((_STATE, link))
        if state is None:
            state = reader.library.call("nvmlDeviceGetNvLinkState", reader.handle, link)
        if not isinstance(state, Refusal):
            found[link] = state
        elif state.code in (INVALID_ARGUMENT, None):
            break
        elif state.code != NOT_SUPPORTED:
            reader.note("links", state.words, link)
    return found


def _speed(reader: Reader, index: int, generation: int | None, reported: int | None) -> dict[str, Any]:
    """Return a link's speed, and what it rests on. NVML reports MB/s of one direction."""
    if not reported and index < len(_SPEED_BY_LINK):
        (reported,) = reader.fields([(_SPEED_BY_LINK[index], 0)])
    if reported:
        return {"speed_bytes_per_second": reported * 10**6, "speed_evidence": "reported"}
    nominal = _NOMINAL_SPEED.get(generation or 0)
    return {"speed_bytes_per_second": nominal, "speed_evidence": "assumed"} if nominal else {}


def _remote(reader: Reader, index: int) -> dict[str, Any]:
    kind = reader.ask("links.remote_type", "nvmlDeviceGetNvLinkRemoteDeviceType", index, link=index)
    info = reader.ask("links.remote_pci_address", "nvmlDeviceGetNvLinkRemotePciInfo", index, link=index)
    peer_to_peer = reader.ask("links.peer_to_peer", "nvmlDeviceGetNvLinkCapability", index, 0, link=index)
    return {
        "remote_type": _REMOTE_TYPES.get(kind, ""),
        "remote_pci_address": "" if info is None else pci_address(info),
        "peer_to_peer": None if peer_to_peer is None else bool(peer_to_peer),
    }


def _errors(reader: Reader, links: Iterable[int]) -> dict[int, list[tuple[str, int]]]:
    """Return error counters by link, under the names of the links' generation: first that answers, newest first."""
    for names in (_DATA_LINK_ERRORS, _PACKET_ERRORS):
        values = _table(reader, names, links)
        if values:
            return {
                link: [(name, values[number, link]) for number, name in names.items() if (number, link) in values]
                for link in links
            }
    return {link: _counters(reader, link) for link in links}


def _counters(reader: Reader, link: int) -> list[tuple[str, int]]:
    """Return error counters as drivers before 520 tell them."""
    values = [
        (name, reader.ask(f"links.errors.{name}", "nvmlDeviceGetNvLinkErrorCounter", link, number, link=link))
        for number, name in enumerate(_COUNTERS)
    ]
    return [(name, value) for name, value in values if value is not None]


def read_c2c(reader: Reader) -> dict[str, Any]:
    """Return number and bandwidth of the active chip-to-chip links. NVML reports MB/s of each, in one direction."""
    (count,) = reader.fields([(_C2C_COUNT, 0)])
    if count is None or count > _MAX_LINKS:
        why = "not supported by this GPU" if count is None else f"not a credible number of links: {count}"
        reader.note("c2c_links", why)
        return {}
    values = reader.fields([(field, link) for link in range(count) for field in (_C2C_STATE, _C2C_BANDWIDTH)])
    active = [speed for state, speed in zip(values[::2], values[1::2], strict=True) if state]
    known = [speed for speed in active if speed]
    return {
        "c2c_links": len(active),
        "c2c_bytes_per_second": sum(known) * 10**6 if known and len(known) == len(active) else None,
    }


def read_fabric(reader: Reader) -> dict[str, Any]:
    """Return ``fabric``: the newest form of the answer that driver and binding have in common."""
    nvml = reader.library.nvml
    for version in (3, 2):
        kind = getattr(nvml, f"c_nvmlGpuFabricInfo_v{version}_t", None)
        if kind is None:
            continue
        info = kind()
        answer = reader.library.call("nvmlDeviceGetGpuFabricInfoV", reader.handle, ctypes.byref(info))
        if not isinstance(answer, Refusal):
            return {"fabric": _fabric(nvml, info)}
        if answer.code != ARGUMENT_VERSION_MISMATCH:
            break
    info = nvml.c_nvmlGpuFabricInfo_t()
    answered = reader.ask("fabric", "nvmlDeviceGetGpuFabricInfo", ctypes.byref(info)) is not None
    return {"fabric": _fabric(nvml, info)} if answered else {}


def _fabric(nvml: Any, info: Any) -> dict[str, Any]:
    digits = bytes(info.clusterUuid).hex()
    domain = "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:])) if int(digits, 16) else ""
    return {
        "cluster_uuid": domain,
        "clique_id": info.cliqueId if domain else None,
        "state": _FABRIC_STATES.get(info.state, f"unknown-{info.state}"),
        "status": "success" if info.status == 0 else str(nvml.NVMLError(info.status)),
        "health_mask": getattr(info, "healthMask", None),
        "health": _FABRIC_HEALTH.get(getattr(info, "healthSummary", 0), ""),
    }


def read_peers(reader: Reader, others: dict[int, Any]) -> dict[str, Any]:
    """Return ``peers``.

    Args:
        reader: of this GPU.
        others: handles of the other GPUs, by index.
    """
    peers = []
    for index, handle in sorted(others.items()):
        peer: dict[str, Any] = {"gpu": index}
        for number, name in enumerate(_P2P_FIELDS):
            status = reader.ask(f"peers.{name}", "nvmlDeviceGetP2PStatus", handle, number)
            peer[name] = _P2P_STATUS.get(status, "")
        level = reader.ask("peers.topology", "nvmlDeviceGetTopologyCommonAncestor", handle)
        peer["topology"] = _TOPOLOGY.get(level, "")
        peers.append(peer)
    return {"peers": peers}
