"""A node at one moment."""

from collections.abc import Iterator
from dataclasses import dataclass

from fabricd.model.device import Gpu, GpuDriver, Hca, HcaPort, LldpNeighbor, NetInterface, NumaNode, PciDevice
from fabricd.model.identity import NodeIdentity
from fabricd.model.infiniband import IbFabric
from fabricd.model.network import NetworkRule
from fabricd.model.observation import ProbeReport
from fabricd.model.placement import Position
from fabricd.model.routing import Route, RoutingRule
from fabricd.model.topology_file import TopologyFile

#: History: 1 (2026-11-30) the first.
SCHEMA = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """All that is known of a node: facts, and how each probe ended. Verdicts are derived elsewhere."""

    schema: int = SCHEMA
    node: NodeIdentity
    #: Counts changes since the daemon started; with ``instance`` it orders snapshots of one node.
    generation: int = 0
    instance: str = ""  #: random, new with each start of the daemon
    #: Hash over the facts (without times, counters, durations): the ETag.
    content_hash: str = ""
    taken_at: float = 0.0  #: Unix time, for people; never compared between hosts
    this_host: bool = True  #: False for a replay
    probes: tuple[ProbeReport, ...] = ()
    numa: tuple[NumaNode, ...] = ()
    pci: tuple[PciDevice, ...] = ()
    #: PCI functions by address, and how many correctable errors each has seen on its link (AER) since boot.
    pcie_errors: tuple[tuple[str, int], ...] = ()
    interfaces: tuple[NetInterface, ...] = ()
    routes: tuple[Route, ...] = ()  #: of the main table
    routing_rules: tuple[RoutingRule, ...] = ()  #: by source address alone, in order of priority
    gpu_driver: GpuDriver | None = None
    gpus: tuple[Gpu, ...] = ()
    hcas: tuple[Hca, ...] = ()
    lldp: tuple[LldpNeighbor, ...] = ()
    ib_fabrics: tuple[IbFabric, ...] = ()
    topology_file: TopologyFile | None = None
    positions: tuple[Position, ...] = ()  #: where the node stands, by each source that tells
    site_networks: tuple[NetworkRule, ...] = ()  #: what the configuration of this node's daemon says of its ports

    def hca_ports(self) -> Iterator[tuple[str, Hca, HcaPort]]:
        """Yield the ports of all RDMA devices with their names: "mlx5_0:1"."""
        for hca in self.hcas:
            for name, port in hca.named_ports():
                yield name, hca, port
