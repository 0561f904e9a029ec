"""What this process sees of its devices and limits. Standard library only: the client imports it.

A daemon sees the host; a rank may sit in a container with other interface names, limits and namespaces. Each rank
registers its own view, and the plan uses what both know, in the names of the rank.
"""

import os
import re
import resource
import socket
import struct
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from fabricd.gidtable import read_gids
from fabricd.netlink import dump
from fabricd.smallfile import printable, read_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewInterface:
    """A network interface of this network namespace. Source: rtnetlink."""

    name: str
    mac: str = ""
    up: bool = False
    loopback: bool = False
    addresses: tuple[str, ...] = ()  #: "10.1.0.1/24", "fd00::1/64"


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewGid:
    """A valid entry of a port's GID table, as this process sees it. Source: /sys/class/infiniband/<dev>/ports."""

    port: int
    index: int
    gid: str
    type: str = ""  #: "ib", "roce-v1", "roce-v2"
    interface: str = ""  #: "" for none in this network namespace: then the entry cannot be used for RoCE


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewHca:
    """An RDMA device that this process can open. Source: /sys/class/infiniband, /dev/infiniband."""

    name: str
    node_guid: str = ""
    usable: bool = False  #: its uverbs device node exists and is readable and writable
    ports: tuple[int, ...] = ()
    gids: tuple[ViewGid, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalView:
    """One process's own view."""

    hostname: str = ""
    pid: int = 0
    uid: int = 0
    boot_id: str = ""
    #: Identity of the namespaces, from the inode of /proc/self/ns/*; "" where denied.
    net_namespace: str = ""
    ipc_namespace: str = ""
    pid_namespace: str = ""
    #: "device:inode" of /dev/shm: ranks share memory only where it is the same.
    shm_device: str = ""
    shm_bytes: int | None = None
    memlock_bytes: int | None = None  #: None is unlimited, by the limit or by the right to exceed it
    cpus: tuple[int, ...] = ()
    interfaces: tuple[ViewInterface, ...] = ()
    hcas: tuple[ViewHca, ...] = ()
    gpu_uuids: tuple[str, ...] = ()
    nvidia_visible_devices: str = ""
    #: IMEX channels that this process may open: it needs one to map memory of another host's GPU over NVLink. None: an
    #: older client, which does not tell.
    imex_channels: tuple[int, ...] | None = None
    #: Daemon of this host as the rank found it (node_id), so that the owner can join view and map.
    node_id: str = ""
    #: The MPI that runs in this process already, and its rank there, "NAME:3"; "" for none that can be shared.
    world: str = ""
    #: Its program wants the ranks to compare their calls: what one wants, all must do.
    check_calls: bool = False
    #: Versions of what is installed, without importing it: "mpich", "mpi4py", "nccl", "ucx".
    versions: tuple[tuple[str, str], ...] = ()


_PACKAGES = (  # distributions on PyPI that carry a library which the plan must know of
    ("mpich", "mpich"), ("mpi4py", "mpi4py"), ("nccl", "nvidia-nccl-cu12"), ("nccl", "nvidia-nccl-cu13"),
    ("ucx", "libucx-cu12"), ("cupy", "cupy-cuda12x"), ("cupy", "cupy-cuda13x"), ("cupy", "cupy"), ("torch", "torch"),
)  # fmt: skip
#: Source: PyPA's specification of recorded projects; egg-info is of Debian's packages and of older tools.
_INSTALLED = re.compile(r"(.+?)-([^-]+)(?:-py[0-9.]+)?\.(?:dist|egg)-info")
_MAX_VERSION = 64
_MAX_DEVICES = 1024
#: Below ``/dev``. Source: NVIDIA's IMEX guide.
IMEX_CHANNELS = "nvidia-caps-imex-channels"
_CHANNEL = re.compile(r"channel(\d{1,9})")
_MAX_TEXT = 4096
_EFFECTIVE = re.compile(r"^CapEff:\s*([0-9a-f]{1,16})$", re.MULTILINE)
_CAP_IPC_LOCK = 14
#: The highest limit that nobody asked for. Source: systemd src/basic/def.h, HIGH_RLIMIT_MEMLOCK, which it takes itself,
#: and before version 250 handed on: up to there, nobody has raised the limit for RDMA.
_MEMLOCK_DEFAULT_BYTES = 64 << 20
#: Of the first user namespace, the one in which the kernel asks for that capability.
_ALL = ["0", "0", str(2**32 - 1)]
_GPU_UUID = re.compile(r"^GPU UUID:\s*(GPU-[0-9a-f-]{36})\s*$", re.MULTILINE | re.IGNORECASE)
_GPU_MINOR = re.compile(r"^Device Minor:\s*(\d{1,4})\s*$", re.MULTILINE)

# Source: kernel include/uapi/linux/{rtnetlink,if_link,if_addr}.h
_RTM_GETLINK, _RTM_GETADDR = 18, 22
_IFLA_ADDRESS, _IFLA_IFNAME = 1, 3
_IFA_ADDRESS, _IFA_LOCAL = 1, 2
_IFA_F_DADFAILED = 0x08  # another host has this address: the kernel refuses to use it
_IFF_UP, _IFF_LOOPBACK = 0x1, 0x8
_IFINFOMSG = struct.Struct("=BxHiII")
_IFADDRMSG = struct.Struct("=BBBBi")
_MAX_LINKS = 20_000


def collect(
    *, sys_root: Path = Path("/sys"), proc_root: Path = Path("/proc"), dev_root: Path = Path("/dev")
) -> LocalView:
    """Return what this process sees. Never raises for a file, device or right that is missing: that part is empty.

    Args:
        sys_root: where sysfs is mounted; containers may lack it.
        proc_root: where procfs is mounted.
        dev_root: where device nodes and ``shm`` are.
    """
    shm_device, shm_bytes = _shared_memory(dev_root / "shm")
    return LocalView(
        hostname=printable(socket.gethostname()),
        pid=os.getpid(),
        uid=os.getuid(),
        boot_id=_text(proc_root / "sys/kernel/random/boot_id"),
        net_namespace=_namespace(proc_root, "net"),
        ipc_namespace=_namespace(proc_root, "ipc"),
        pid_namespace=_namespace(proc_root, "pid"),
        shm_device=shm_device,
        shm_bytes=shm_bytes,
        memlock_bytes=_memlock(proc_root),
        cpus=tuple(sorted(os.sched_getaffinity(0))),
        interfaces=_interfaces(),
        hcas=_hcas(sys_root, dev_root),
        gpu_uuids=_gpu_uuids(proc_root, dev_root),
        imex_channels=imex_numbers(
            name for name in _names(dev_root / IMEX_CHANNELS) if _may_use(dev_root / IMEX_CHANNELS / name)
        ),
        nvidia_visible_devices=printable(os.environ.get("NVIDIA_VISIBLE_DEVICES", "")[:_MAX_TEXT]),
        versions=_versions(),
    )


def imex_numbers(names: Iterable[str]) -> tuple[int, ...]:
    """Return the numbers of IMEX channels, ascending, by the names of their device nodes: ``channel0``."""
    return tuple(sorted(int(match[1]) for name in names if (match := _CHANNEL.fullmatch(name))))


def locks_too_little(memlock_bytes: int | None) -> bool:
    """Tell whether buffers for RDMA cannot be registered for long: what is registered is locked.

    Args:
        memlock_bytes: the limit; None is unlimited.
    """
    return memlock_bytes is not None and memlock_bytes <= _MEMLOCK_DEFAULT_BYTES


def _memlock(proc_root: Path) -> int | None:
    """Return how much memory may be locked, bytes; the capability to exceed the limit counts outside containers' users.

    Source: kernel drivers/infiniband/core/umem.c, include/uapi/linux/capability.h; capabilities(7).
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if limit == resource.RLIM_INFINITY:
        return None
    effective = _EFFECTIVE.search(_text(proc_root / "self/status"))
    if effective and int(effective[1], 16) >> _CAP_IPC_LOCK & 1 and _text(proc_root / "self/uid_map").split() == _ALL:
        return None
    return limit


def _may_use(node: Path) -> bool:
    return os.access(node, os.R_OK | os.W_OK)


def _text(path: Path) -> str:
    try:
        return printable(read_bytes(path)).strip()
    except (OSError, ValueError):
        return ""


def _names(directory: Path) -> list[str]:
    try:
        return sorted(printable(entry.name) for entry in directory.iterdir())[:_MAX_DEVICES]
    except OSError:
        return []


def _namespace(proc_root: Path, kind: str) -> str:
    try:
        return str((proc_root / "self/ns" / kind).stat().st_ino)
    except OSError:
        return ""


def _shared_memory(path: Path) -> tuple[str, int | None]:
    try:
        status, size = path.stat(), os.statvfs(path)
    except OSError:
        return "", None
    return f"{status.st_dev}:{status.st_ino}", size.f_frsize * size.f_blocks


def _hcas(sys_root: Path, dev_root: Path) -> tuple[ViewHca, ...]:
    verbs = sys_root / "class/infiniband_verbs"
    node_of = {_text(verbs / name / "ibdev"): dev_root / "infiniband" / name for name in _names(verbs)}
    devices = sys_root / "class/infiniband"
    return tuple(_hca(devices / name, node_of.get(name)) for name in _names(devices))


def _hca(device: Path, node: Path | None) -> ViewHca:
    ports = tuple(sorted(int(port) for port in _names(device / "ports") if port.isdecimal()))
    return ViewHca(
        name=device.name,
        node_guid=_text(device / "node_guid"),
        usable=node is not None and _may_use(node),
        ports=ports,
        gids=tuple(
            ViewGid(port=port, index=entry.index, gid=entry.gid, type=entry.type, interface=entry.interface)
            for port in ports
            for entry in read_gids(device / "ports" / str(port))
        ),
    )


def _gpu_uuids(proc_root: Path, dev_root: Path) -> tuple[str, ...]:
    """Return the GPUs whose device node this process may open, in order of PCI address."""
    found = []
    gpus = proc_root / "driver/nvidia/gpus"
    for address in _names(gpus):
        text = _text(gpus / address / "information")
        uuid, minor = _GPU_UUID.search(text), _GPU_MINOR.search(text)
        if uuid and minor and _may_use(dev_root / f"nvidia{minor[1]}"):
            found.append(uuid[1])
    return tuple(found)


def _versions() -> tuple[tuple[str, str], ...]:
    """Read versions off the names of installed packages' folders, as ``mpich-5.0.2.dist-info``.

    ``importlib.metadata`` reads the same names, and takes five times as long to load as they take to list.
    """
    installed: dict[str, str] = {}
    for folder in sys.path:
        try:
            with os.scandir(folder or ".") as entries:
                names = [entry.name for entry in entries]
        except OSError:
            continue
        matches = (_INSTALLED.fullmatch(name) for name in names if name.endswith("-info"))
        for match in filter(None, matches):  # of two the first on the path is the one that is loaded
            installed.setdefault(re.sub(r"[-_.]+", "-", match[1]).lower(), printable(match[2])[:_MAX_VERSION])
    found: dict[str, str] = {}
    for name, distribution in _PACKAGES:
        if distribution in installed:
            found.setdefault(name, installed[distribution])
    return tuple(found.items())


def _interfaces() -> tuple[ViewInterface, ...]:
    """Ask the kernel for links and addresses. Needs neither sysfs nor rights."""
    try:
        links = dump(_RTM_GETLINK, _IFINFOMSG, (_IFLA_ADDRESS, _IFLA_IFNAME), limit=_MAX_LINKS)
        addresses = dump(_RTM_GETADDR, _IFADDRMSG, (_IFA_ADDRESS, _IFA_LOCAL), limit=_MAX_LINKS)
    except (OSError, ValueError):
        return ()
    if not links.consistent or not addresses.consistent:  # they change too fast to list them
        return ()
    on_link: dict[int, list[str]] = {}
    for (family, prefix, flags, _, index), told in addresses.items:
        raw = told.get(_IFA_LOCAL) or told.get(_IFA_ADDRESS)
        if raw and family in (socket.AF_INET, socket.AF_INET6) and not flags & _IFA_F_DADFAILED:
            on_link.setdefault(index, []).append(f"{socket.inet_ntop(family, raw)}/{prefix}")
    return tuple(
        ViewInterface(
            name=printable(told.get(_IFLA_IFNAME, b"").rstrip(b"\0")),
            mac=told.get(_IFLA_ADDRESS, b"").hex(":"),
            up=bool(flags & _IFF_UP),
            loopback=bool(flags & _IFF_LOOPBACK),
            addresses=tuple(on_link.get(index, ())),
        )
        for (_, _, index, flags, _), told in links.items
    )
