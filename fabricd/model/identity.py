"""Who a node is, and what kind of machine."""

from dataclasses import dataclass

#: Machine-ids and DMI UUIDs that stand for "never set", lower case, without dashes and spaces.
#: Source: machine-id(5); UUIDs that board vendors ship unset.
UNSET_IDS = frozenset({"", "uninitialized", "notsettable", "notpresent", "03000200040005000006000700080009"})


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

    @property
    def hypervisor(self) -> str:
        """What it runs on: "" for bare metal, and where that is not known."""
        return "" if self.virtualization == "none" else self.virtualization


def unique_id(text: str) -> str:
    """Return a machine-id or DMI UUID in lower case, without its dashes; "" when it identifies nothing."""
    value = text.strip().lower().replace("-", "").replace(" ", "")[:64]
    return "" if value in UNSET_IDS or set(value) <= {"0"} or set(value) <= {"f"} else value
