"""The probes, written out. Their order is the order of reports; facts of a later one win."""

from fabricd.probe.base import Probe
from fabricd.probe.host import HostProbe

PROBES: tuple[Probe, ...] = (HostProbe(),)
