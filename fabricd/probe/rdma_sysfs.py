"""Probe ``rdma``: RDMA devices with ports, GIDs and counters, from /sys/class/infiniband and /sys/class/cxi.

Needs no rights and no library; what only verbs tell is added by the probe ``verbs``. Only the order in which the
devices were registered is no file's: RDMA netlink tells it.
Source: kernel Documentation/ABI/stable/sysfs-class-infiniband.
"""

import re
from dataclasses import dataclass, replace
from pathlib import Path

from fabricd.errors import ParseError
from fabricd.gidtable import read_gids
from fabricd.model.device import Gid, Hca, HcaPort
from fabricd.netlink import rdma, unsigned
from fabricd.probe.answers import ask
from fabricd.probe.base import ProbeAbsent, ProbeContext, ProbeNotRun, ProbeResult, ProbeUnsupported
from fabricd.probe.files import FieldReader
from fabricd.probe.pci import pci_function
from fabricd.smallfile import printable
from fabricd.units import parse_port_rate

#: Where a replay keeps the numbers that the kernel gave the devices, in the folder of recorded answers.
RECORDED = "rdma.json"
# Source: kernel include/uapi/rdma/rdma_netlink.h
_RDMA_NLDEV_CMD_GET, _ATTR_DEV_INDEX, _ATTR_DEV_NAME = 1, 1, 2
_MAX_DEVICES = 4096
#: Each counter may be a query to the card's firmware: with virtual functions by the hundred that would take seconds.
_MAX_COUNTED_DEVICES = 64
_MELLANOX, _AMAZON, _MICROSOFT = 0x15B3, 0x1D0F, 0x1414
# Device ids that a virtual function shows in a guest, where nothing else tells that it is one.
# Source: kernel drivers/net/ethernet/mellanox/mlx5/core/main.c, mlx4/main.c and microsoft/mana/gdma.h.
_VIRTUAL_FUNCTIONS = {
    _MELLANOX: {0x1002, 0x1004, 0x1012, 0x1014, 0x1016, 0x1018, 0x101A, 0x101C, 0x101E, 0xA2D3},
    _MICROSOFT: {0x00BA},
}
# Counted in units of four octets, whatever the link. Source: InfiniBand Architecture Specification, PortCounters.
_FOUR_OCTETS = {"port_xmit_data", "port_rcv_data", "port_xmit_data_64", "port_rcv_data_64"}
_SLINGSHOT_COUNTERS = ("hni_sts_rx_ok_octets", "hni_sts_tx_ok_octets")  # all else counts what only its maker explains
_NO_COUNTERS = {"lifespan"}  # how long hw_counters are cached, milliseconds
_PEER_MEMORY = (  # the modules that let a card register GPU memory; names by version of driver and OFED
    "kernel/mm/memory_peers/nv_mem/version", "kernel/mm/memory_peers/nv_mem_nc/version",
    "kernel/mm/memory_peers/nvidia-peermem/version", "module/nvidia_peermem/version", "module/nv_peer_mem/version",
)  # fmt: skip
_WIDTH = re.compile(r"\((\d{1,2})X\b")
_GUID = re.compile(r"^[0-9a-f]{4}(:[0-9a-f]{4}){3}$")
_DRIVER_KINDS = {"efa": "efa", "hfi1": "omni-path", "mana": "mana", "mana_ib": "mana"}
_VENDOR_KINDS = {_AMAZON: "efa", _MICROSOFT: "mana"}


class RdmaProbe:
    """RDMA devices as sysfs shows them."""

    name = "rdma"
    deadline_seconds = 10.0

    def run(self, ctx: ProbeContext) -> ProbeResult:
        """Read the devices in order of name.

        Raises:
            ProbeAbsent: there are none.
        """
        read = FieldReader()
        verbs, slingshot = ctx.roots.sys / "class/infiniband", ctx.roots.sys / "class/cxi"
        names = read.entries(verbs)
        peer_memory = any(read.exists(ctx.roots.sys / name) for name in _PEER_MEMORY)
        if len(names) > _MAX_COUNTED_DEVICES:
            read.note(verbs, f"{len(names)} devices: counters are read of the first {_MAX_COUNTED_DEVICES} only")
        hcas = [
            _read_hca(verbs / name, peer_memory, count < _MAX_COUNTED_DEVICES, read) for count, name in enumerate(names)
        ]
        numbers = _numbers(ctx, read) if names else {}
        hcas = [replace(hca, index=numbers.get(hca.name)) for hca in hcas]
        hcas += [_read_slingshot(slingshot / name, read) for name in read.entries(slingshot)]
        if not hcas:
            raise ProbeAbsent(f"no RDMA device: {verbs} is missing or empty")
        return ProbeResult(facts={"hcas": tuple(hcas)}, notes=tuple(read.notes))


