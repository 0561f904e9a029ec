"""What this process sees of its devices and limits. Standard library only: the client imports it.

A daemon sees the host; a rank may sit in a container with other interface names, limits and namespaces. Each rank
registers its own view, and the plan uses what both know, in the names of the rank.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewInterface:
    """A network interface of this network namespace. Source: /sys/class/net, getifaddrs."""

    name: str
    mac: str = ""
    up: bool = False
    loopback: bool = False
    addresses: tuple[str, ...] = ()  #: "10.1.0.1/24", "fd00::1/64"


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewHca:
    """An RDMA device that this process can open. Source: /sys/class/infiniband, /dev/infiniband."""

    name: str
    node_guid: str = ""
    usable: bool = False  #: its uverbs device node exists and is readable and writable
    ports: tuple[int, ...] = ()


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
    memlock_bytes: int | None = None  #: None is unlimited
    cpus: tuple[int, ...] = ()
    interfaces: tuple[ViewInterface, ...] = ()
    hcas: tuple[ViewHca, ...] = ()
    gpu_uuids: tuple[str, ...] = ()
    nvidia_visible_devices: str = ""
    #: Daemon of this host as the rank found it (node_id), so that the owner can join view and map.
    node_id: str = ""
    #: Versions of what is installed, without importing it: "mpich", "mpi4py", "nccl", "ucx".
    versions: tuple[tuple[str, str], ...] = ()
