"""The probes, written out. Their order is the order of reports; facts of a later one add to those of an earlier one."""

from fabricd.probe.base import Probe
from fabricd.probe.host import HostProbe
from fabricd.probe.ibfabric import IbFabricProbe
from fabricd.probe.lldp import LldpProbe
from fabricd.probe.netlink import NetlinkProbe
from fabricd.probe.numa import NumaProbe
from fabricd.probe.nvml import NvmlProbe
from fabricd.probe.pci import PciProbe
from fabricd.probe.rdma_sysfs import RdmaProbe
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
