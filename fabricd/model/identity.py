"""Who a node is, and what kind of machine."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Cpu:
    """The processors, as ``/proc/cpuinfo`` tells."""

    vendor: str = ""  #: "GenuineIntel", "AuthenticAMD", "ARM", ...; "" unknown
    family: int | None = None
    model: int | None = None
    name: str = ""
    architecture: str = ""  #: as uname -m
    sockets: int | None = None
    logical: int | None = None  #: CPUs online


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeIdentity:
    """A node. Two nodes are the same if their ``node_id`` is; names are for people."""

    #: Stable id: a hash over machine-id and DMI UUID, else over MACs and GUIDs, or as configured.
    node_id: str
    name: str  #: display name, by default the host name
    hostname: str = ""
    #: Which facts the id rests on: "configured", "machine-id+dmi", "dmi", "addresses" (of the network hardware, with
    #: the machine-id where there is one), "machine-id", "hostname".
    id_source: str = ""
    boot_id: str = ""  #: /proc/sys/kernel/random/boot_id, changes with each boot
    kernel: str = ""
    os: str = ""  #: PRETTY_NAME of os-release
    virtualization: str = ""  #: "none" for bare metal, "kvm", "vmware", "xen", "amazon", ...; "" unknown
    container: str = ""  #: what this process sees the machine from: "docker", "kubernetes", ...; "" no container
    product: str = ""  #: DMI product name
    vendor: str = ""  #: DMI system vendor
    memory_bytes: int | None = None
    cpu: Cpu = Cpu()
