"""Snapshots of nodes that tests and benchmarks need, made from what their hardware is known to be."""

from collections.abc import Sequence
from dataclasses import replace

from fabricd.localview import LocalView, ViewHca, ViewInterface
from fabricd.model.device import (
    Gid,
    Gpu,
    Hca,
    HcaPort,
    InterfaceKind,
    IpAddress,
    NetInterface,
    NumaNode,
    NvLink,
    NvlinkFabric,
    PciDevice,
    PcieLink,
)
from fabricd.model.identity import Cpu, NodeIdentity
from fabricd.model.path import Path
from fabricd.model.snapshot import Snapshot

GEN4 = PcieLink(speed_gts=16.0, width=16, max_speed_gts=16.0, max_width=16)
GEN5 = PcieLink(speed_gts=32.0, width=16, max_speed_gts=32.0, max_width=16)
ICELAKE = Cpu(vendor="GenuineIntel", family=6, model=0x6A, architecture="x86_64")
SAPPHIRE_RAPIDS = Cpu(vendor="GenuineIntel", family=6, model=0x8F, architecture="x86_64")
GRACE = Cpu(vendor="ARM", architecture="aarch64")
BRIDGE = 0x060400


def node(name: str = "a", **fields: object) -> Snapshot:
    """A node with one NUMA node, unless ``fields`` say otherwise."""
    identity = NodeIdentity(node_id=f"id-{name}", name=name, cpu=ICELAKE)
    base = Snapshot(node=identity, numa=(NumaNode(index=0, cpus=(0, 1)),))
    return replace(base, **fields)  # type: ignore[arg-type] # the caller names fields of Snapshot


def mapping(*snapshots: Snapshot) -> dict[str, Snapshot]:
    return {snapshot.node.node_id: snapshot for snapshot in snapshots}


def nic(
    name: str, address: str = "", *, kind: InterfaceKind = InterfaceKind.PHYSICAL, **fields: object
) -> NetInterface:
    """An interface that is up; ``address`` as "10.0.0.1/24"."""
    plain, _, length = address.partition("/")
    family = 6 if ":" in plain else 4
    addresses = (IpAddress(address=plain, prefix_length=int(length), family=family),) if address else ()
    base = NetInterface(
        name=name, index=1, kind=kind, mac="02:00:00:00:00:01", admin_up=True, oper_state="up", addresses=addresses
    )
    return replace(base, **fields)  # type: ignore[arg-type] # the caller names fields of NetInterface


def pci(address: str, *, parent: str = "", root: str = "pci0000:00", **fields: object) -> PciDevice:
    return replace(PciDevice(address=address, parent=parent, root=root), **fields)  # type: ignore[arg-type] # as above


def ib_port(
    *, lid: int = 1, sm_lid: int = 1, prefix: str = "fe80:0000:0000:0000", state: str = "active", rate: int = 50 * 10**9
) -> HcaPort:
    gid = Gid(index=0, gid=f"{prefix}:0000:0000:0000:{lid:04x}", type="ib")
    return HcaPort(
        port=1, state=state, link_layer="infiniband", rate_bytes_per_second=rate, lid=lid, sm_lid=sm_lid, gids=(gid,)
    )


def hca(name: str, port: HcaPort, *, kind: str = "infiniband", **fields: object) -> Hca:
    return replace(Hca(name=name, kind=kind, ports=(port,)), **fields)  # type: ignore[arg-type] # as above


