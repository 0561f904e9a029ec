"""Devices of a node, as their drivers and the kernel report them. ``None`` is "not known", never zero."""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from fabricd.model.observation import Evidence, Outcome, missing_word


@dataclass(frozen=True, slots=True, kw_only=True)
class NumaNode:
    """One NUMA node. Source: /sys/devices/system/node."""

    index: int
    cpus: tuple[int, ...] = ()
    memory_bytes: int | None = None
    #: Distance to every NUMA node in order of ``Snapshot.numa``; 10 is local (ACPI SLIT).
    distances: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PcieLink:
    """A PCIe link's speed and width, now and at most, as the device's end reports them."""

    speed_gts: float | None = None
    width: int | None = None
    max_speed_gts: float | None = None
    max_width: int | None = None
    evidence: Evidence = Evidence.REPORTED  #: assumed: as a topology file says


@dataclass(frozen=True, slots=True, kw_only=True)
class PciDevice:
    """A PCI function on the chain from a root to a GPU, NIC or HCA. Source: /sys/bus/pci/devices."""

    address: str  #: "0000:17:00.0", lower case
    parent: str = ""  #: address of the bridge above; "" directly under ``root``
    root: str = ""  #: host bridge, e.g. "pci0000:16"
    class_code: int | None = None  #: 24 bits, 0x030200 is a 3D controller
    vendor_id: int | None = None
    device_id: int | None = None
    subsystem_vendor_id: int | None = None
    subsystem_device_id: int | None = None
    driver: str = ""
    numa_node: int | None = None  #: None where the kernel says -1
    local_cpus: tuple[int, ...] = ()
    link: PcieLink = PcieLink()
    iommu_group: int | None = None
    #: How the IOMMU treats the group: "identity" (passes), "DMA" or "DMA-FQ" (translates), "unmanaged"; "" unknown.
    iommu_mode: str = ""
    #: Access Control Services on a bridge's port; needs privilege to read. Not run for what is no bridge.
    acs: Outcome = Outcome.NOT_RUN
    acs_redirects: bool | None = None  #: True: peer-to-peer goes up to the root; only with acs ok
    largest_bar_bytes: int | None = None
    #: What the largest could be made by Resizable BAR; None where kernel or device does not tell.
    largest_bar_limit_bytes: int | None = None
    physical_function: str = ""  #: for an SR-IOV virtual function, its parent's address
    virtual_function_count: int | None = None


class InterfaceKind(StrEnum):
    """What a network interface is."""

    PHYSICAL = "physical"  #: backed by a bus device
    VIRTUAL_FUNCTION = "virtual_function"
    IPOIB = "ipoib"
    VETH = "veth"
    BRIDGE = "bridge"
    BOND = "bond"
    TEAM = "team"
    VLAN = "vlan"
    MACVLAN = "macvlan"
    IPVLAN = "ipvlan"
    TUN = "tun"
    TUNNEL = "tunnel"  #: vxlan, gre, ipip, sit, wireguard, ...
    IFB = "ifb"
    DUMMY = "dummy"
    LOOPBACK = "loopback"
    OTHER = "other"

    @classmethod
    def _missing_(cls, value: object) -> "InterfaceKind | None":
        return missing_word(value, cls.OTHER)


@dataclass(frozen=True, slots=True, kw_only=True)
class IpAddress:
    """An address on an interface."""

    address: str  #: without prefix, canonical text
    prefix_length: int
    family: int  #: 4 or 6
    scope: str = "global"  #: "global", "link", "host", ...


@dataclass(frozen=True, slots=True, kw_only=True)
class NetInterface:
    """A network interface. Source: rtnetlink, ethtool netlink, /sys/class/net."""

    name: str
    index: int
    kind: InterfaceKind
    link_kind: str = ""  #: the kernel's own IFLA_INFO_KIND, e.g. "veth", "vxlan"
    driver: str = ""
    firmware: str = ""
    mac: str = ""
    mtu: int | None = None
    #: Nominal, bytes/s each direction; None where the driver does not know (virtual NICs say -1).
    speed_bytes_per_second: int | None = None
    duplex: str = ""  #: "full", "half", "" unknown
    admin_up: bool = False
    oper_state: str = ""  #: RFC 2863 in lower case: "up", "down", "lowerlayerdown", "unknown", ...
    carrier: bool | None = None
    addresses: tuple[IpAddress, ...] = ()
    pci_address: str = ""  #: "" for interfaces without one (virtio: the parent PCI function)
    numa_node: int | None = None
    parent: str = ""  #: VLAN, macvlan: the interface below
    controller: str = ""  #: bond, team or bridge that it is enslaved to
    members: tuple[str, ...] = ()  #: of a bond, team or bridge
    bond_mode: str = ""
    vlan_id: int | None = None
    physical_function: str = ""  #: PCI address of the parent of an SR-IOV virtual function
    port_name: str = ""  #: phys_port_name
    rdma_device: str = ""
    rx_bytes: int | None = None
    tx_bytes: int | None = None
    #: Carrier losses since boot (/sys/class/net/<if>/carrier_down_count).
    carrier_down_count: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Gid:
    """A valid entry of a port's GID table."""

    index: int
    gid: str  #: 8 groups of 4 hex digits
    type: str  #: "ib", "roce-v1", "roce-v2"; "" unknown
    interface: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class HcaPort:
    """A port of an RDMA device. Source: /sys/class/infiniband/<dev>/ports/<n>."""

    port: int
    state: str = ""  #: "active", "down", "init", "armed"
    physical_state: str = ""  #: "linkup", "polling", "disabled", ...
    link_layer: str = ""  #: "infiniband", "ethernet", "unspecified"
    rate_bytes_per_second: int | None = None
    width: int | None = None  #: lanes, from "4X"
    lid: int | None = None
    sm_lid: int | None = None
    pkeys: tuple[int, ...] = ()
    gids: tuple[Gid, ...] = ()
    active_mtu: int | None = None  #: bytes; needs verbs
    counters: tuple[tuple[str, int], ...] = ()  #: octet counters already times 4
    hw_counters: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Hca:
    """An RDMA device."""

    name: str  #: "mlx5_0"
    #: The kernel's number for it, in order of registration; libraries list devices in this order. None where not told.
    index: int | None = None
    #: "infiniband", "roce", "efa", "iwarp", "soft-roce", "mana", "omni-path", "slingshot", "other".
    kind: str = "other"
    node_guid: str = ""
    firmware: str = ""
    board_id: str = ""
    vendor_id: int | None = None
    device_id: int | None = None
    pci_address: str = ""
    numa_node: int | None = None
    virtual_function: bool = False
    ports: tuple[HcaPort, ...] = ()
    #: Of the card in a fabric that knows no ports' GUIDs: Slingshot's node id, "0x1a2".
    fabric_address: str = ""
    counters: tuple[tuple[str, int], ...] = ()  #: of the whole card, where its driver counts by card
    #: GPUDirect: can memory of a GPU be registered through dma-buf, through a peer-memory module.
    dmabuf: bool | None = None
    peer_memory: bool | None = None
    max_qp: int | None = None
    max_mr_bytes: int | None = None

    def named_ports(self) -> Iterator[tuple[str, HcaPort]]:
        """Yield its ports with their names on the node: "mlx5_0:1"."""
        for port in self.ports:
            yield f"{self.name}:{port.port}", port