@dataclass(frozen=True, slots=True, kw_only=True)
class RdmaNumber:
    """A device and the number that the kernel gave it."""

    name: str
    index: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RdmaAnswer:
    """What RDMA netlink says."""

    devices: tuple[RdmaNumber, ...] = ()


def _numbers(ctx: ProbeContext, read: FieldReader) -> dict[str, int]:
    try:
        answer = ask(ctx, RECORDED, RdmaAnswer, _ask_kernel)
    except ProbeNotRun:
        return {}
    except ProbeUnsupported as stop:
        read.note("rdma netlink", f"{stop.reason}; the order of devices is not known")
        return {}
    return {device.name: device.index for device in answer.devices}


def _ask_kernel() -> RdmaAnswer:
    try:
        found = rdma(_RDMA_NLDEV_CMD_GET, (_ATTR_DEV_INDEX, _ATTR_DEV_NAME), limit=_MAX_DEVICES)
    except (OSError, ValueError) as error:
        raise ProbeUnsupported(str(error)) from error
    told = (
        (item.attributes.get(_ATTR_DEV_NAME), unsigned(item.attributes.get(_ATTR_DEV_INDEX))) for item in found.items
    )
    numbers = ((printable(name.rstrip(b"\0")), index) for name, index in told if name and index is not None)
    return RdmaAnswer(devices=tuple(RdmaNumber(name=name, index=index) for name, index in numbers))


@dataclass(frozen=True, slots=True)
class _Card:
    """What carries an RDMA device. All empty for one that no hardware backs."""

    driver: str = ""
    pci_address: str = ""
    numa_node: int | None = None
    vendor_id: int | None = None
    device_id: int | None = None
    virtual_function: bool = False


def _read_card(path: Path, read: FieldReader) -> _Card | None:
    device = read.real_path(path / "device")
    if device is None:
        return None
    driver = read.link_target(device / "driver")
    function = pci_function(device, read)
    if function is None:
        return _Card(driver=driver)
    vendor = read.integer(function / "vendor", base=0, high=0xFFFF)
    product = read.integer(function / "device", base=0, high=0xFFFF)
    return _Card(
        driver=driver,
        pci_address=function.name,
        numa_node=read.integer(function / "numa_node", high=65535, missing=-1),
        vendor_id=vendor,
        device_id=product,
        virtual_function=read.exists(function / "physfn") or product in _VIRTUAL_FUNCTIONS.get(vendor or 0, ()),
    )


def _read_hca(path: Path, peer_memory: bool, counted: bool, read: FieldReader) -> Hca:
    card = _read_card(path, read)
    numbers = sorted(int(name) for name in read.entries(path / "ports") if name.isdecimal() and len(name) < 4)
    ports = tuple(_read_port(path / "ports" / str(number), number, counted, read) for number in numbers)
    guid = read.text(path / "node_guid") or ""
    kind = _kind(path, card, {port.link_layer for port in ports}, read)
    card = card or _Card()
    return Hca(
        name=printable(path.name),
        kind=kind,
        node_guid=guid if _GUID.match(guid) else "",
        firmware=read.text(path / "fw_ver") or "",
        board_id=read.text(path / "board_id") or "",
        vendor_id=card.vendor_id,
        device_id=card.device_id,
        pci_address=card.pci_address,
        numa_node=card.numa_node,
        virtual_function=card.virtual_function,
        ports=ports,
        peer_memory=peer_memory,
    )


