"""What a port's own tables say of how a network is used by it: address, GID, MTU, and the switch it is plugged into."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import ip_address

from fabricd.graph.networks_node import NodePorts
from fabricd.graph.snapshot import carriers_of
from fabricd.model.device import Hca, HcaPort, NetInterface
from fabricd.model.network import NetworkPort

_ROCE_V2 = "roce-v2"


@dataclass(frozen=True, slots=True, kw_only=True)
class PortFacts:
    """Of one port on one network; "" and ``None`` are "not known"."""

    address: str = ""
    gid_index: int | None = None
    gid_type: str = ""
    mtu_bytes: int | None = None
    leaf: str = ""  #: name or GUID of the switch
    leaf_port: str = ""
    cautions: tuple[str, ...] = ()
    gid_missing: str = ""  #: that of them which says so of the GID for RoCE v2

    @property
    def text(self) -> str:
        """For people: ``"10.1.0.1, GID 3 (roce-v2), MTU 4096, leaf-07 port 12"``."""
        gid = f"GID {self.gid_index}" + (f" ({self.gid_type})" if self.gid_type else "")
        parts = [self.address, gid if self.gid_index is not None else ""]
        parts.append(f"MTU {self.mtu_bytes}" if self.mtu_bytes else "")
        return ", ".join(filter(None, [*parts, self.plugged_into]))

    @property
    def plugged_into(self) -> str:
        """The switch and its port."""
        return " port ".join(filter(None, [self.leaf, self.leaf_port]))


class PortTables:
    """The tables of a node's ports.

    Args:
        ports: of the node.
    """

    def __init__(self, ports: NodePorts) -> None:
        self.ports = ports
        snapshot = ports.snapshot
        self._on_port, self._leaves = ports.interfaces, ports.leaves
        self._interfaces = {interface.name: interface for interface in snapshot.interfaces}
        self._hca_ports = {name: (hca, port) for name, hca, port in snapshot.hca_ports()}
        self._found: dict[tuple[str, str], PortFacts] = {}
        self._neighbors = {neighbor.interface: neighbor for neighbor in reversed(snapshot.lldp)}

    def facts(self, port: NetworkPort) -> PortFacts:
        """Return what is known of a port on a network that it is on."""
        key = (port.interface, port.address)
        if key not in self._found:
            self._found[key] = self._find(port)
        return self._found[key]

    def _find(self, port: NetworkPort) -> PortFacts:
        if port.interface in self._hca_ports:
            return self._of_hca(*self._hca_ports[port.interface], port)
        interface = self._interfaces.get(port.interface)
        if interface is None:
            return PortFacts(address=port.address)
        leaf, leaf_port = self._by_lldp([interface])
        return PortFacts(address=port.address, mtu_bytes=interface.mtu, leaf=leaf, leaf_port=leaf_port)

    def _of_hca(self, hca: Hca, one: HcaPort, port: NetworkPort) -> PortFacts:
        if one.link_layer == "infiniband":
            first = min(one.gids, key=lambda gid: gid.index, default=None)
            met = self._leaves.get(port.interface)
            leaf, leaf_port = (met.switch.name or met.switch.guid, str(met.link.port)) if met else ("", "")
            index, kind = (first.index, first.type) if first else (None, "")
            return PortFacts(gid_index=index, gid_type=kind, mtu_bytes=one.active_mtu, leaf=leaf, leaf_port=leaf_port)
        names = self._on_port[port.interface]
        leaf, leaf_port = self._by_lldp([self._interfaces[name] for name in names if name in self._interfaces])
        index, kind = _gid_of(one, port.address)
        cautions, gid_missing = [], ""
        if hca.kind == "soft-roce":
            cautions.append(f"{port.interface} is RDMA done by software on {', '.join(names)}")
        if hca.kind in ("roce", "soft-roce") and one.gids and port.address and kind != _ROCE_V2:
            gid_missing = f"the GID table of {port.interface} has no RoCE v2 entry for {port.address}"
            cautions.append(gid_missing)
        return PortFacts(
            address=port.address,
            gid_index=index,
            gid_type=kind,
            mtu_bytes=one.active_mtu,
            leaf=leaf,
            leaf_port=leaf_port,
            cautions=tuple(cautions),
            gid_missing=gid_missing,
        )

    def _by_lldp(self, interfaces: Sequence[NetInterface]) -> tuple[str, str]:
        """Return the switch that a card below some interfaces is plugged into, and that switch's port."""
        if not self._neighbors:
            return "", ""
        for interface in interfaces:
            for name in (interface.name, *(carrier.name for carrier, _ in carriers_of(interface, self._interfaces))):
                if neighbor := self._neighbors.get(name):
                    return neighbor.system_name or neighbor.chassis_id, neighbor.port_id or neighbor.port_description
        return "", ""


def _gid_of(port: HcaPort, address: str) -> tuple[int | None, str]:
    """Return the entry of a GID table that stands for an IP address, RoCE v2 before v1."""
    if not address or not port.gids:
        return None, ""
    mapped = _as_gid(address)
    fitting = [gid for gid in port.gids if gid.gid.lower() == mapped]
    best = min(fitting, key=lambda gid: (gid.type != _ROCE_V2, gid.index), default=None)
    return (best.index, best.type) if best else (None, "")


@lru_cache(maxsize=1024)
def _as_gid(address: str) -> str:
    """Return how a GID table writes an IP address; "" for what is none."""
    try:
        wanted = ip_address(address)
    except ValueError:
        return ""
    digits = f"{int(wanted) if wanted.version == 6 else 0xFFFF_0000_0000 | int(wanted):032x}"
    return ":".join(digits[at : at + 4] for at in range(0, 32, 4))
