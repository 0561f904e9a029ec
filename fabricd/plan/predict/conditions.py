"""What a prediction needs to know of a machine beyond NCCL's graph of it: what carries the bytes between nodes."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from fabricd.graph.nccl_xml_types import NcclNet, NcclPci, NcclTopology
from fabricd.model.path import Transport
from fabricd.model.snapshot import Snapshot

#: The libfabric plugin on AWS reports 75 us for every port, which no other plugin does.
_EFA_REPORTED_LATENCY = 75.0
_NAMES = (
    (Transport.EFA, re.compile(r"efa|rdmap\d+s\d+")),
    (Transport.GPUDIRECT_TCP, re.compile(r"tcpx|fastrak|gpudirect")),
    (Transport.SLINGSHOT, re.compile(r"cxi")),
    (Transport.ROCE, re.compile(r"roce|bnxt_re|irdma|mana")),
    (Transport.INFINIBAND, re.compile(r"mlx\d|ib|hfi|opa")),
)
#: Networks that exist on virtual machines alone, or nearly so.
_VIRTUAL_TRANSPORTS = frozenset({Transport.EFA, Transport.GPUDIRECT_TCP})
_AMD = 0x1002
_ADDRESS = re.compile(r"[0-9a-f]+:(?P<bus>[0-9a-f]{2}):(?P<device>[0-9a-f]{2})", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """What the model of time asks about a machine.

    Attributes:
        transport: between nodes; UNKNOWN for a machine without network.
        virtual: the ranks run in a virtual machine.
        direct: adapters read and write GPU memory themselves.
        amd: the GPUs are AMD's, whose RCCL nothing was fitted to.
    """

    transport: Transport = Transport.UNKNOWN
    virtual: bool = False
    direct: bool = True
    amd: bool = False


def virtual_of(snapshot: Snapshot) -> bool | None:
    """Return whether a node is a virtual machine; None if it does not know."""
    return snapshot.node.virtualization != "none" if snapshot.node.virtualization else None


def conditions_of(topology: NcclTopology, *, virtual: bool | None = None) -> Conditions:
    """Return the conditions that a topology file shows.

    A file does not say whether a machine is virtual. It is taken for one if its network exists on virtual machines
    alone, or if a GPU stands where PCI Express has no slots; otherwise for a real one.

    Args:
        topology: NCCL's view of the machine.
        virtual: whether the machine is, where that is known.
    """
    nets = [net for cpu in topology.cpus for nic, _ in cpu.nics() for net in nic.nets if net.dev is not None]
    transport = _transport(nets)
    if virtual is None:
        virtual = transport in _VIRTUAL_TRANSPORTS or _on_emulated_bus(topology)
    amd = any(device.vendor == _AMD or gpu.xgmi for device in _devices(topology) for gpu in device.gpus)
    return Conditions(transport=transport, virtual=virtual, direct=any(net.gdr for net in nets), amd=amd)


def _devices(topology: NcclTopology) -> Iterator[NcclPci]:
    return (device for cpu in topology.cpus for device in cpu.devices())


def _transport(nets: Iterable[NcclNet]) -> Transport:
    """Return what the first port belongs to; NCCL uses one plugin for all."""
    first = next(iter(nets), None)
    if first is None:
        return Transport.UNKNOWN
    if first.latency >= _EFA_REPORTED_LATENCY:
        return Transport.EFA
    for transport, pattern in _NAMES:
        if pattern.match(first.name.lower()):
            return transport
    # Plugins other than sockets reach GPU memory, or carry the name of an RDMA device.
    return Transport.INFINIBAND if first.gdr else Transport.ETHERNET


def _on_emulated_bus(topology: NcclTopology) -> bool:
    """Return whether a GPU is on bus 0 or is a bus's second device.

    Bus 0 belongs to the root complex, and a PCI Express link has one device, number 0 (PCI Express Base
    Specification, 7.3.1). Hypervisors put the devices that they pass through elsewhere too.
    """
    gpus = [device.busid for device in _devices(topology) if device.gpus]
    places = [match for match in map(_ADDRESS.match, gpus) if match is not None]
    return any(place["bus"] == "00" or place["device"] != "00" for place in places)