@dataclass(frozen=True, slots=True, kw_only=True)
class NvLink:
    """One NVLink of a GPU."""

    index: int
    active: bool | None = None
    version: int | None = None  #: generation, 1 to 6
    speed_bytes_per_second: int | None = None  #: each direction
    speed_evidence: Evidence = Evidence.REPORTED  #: assumed: nominal for the generation
    #: The driver lets this link carry direct access between GPUs.
    peer_to_peer: bool | None = None
    remote_type: str = ""  #: "gpu", "switch", "cpu"; "" unknown
    remote_pci_address: str = ""
    remote_link: int | None = None
    #: Error counters, named as the generation has them: replay, recovery, crc, crc_flit, crc_data, receive_errors, ...
    errors: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuPeer:
    """What the driver says of direct access from this GPU to another."""

    gpu: int  #: index of the other GPU
    read: str = ""  #: "ok", "chipset-not-supported", "disabled-by-regkey", ...; "" unknown
    write: str = ""
    nvlink: str = ""
    atomics: str = ""
    #: nvmlDeviceGetTopologyCommonAncestor: internal, single, multiple, hostbridge, node, system.
    topology: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NvlinkFabric:
    """A GPU's registration in an NVLink domain that may span hosts."""

    cluster_uuid: str = ""  #: "" for all zeros: no domain
    clique_id: int | None = None
    state: str = ""  #: "not-supported", "not-started", "in-progress", "completed"
    status: str = ""  #: "success" or NVML's error
    health_mask: int | None = None
    health: str = ""  #: the driver's own summary: "healthy", "unhealthy", "limited-capacity"; "" unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class MigInstance:
    """A MIG device."""

    uuid: str
    gpu_instance: int | None = None
    compute_instance: int | None = None
    profile: str = ""
    memory_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """A GPU. Source: NVML."""

    index: int  #: NVML's, in order of PCI address
    uuid: str = ""
    pci_address: str = ""
    name: str = ""
    outcome: Outcome = Outcome.OK  #: failed for a lost GPU; its last known facts stay
    reason: str = ""
    compute_capability: tuple[int, int] | None = None
    memory_bytes: int | None = None
    bar1_bytes: int | None = None
    pcie: PcieLink = PcieLink()
    numa_node: int | None = None  #: host NUMA node nearest
    #: NUMA nodes that NVML calls near, those of GPUs' own memory included; all where firmware names none. None: unknown
    numa_affinity: tuple[int, ...] | None = None
    memory_numa_node: int | None = None  #: NUMA node of the GPU's own memory (GH200)
    cpu_affinity: tuple[int, ...] = ()
    mig_mode: str = ""  #: "enabled", "disabled", "" unsupported or unknown
    mig: tuple[MigInstance, ...] = ()
    persistence: bool | None = None
    links: tuple[NvLink, ...] = ()
    c2c_links: int | None = None
    c2c_bytes_per_second: int | None = None  #: all C2C links together, each direction
    peers: tuple[GpuPeer, ...] = ()
    fabric: NvlinkFabric | None = None
    ecc_mode: str = ""
    ecc_uncorrected: int | None = None  #: errors since the driver was loaded
    notes: tuple[str, ...] = ()  #: fields that could not be read, "field: why"


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuDriver:
    """The NVIDIA driver stack of a node."""

    driver_version: str = ""
    nvml_version: str = ""
    cuda_version: str = ""
    imex_channels: tuple[int, ...] = ()  #: /dev/nvidia-caps-imex-channels


@dataclass(frozen=True, slots=True, kw_only=True)
class LldpNeighbor:
    """What a switch said of itself on one interface."""

    interface: str
    chassis_id: str = ""
    system_name: str = ""
    port_id: str = ""
    port_description: str = ""
    vlan_id: int | None = None