def hgx(name: str = "a", *, gpus: int = 8, nvswitch: bool = True, lid: int = 1) -> Snapshot:
    """Two sockets; under each host bridge a PCIe switch with one GPU and one 400 Gb/s HCA, as in HGX H100 machines."""
    devices: list[PciDevice] = []
    cards: list[Gpu] = []
    hcas: list[Hca] = []
    for index in range(gpus):
        numa = index * 2 // gpus
        bus = f"{index:04x}"
        common = {"root": f"pci{bus}:00", "numa_node": numa, "link": GEN5}
        devices += [
            pci(f"{bus}:00:01.0", class_code=BRIDGE, **common),
            pci(f"{bus}:01:00.0", parent=f"{bus}:00:01.0", class_code=BRIDGE, **common),
            pci(f"{bus}:02:00.0", parent=f"{bus}:01:00.0", class_code=BRIDGE, **common),
            pci(f"{bus}:02:01.0", parent=f"{bus}:01:00.0", class_code=BRIDGE, **common),
            pci(f"{bus}:03:00.0", parent=f"{bus}:02:00.0", class_code=0x030200, **common),
            pci(f"{bus}:04:00.0", parent=f"{bus}:02:01.0", class_code=0x020700, **common),
        ]
        cards.append(
            Gpu(
                index=index,
                uuid=f"GPU-{name}-{index}",
                pci_address=f"{bus}:03:00.0",
                numa_node=numa,
                links=nvlinks(18) if nvswitch else (),
            )
        )
        hcas.append(hca(f"mlx5_{index}", ib_port(lid=lid + index), pci_address=f"{bus}:04:00.0", numa_node=numa))
    return node(
        name,
        node=NodeIdentity(node_id=f"id-{name}", name=name, cpu=SAPPHIRE_RAPIDS),
        numa=(NumaNode(index=0, cpus=(0, 1)), NumaNode(index=1, cpus=(2, 3))),
        pci=tuple(devices),
        gpus=tuple(cards),
        hcas=tuple(hcas),
    )


def whole_view(snapshot: Snapshot, rank: int, **fields: object) -> LocalView:
    """What a rank sees on a node: all of its network and RDMA devices."""
    name = snapshot.node.name
    facts = {
        "hostname": name,
        "pid": 100 + rank,
        "boot_id": f"boot-{name}",
        "net_namespace": "1",
        "ipc_namespace": "2",
        "pid_namespace": "3",
        "shm_device": "0:4",
        "node_id": snapshot.node.node_id,
        "interfaces": tuple(
            ViewInterface(
                name=one.name,
                mac=one.mac,
                up=True,
                addresses=tuple(f"{address.address}/{address.prefix_length}" for address in one.addresses),
            )
            for one in snapshot.interfaces
        ),
        "hcas": tuple(
            ViewHca(name=one.name, node_guid=one.node_guid, usable=True, ports=(1,)) for one in snapshot.hcas
        ),
    }
    return LocalView(**(facts | fields))  # type: ignore[arg-type] # the caller names fields of LocalView


def nvlinks(count: int, *, speed: int = 25 * 10**9, to: str = "") -> tuple[NvLink, ...]:
    """Links to the NVSwitches, or to the GPU at a PCI address."""
    remote = {"remote_type": "gpu", "remote_pci_address": to} if to else {"remote_type": "switch"}
    return tuple(NvLink(index=index, active=True, speed_bytes_per_second=speed, **remote) for index in range(count))


def nvl_tray(number: int, *, cluster: str = "d0") -> Snapshot:
    """A compute tray of an NVL72 rack: two Grace with two GPUs on C2C each, in one NVLink domain of the rack."""
    name = f"tray{number}"
    fabric = NvlinkFabric(cluster_uuid=cluster, clique_id=1, state="completed", status="success")
    gpus = tuple(
        Gpu(
            index=index,
            uuid=f"GPU-{name}-{index}",
            pci_address=f"000{index}:01:00.0",
            numa_node=index // 2,
            links=nvlinks(18, speed=50 * 10**9),
            c2c_links=10,
            c2c_bytes_per_second=450 * 10**9,
            fabric=fabric,
        )
        for index in range(4)
    )
    devices = tuple(
        pci(gpu.pci_address, root=f"pci000{gpu.index}:00", numa_node=gpu.numa_node, link=GEN5) for gpu in gpus
    )
    return node(
        name,
        node=NodeIdentity(node_id=f"id-{name}", name=name, cpu=GRACE),
        numa=(NumaNode(index=0, cpus=(0,)), NumaNode(index=1, cpus=(1,))),
        pci=devices,
        gpus=gpus,
    )


def names(paths: Sequence[Path]) -> list[str]:
    """The ports that each path crosses the network by."""
    return [next(hop.src for hop in path.hops if hop.dst.startswith("network:")) for path in paths]


def crossed(path: Path) -> str:
    """The network that a path crosses."""
    return next(hop.dst.removeprefix("network:") for hop in path.hops if hop.dst.startswith("network:"))
