"""The probes, written out. Their order is the order of reports; facts of a later one add to those of an earlier one."""

from collections.abc import Collection, Sequence

from fabricd.model.network import NetworkRule
from fabricd.probe import instance, placement, site
from fabricd.probe.base import Probe
from fabricd.probe.host import HostProbe
from fabricd.probe.ibfabric import IbFabricProbe
from fabricd.probe.instance import InstanceProbe
from fabricd.probe.lldp import LldpProbe
from fabricd.probe.netlink import NetlinkProbe
from fabricd.probe.numa import NumaProbe
from fabricd.probe.nvml import NvmlProbe
from fabricd.probe.pci import PciProbe
from fabricd.probe.placement import PlacementProbe
from fabricd.probe.rdma_sysfs import RdmaProbe
from fabricd.probe.site import SiteProbe
from fabricd.probe.topology_file import TopologyFileProbe
from fabricd.probe.verbs import VerbsProbe

PROBES: tuple[Probe, ...] = (
    HostProbe(),
    NumaProbe(),
    PciProbe(),
    NvmlProbe(),
    NetlinkProbe(),
    RdmaProbe(),
    VerbsProbe(),
    LldpProbe(),
    IbFabricProbe(),
    TopologyFileProbe(),
)


def configured_probes(
    *,
    networks: Sequence[NetworkRule] = (),
    placement_files: Sequence[str] = (),
    instance_metadata: bool = False,
    names: Sequence[str] = (),
) -> tuple[Probe, ...]:
    """Return all probes, with those that only a configuration makes useful.

    Args:
        networks: what the site says of this node's ports.
        placement_files: files that say where nodes stand.
        instance_metadata: ask the cloud provider's metadata service.
        names: configured names of this node, by which files may know it.
    """
    probes: list[Probe] = list(PROBES)
    if networks:
        probes.append(SiteProbe(networks))
    if placement_files:
        probes.append(PlacementProbe(placement_files, names))
    if instance_metadata:
        probes.append(InstanceProbe())
    return tuple(probes)


def replayed_probes(answers: Collection[str]) -> tuple[Probe, ...]:
    """Return all probes for a replay; of those that only a configuration makes useful, the ones that ran then.

    Args:
        answers: names of what was recorded.
    """
    configured: dict[str, Probe] = {
        site.RECORDED: SiteProbe(()),
        placement.RECORDED: PlacementProbe(()),
        instance.RECORDED: InstanceProbe(),
    }
    return (*PROBES, *(probe for name, probe in configured.items() if name in answers))
