"""Whether NCCL uses GPUDirect RDMA between a GPU and a port, and why not. Source: NCCL 2.30, graph/paths.cc."""

from enum import StrEnum
from typing import NamedTuple

from fabricd.paths.nccl.kinds import NodeType, PathKind
from fabricd.paths.nccl.paths import PathTable
from fabricd.paths.nccl.system import Device, Gpu, Net


class GdrMode(StrEnum):
    """How."""

    DISABLED = "Disabled"
    DEFAULT = "Default"
    PCI = "PCI"  #: forced through the GPU's PCIe window although it has C2C


class Gdr(NamedTuple):
    """The verdict; ``reason`` says which fact decided."""

    mode: GdrMode
    reason: str

    @property
    def enabled(self) -> bool:
        """Whether data go between GPU and port without a copy in the host's memory."""
        return self.mode is not GdrMode.DISABLED


def check_gdr(table: PathTable, gpu: Gpu, net: Net, *, read: bool) -> Gdr:
    """Return whether the port reads from (sends), or writes to, the GPU's memory directly."""
    net = table.named(net)
    refusal = _refusal(table, gpu, net, read=read)
    if refusal:
        return Gdr(GdrMode.DISABLED, refusal)
    environment = table.environment
    level = environment.net_gdr_level
    if level is None:
        level = PathKind.P2C if environment.net_gdr_c2c else PathKind.PXB
    near = proxy(table, gpu, net)
    distance = PathKind(table.get(near, net).kind)
    if distance > level:
        given = "NCCL_NET_GDR_LEVEL" if environment.net_gdr_level is not None else "the default"
        return Gdr(GdrMode.DISABLED, f"{near.name} is {distance.name} from {net.name}, beyond {level.name} ({given})")
    cpu = table.local_cpu(near)
    if cpu is not None and table.get(near, cpu).kind == PathKind.C2C and distance != PathKind.P2C:
        return Gdr(GdrMode.PCI, f"{near.name} has C2C but {net.name} is {distance.name} from it")
    return Gdr(GdrMode.DEFAULT, f"{near.name} is {distance.name} from {net.name}, within {level.name}")


def _refusal(table: PathTable, gpu: Gpu, net: Net, *, read: bool) -> str:
    """Return what rules GPUDirect out whatever the distance, or nothing."""
    environment = table.environment
    if not net.gdr:
        return f"{net.name} cannot (gdr=0)"
    if not gpu.gdr:
        return f"{gpu.name} cannot (gdr=0)"
    if gpu.device.partition is not None and not environment.net_gdr_mlopart:
        return f"{gpu.name} is a partition of a GPU"
    if not read or environment.net_gdr_read:
        return ""
    if environment.net_gdr_read is False:
        return "reads are off by NCCL_NET_GDR_READ=0"
    gpus = table.system.gpus
    alone = len(gpus) == 1
    if gpu.sm < 80 and not alone and not any(table.get(gpu, peer).kind == PathKind.NVL for peer in gpus):
        return f"{gpu.name} is older than sm80 and has no NVLink peer"
    return ""


def proxy(table: PathTable, gpu: Gpu, net: Net) -> Gpu:
    """Return the GPU that sends for another to a port: itself, or the relay of a PXN path.

    Of several ranks on the relaying GPU it is the first.
    """
    route = table.get(gpu, net)
    if route.kind != PathKind.PXN:
        return gpu
    for link in route.links():
        node = link.target
        if node is gpu.device or node.type is NodeType.NVS:
            continue
        if isinstance(node, Device):
            return next(other for other in table.system.gpus if (other.host, other.dev) == (node.host, node.dev))
        if isinstance(node, Gpu):
            return node
        break
    return gpu
