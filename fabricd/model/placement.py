"""Where nodes stand: under which switches, in which block, rack and zone, and in which NVLink domain."""

from dataclasses import dataclass

from fabricd.model.observation import Evidence


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """Where one source says that a node stands: a scheduler's file, labels, or the cloud provider."""

    source: str  #: "slurm", "topograph", "kubernetes", "aws", "azure", "gcp", "oci"
    origin: str = ""  #: the file or address that it was read from
    #: Nearest first; "" for one that the source leaves out. Clouds name groups of hosts instead of switches.
    switches: tuple[str, ...] = ()
    block: str = ""  #: a group of nodes that a scheduler hands out together (scalable unit)
    rack: str = ""
    zone: str = ""
    region: str = ""
    vpc: str = ""  #: the cloud's virtual network that the node's first interface is in
    nvlink_domain: str = ""
    instance_id: str = ""  #: by which the provider knows the node


@dataclass(frozen=True, slots=True, kw_only=True)
class RailPlace:
    """Where one port of a node goes in."""

    rail: int  #: counts the node's ports for jobs' data, in order of PCI address
    port: str  #: "mlx5_0:1" or "eth0"
    switches: tuple[str, ...] = ()  #: nearest first; none: the port has met none
    source: str = ""  #: how it has met them


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a node stands. ``""`` is "not known"; two nodes of whom one is not known may still stand together."""

    node: str  #: node_id
    #: Nearest first: leaf, spine, core. Those of the first rail, where rails have leaves of their own.
    switches: tuple[str, ...] = ()
    #: Reported: the node's own ports have heard or met the switches. Assumed: a file, label or provider says so.
    evidence: Evidence = Evidence.ASSUMED
    rails: tuple[RailPlace, ...] = ()
    block: str = ""
    rack: str = ""
    zone: str = ""
    region: str = ""
    nvlink_domain: str = ""
    because: tuple[str, ...] = ()  #: one sentence for each source, and for each contradiction

    @property
    def leaf(self) -> str:
        """The switch that the node's (first) port goes into."""
        return self.switches[0] if self.switches else ""

    @property
    def spine(self) -> str:
        """The switch, or group of switches, above the leaf: leaves of one spine are one step apart."""
        return self.switches[1] if len(self.switches) > 1 else ""

    @property
    def core(self) -> str:
        """What is above the spine."""
        return self.switches[2] if len(self.switches) > 2 else ""
