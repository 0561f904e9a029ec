"""Probe ``host``: who this node is, from machine-id, DMI, /proc and os-release."""

import hashlib
import platform
import re
import shlex
import socket
from dataclasses import dataclass
from pathlib import Path

from fabricd.model.identity import NodeIdentity, unique_id
from fabricd.probe.answers import ask
from fabricd.probe.base import ProbeContext, ProbeResult
from fabricd.probe.cpuinfo import read_cpu
from fabricd.probe.files import FieldReader
from fabricd.probe.virtualization import container_engine, hypervisor
from fabricd.smallfile import printable, reading_through

#: Where a replay keeps what only a process on the machine can tell, in the folder of recorded answers.
RECORDED = "host.json"
_MEM_TOTAL = re.compile(r"\bMemTotal:\s+(\d{1,15}) kB")
_MEM_TOTAL_BYTES = 80  # it stands first
_GUID_LENGTH = 16
_MAC_LENGTH = 12
_RANDOM_ADDRESS = 1  # NET_ADDR_RANDOM


@dataclass(frozen=True, slots=True, kw_only=True)
class HostAnswer:
    """What only a process on the machine can tell."""

    hostname: str = ""  #: for where no file has it
    architecture: str = ""  #: as uname -m
    container: str = ""  #: ``NodeIdentity.container``
    notes: tuple[str, ...] = ()


class HostProbe:
    """Identity, kernel, processors, memory, and whether this is a virtual machine or a container."""

    name = "host"
    deadline_seconds = 5.0

    def run(self, ctx: ProbeContext) -> ProbeResult:
        """Read the identity. Every field is optional; the node always has an id."""
        read = FieldReader()
        roots, dmi = ctx.roots, ctx.roots.sys / "class/dmi/id"
        told = ask(ctx, RECORDED, HostAnswer, lambda: _told(ctx), from_files=True)
        host = _hostname(ctx, read) or told.hostname
        node_id, source = node_identity(ctx, read, host)
        identity = NodeIdentity(
            node_id=node_id,
            name=_display_name(host, node_id),
            hostname=host,
            id_source=source,
            boot_id=read.text(roots.proc / "sys/kernel/random/boot_id") or "",
            kernel=_kernel(ctx, read),
            os=_os_name(ctx, read),
            virtualization=hypervisor(ctx, read),
            container=told.container,
            product=_first_text(read, dmi / "product_name", roots.sys / "firmware/devicetree/base/model"),
            vendor=_first_text(read, dmi / "sys_vendor"),
            memory_bytes=memory_total(roots.proc / "meminfo", read),
            cpu=read_cpu(ctx, read, architecture=told.architecture),
        )
        return ProbeResult(facts={"node": identity}, notes=(*told.notes, *read.notes))


def _told(ctx: ProbeContext) -> HostAnswer:
    read = FieldReader()
    container = container_engine(ctx, read)
    here = {"hostname": printable(socket.gethostname()), "architecture": platform.machine()} if ctx.this_host else {}
    return HostAnswer(**here, container=container, notes=tuple(read.notes))


def _hostname(ctx: ProbeContext, read: FieldReader) -> str:
    """Return the host name of the UTS namespace, or of /etc/hostname; "" when no file tells."""
    return _first_text(read, ctx.roots.proc / "sys/kernel/hostname", ctx.roots.etc / "hostname")


def node_identity(ctx: ProbeContext, read: FieldReader, host: str) -> tuple[str, str]:
    """Return the node's id and what it rests on (``NodeIdentity.id_source``).

    Golden images clone machine-ids, so it does not stand alone where anything else is known: the DMI UUID, which
    only root may read, else the addresses of the network hardware. A machine's own secrets must not leak through
    its id (machine-id(5) asks for a keyed hash), so it is hashed.
    """
    machine_id = unique_id(read.text(ctx.roots.etc / "machine-id") or "")
    # Denied to all but root; that is no fault to note, the source of the id tells it.
    dmi_uuid = unique_id(FieldReader().text(ctx.roots.sys / "class/dmi/id/product_uuid") or "")
    if machine_id and dmi_uuid:
        return _hashed("machine-id+dmi", machine_id, dmi_uuid), "machine-id+dmi"
    if dmi_uuid:
        return _hashed("dmi", dmi_uuid), "dmi"
    addresses = _hardware_addresses(ctx, read)
    if addresses:
        return _hashed("addresses", machine_id, *addresses), "addresses"
    if machine_id:
        return _hashed("machine-id", machine_id), "machine-id"
    return _hashed("hostname", host), "hostname"


