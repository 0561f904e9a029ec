"""GPUDirect-TCP: a cloud's virtual cards that split packets, so that TCP payload goes to and from GPU memory.

Google's A3 machines have a gVNIC beside each GPU or pair of GPUs for this (GPUDirect-TCPX and -TCPXO). It takes a
plugin for NCCL and a daemon that receives on both hosts, neither of which a probe sees. Source: Google Cloud's
documentation of GPU networking on A3 machines.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from fabricd.graph.networks_rails import beside_gpus
from fabricd.model.network import Network
from fabricd.model.path import Transport
from fabricd.model.snapshot import Snapshot

_DRIVER = "gve"
_NEEDS = "GPUDirect-TCP takes a plugin of NCCL and a receiving daemon on both hosts; no probe sees these"


def gpudirect_tcp_networks(cards: Mapping[str, Collection[str]], ethernet: Sequence[Network]) -> list[Network]:
    """Return a network for each IP network with cards for GPUDirect-TCP, of these cards alone.

    Args:
        cards: the names of each node's, by node_id.
        ethernet: their IP networks.
    """
    networks = []
    for network in ethernet if any(cards.values()) else ():
        members = tuple(port for port in network.ports if port.interface in cards[port.node])
        if members:
            networks.append(
                replace(
                    network,
                    name=f"gpudirect-tcp:{network.name}",
                    transport=Transport.GPUDIRECT_TCP,
                    ports=members,
                    reason=f"{network.reason}; gVNICs beside GPUs",
                    unverified=(*network.unverified, _NEEDS),
                )
            )
    return networks


def gpudirect_cards(snapshot: Snapshot) -> list[str]:
    """Return the interfaces of gVNICs that share a PCIe switch with a GPU."""
    virtual = [one for one in snapshot.interfaces if one.driver == _DRIVER and one.pci_address]
    beside = frozenset().union(*beside_gpus(snapshot).values()) if virtual else frozenset()
    return [one.name for one in virtual if one.pci_address in beside]