def _read_slingshot(path: Path, read: FieldReader) -> Hca:
    """Slingshot's card is no verbs device; its link is the network interface on the same PCI function.

    What it sends past the kernel is counted by its own telemetry alone. Source: HPE's cxi driver, ss1/cass_sysfs.c and
    cass_telem.c, and libcxi.
    """
    device, quiet = path / "device", FieldReader()  # virtual functions have no telemetry
    address = read.integer(device / "properties/nid", base=0, high=2**32 - 1)
    counted = {name: quiet.text(device / "telemetry" / name) or "" for name in _SLINGSHOT_COUNTERS}
    values = {name: text.partition("@")[0] for name, text in counted.items()}  # "12345@1700000000.123456789"
    card = _read_card(path, read) or _Card()
    return Hca(
        name=printable(path.name),
        kind="slingshot",
        vendor_id=card.vendor_id,
        device_id=card.device_id,
        pci_address=card.pci_address,
        numa_node=card.numa_node,
        virtual_function=card.virtual_function,
        board_id=read.text(device / "fru/part_number") or "",
        fabric_address="" if address is None else f"{address:#x}",
        counters=tuple((name, int(value)) for name, value in values.items() if value.isdecimal() and len(value) < 20),
    )


def _kind(path: Path, card: _Card | None, link_layers: set[str], read: FieldReader) -> str:
    """Return the fabric that a device belongs to; "other" for one that nothing here knows."""
    if "rnic" in (read.text(path / "node_type") or "").lower():
        return "iwarp"
    if card is None:
        real = read.real_path(path)
        if real is not None and "virtual" in real.parts:
            return "soft-roce"
    else:
        named = _DRIVER_KINDS.get(card.driver) or _VENDOR_KINDS.get(card.vendor_id or 0)
        if named:
            return named
    if "infiniband" in link_layers:
        return "infiniband"
    return "roce" if "ethernet" in link_layers else "other"


def _read_port(path: Path, number: int, counted: bool, read: FieldReader) -> HcaPort:
    rate = read.text(path / "rate") or ""
    width = _WIDTH.search(rate)
    return HcaPort(
        port=number,
        state=_after_number(read.text(path / "state")),
        physical_state=_after_number(read.text(path / "phys_state")),
        link_layer=(read.text(path / "link_layer") or "").lower(),
        rate_bytes_per_second=_rate(path / "rate", rate, read),
        width=int(width[1]) if width else None,
        lid=read.integer(path / "lid", base=16, high=0xFFFFFFFF),
        sm_lid=read.integer(path / "sm_lid", base=16, high=0xFFFFFFFF),
        pkeys=_pkeys(path / "pkeys", read),
        gids=tuple(
            Gid(index=entry.index, gid=entry.gid, type=entry.type, interface=entry.interface)
            for entry in read_gids(path)
        ),
        counters=_counters((path / "counters", path / "counters_ext"), read) if counted else (),
        hw_counters=_counters((path / "hw_counters",), read) if counted else (),
    )


def _after_number(text: str | None) -> str:
    """Return "active" of "4: ACTIVE"."""
    return (text or "").rpartition(":")[2].strip().lower()


def _rate(path: Path, text: str, read: FieldReader) -> int | None:
    if not text:
        return None
    try:
        rate = parse_port_rate(text)
    except ParseError as error:
        read.note(path, error.message)
        return None
    if rate > 2**50:
        read.note(path, f"not a credible rate: {text[:40]!r}")
        return None
    return rate or None


def _pkeys(path: Path, read: FieldReader) -> tuple[int, ...]:
    """Return the partition keys in order of the table, without empty entries."""
    names = sorted((name for name in read.entries(path) if name.isdecimal()), key=int)
    keys = (read.integer(path / name, base=16, high=0xFFFF) for name in names)
    return tuple(key for key in keys if key)


def _counters(folders: tuple[Path, ...], read: FieldReader) -> tuple[tuple[str, int], ...]:
    quiet = FieldReader()  # cards say "N/A (no PMA)" or EINVAL for what they do not count
    found: dict[str, int] = {}
    for folder in folders:
        for name in read.entries(folder):
            value = quiet.integer(folder / name, high=2**60) if name not in _NO_COUNTERS else None
            if value is not None:
                found[printable(name)] = value * 4 if name in _FOUR_OCTETS else value
    return tuple(found.items())