def _display_name(host: str, node_id: str) -> str:
    """Return what a node is called: its host name, without what parts a device's name from it, or lists and lines.

    The kernel takes any bytes as a host name; other daemons take no node whose name cannot be printed.
    """
    return re.sub(r"[^\w.-]", "_", host) or node_id[:12]


def fallback_identity(ctx: ProbeContext) -> NodeIdentity:
    """Return an identity from the host name alone, for when the probe ``host`` gave none."""
    with reading_through(ctx.files):
        host = _hostname(ctx, FieldReader()) or (printable(socket.gethostname()) if ctx.this_host else "")
    node_id = _hashed("hostname", host)
    return NodeIdentity(node_id=node_id, name=_display_name(host, node_id), hostname=host, id_source="hostname")


def memory_total(path: Path, read: FieldReader) -> int | None:
    """Return ``MemTotal`` of a meminfo file (the machine's or a NUMA node's), bytes."""
    match = _MEM_TOTAL.search(read.text(path, _MEM_TOTAL_BYTES) or "")
    return int(match[1]) * 1024 if match else None


def _hashed(*parts: str) -> str:
    return hashlib.blake2b("\n".join(parts).encode(), digest_size=16, person=b"fabricd-node-id").hexdigest()


def _hardware_addresses(ctx: ProbeContext, read: FieldReader) -> list[str]:
    """Return the node GUIDs of RDMA devices and MACs of network devices on a bus, sorted.

    Virtual functions are left out: they come and go.
    """
    net, infiniband = ctx.roots.sys / "class/net", ctx.roots.sys / "class/infiniband"
    found: set[str] = set()
    for name in read.entries(net):
        device = net / name / "device"
        if read.exists(device) and not read.exists(device / "physfn"):
            found.add(_own_address(net / name, read))
    for name in read.entries(infiniband):
        if not read.exists(infiniband / name / "device/physfn"):
            found.add("".join((read.text(infiniband / name / "node_guid") or "").split(":")))
    return sorted(address for address in found if len(address) in (_MAC_LENGTH, _GUID_LENGTH) and set(address) != {"0"})


def _own_address(interface: Path, read: FieldReader) -> str:
    """Return an interface's own MAC (of IPoIB the GUID) as hex digits; "" for one that was drawn at random.

    That is another with each boot, as with the USB interfaces of some management controllers. A bond gives its members
    one address, and keeps their own.

    Source: kernel include/uapi/linux/netdevice.h and drivers/net/bonding/bond_sysfs_slave.c.
    """
    if read.integer(interface / "addr_assign_type") == _RANDOM_ADDRESS:
        return ""
    text = read.text(interface / "bonding_slave/perm_hwaddr") or read.text(interface / "address") or ""
    return "".join(text.split(":"))[-_GUID_LENGTH:]


def _kernel(ctx: ProbeContext, read: FieldReader) -> str:
    release = read.text(ctx.roots.proc / "sys/kernel/osrelease")
    if release:
        return release
    words = (read.text(ctx.roots.proc / "version") or "").split()
    return words[2] if len(words) > 2 and words[1] == "version" else ""


def _os_name(ctx: ProbeContext, read: FieldReader) -> str:
    """Return PRETTY_NAME of os-release. Source: os-release(5), which follows the shell's quoting."""
    text = read.text(ctx.roots.etc / "os-release") or read.text(ctx.roots.top / "usr/lib/os-release") or ""
    for line in text.splitlines():
        key, _, value = line.partition("=")
        if key == "PRETTY_NAME":
            try:
                return " ".join(shlex.split(value))
            except ValueError:
                return value.strip("\"'")
    return ""


def _first_text(read: FieldReader, *paths: Path) -> str:
    return next((text for path in paths if (text := read.text(path))), "")
