"""The switches of a simulated cluster, as each node gets to know them: by LLDP, or by a walk over InfiniBand.

Each rail has leaf switches of its own, each for so many nodes; the ports beside the rails share a front network, whose
leaves are beside those. One InfiniBand subnet joins all rails as long as there are spines and its addresses suffice;
beyond that each rail is a subnet of its own.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from fabricd.errors import InputError
from fabricd.graph.simulate.design import Design, Port, Ports
from fabricd.graph.simulate.faults import Fault, Faults
from fabricd.model.device import LldpNeighbor
from fabricd.model.infiniband import IbFabric, IbLink, IbSwitch

#: Local identifiers for single ports. Source: InfiniBand Architecture Specification 1, 4.1.3: 0x0001 to 0xBFFF.
MAX_LIDS = 0xBFFF
#: A subnet's prefix where there are several; the default one where there is one. Source: the same, 4.1.1.
_SITE_LOCAL, _DEFAULT_PREFIX = "fec0:0000:0000", "fe80:0000:0000:0000"
#: Names of a lane's speed by Gb/s.
_SPEEDS = {10: "QDR", 14: "FDR", 25: "EDR", 50: "HDR", 100: "NDR", 200: "XDR"}


@dataclass(frozen=True, slots=True)
class Subnet:
    """An InfiniBand subnet."""

    number: int
    rails: range
    prefix: str
    name: str  #: within the names of its spines


@dataclass(frozen=True, slots=True)
class Attached:
    """A node's InfiniBand port that has a link."""

    port: Port
    guid: str  #: of its adapter
    lanes: int
    rate: int  #: bytes/s


class Switches:
    """The switches around each node.

    Args:
        design: of the cluster.
        ports: of a node.
        faults: in the rails.

    Raises:
        InputError: leaves without a spine between them, or a rail that is too large for an InfiniBand subnet.
    """

    def __init__(self, design: Design, ports: Ports, faults: Faults) -> None:
        self._design = design
        self._ports = ports
        self._units = -(-design.nodes // design.leaf)
        if not design.spines and self._units > 1:
            raise InputError(
                f"{self._units} leaves of a rail need a spine", hint="more spines, or more nodes to a leaf"
            )
        # A leaf alone needs none.
        self._spines = design.spines if self._units > 1 or ports.rail_count > 1 else 0
        lost = [place for place, fault in faults.items() if fault is not Fault.DEGRADED]
        self._lost = Counter((ports.rails[place].rail, node // design.leaf) for node, place in lost)
        self._subnets = self._all_subnets()
        self._by_rail = {rail: subnet for subnet in self._subnets for rail in subnet.rails}
        # Virtual machines see no switch.
        self.visible = design.template.node.virtualization in ("", "none")

    def prefix(self, port: Port) -> str:
        """Return the prefix of a port's InfiniBand subnet; ports beside the rails are on one of their own."""
        return f"{_SITE_LOCAL}:ffff" if port.rail is None else self._by_rail[port.rail].prefix

    def lid(self, node: int, port: Port) -> int:
        """Return a port's local identifier."""
        if port.rail is None:
            return node * len(self._ports.front) + self._ports.front.index(port) + 1
        subnet = self._by_rail[port.rail]
        place = node * len(subnet.rails) + port.rail - subnet.rails.start
        return self._switch_count(subnet) + place * self._ports.width + port.lane + 1

    def neighbor(self, node: int, port: Port, interface: str, front: int) -> LldpNeighbor:
        """Return what the switch at an Ethernet port says of itself.

        Args:
            node: number of the node.
            port: of the node.
            interface: name of its interface.
            front: for a port beside the rails, which of them it is.
        """
        unit, slot = divmod(node, self._design.leaf)
        if port.rail is None:
            name, number, width, lane = f"leaf-front-{unit:04d}", 0, len(self._ports.front), front
        else:
            name, number, width, lane = self._leaf_name(port.rail, unit), port.rail + 1, self._ports.width, port.lane
        mac = f"02:5e:{number:02x}:{unit >> 16 & 255:02x}:{unit >> 8 & 255:02x}:{unit & 255:02x}"
        port_id = f"Ethernet{slot * width + lane + 1}"
        return LldpNeighbor(interface=interface, chassis_id=mac, system_name=name, port_id=port_id)

    def fabrics(self, node: int, linked: Sequence[Attached]) -> tuple[IbFabric, ...]:
        """Return the subnets around a node.

        Args:
            node: its number.
            linked: its ports on the rails.
        """
        found: dict[int, list[Attached]] = {}
        for one in linked:
            if one.port.rail is not None:
                found.setdefault(self._by_rail[one.port.rail].number, []).append(one)
        return tuple(self._fabric(self._subnets[number], node, ends) for number, ends in sorted(found.items()))

    def _all_subnets(self) -> tuple[Subnet, ...]:
        rails = self._ports.rail_count
        beside = self._design.nodes * sum(port.infiniband for port in self._ports.front)
        if beside > MAX_LIDS:
            raise InputError(f"{beside} InfiniBand ports beside the rails, more than the {MAX_LIDS} of a subnet")
        whole = Subnet(0, range(rails), _DEFAULT_PREFIX, "")
        joined = self._spines > 0 or rails == 1
        if not self._ports.rails[0].infiniband or (joined and self._lids(whole) <= MAX_LIDS):
            return (whole,)
        each = tuple(
            Subnet(rail, range(rail, rail + 1), f"{_SITE_LOCAL}:{rail:04x}", f"r{rail}-") for rail in range(rails)
        )
        if self._lids(each[0]) > MAX_LIDS:
            raise InputError(
                f"a rail of {self._lids(each[0])} addresses, more than the {MAX_LIDS} of an InfiniBand subnet",
                hint="fewer nodes, or more rails",
            )
        return each

    def _lids(self, subnet: Subnet) -> int:
        return self._switch_count(subnet) + self._design.nodes * len(subnet.rails) * self._ports.width

    def _switch_count(self, subnet: Subnet) -> int:
        return self._spines + self._units * len(subnet.rails)

    def _leaf_name(self, rail: int, unit: int) -> str:
        return f"leaf-r{rail}-{unit:04d}"

    def _guid(self, subnet: Subnet, number: int) -> str:
        digits = f"{0x10000000 + (subnet.number << 20) + number:08x}"
        return f"b8ce:f603:{digits[:4]}:{digits[4:]}"

    def _fabric(self, subnet: Subnet, node: int, ends: list[Attached]) -> IbFabric:
        rails = sorted({end.port.rail or 0 for end in ends})
        leaves = [self._leaf(subnet, rail, node, [end for end in ends if end.port.rail == rail]) for rail in rails]
        lost = sum(self._lost[rail, other] for rail in subnet.rails for other in range(self._units))
        adapters = self._design.nodes * sum(port.rail in subnet.rails for port in self._ports.rails) - lost
        return IbFabric(
            guid=self._guid(subnet, 0),
            switch_count=self._switch_count(subnet),
            hca_count=adapters,
            link_count=adapters + self._units * len(subnet.rails) * self._spines,
            switches=(*leaves, *(self._spine(subnet, number) for number in range(self._spines))),
        )

    def _leaf(self, subnet: Subnet, rail: int, node: int, ends: list[Attached]) -> IbSwitch:
        unit, slot = divmod(node, self._design.leaf)
        width = sum(port.rail == rail for port in self._ports.rails)
        nodes = min(self._design.leaf, self._design.nodes - unit * self._design.leaf)
        number = self._spines + unit * len(subnet.rails) + rail - subnet.rails.start
        down = [_link(slot * width + end.port.lane + 1, end) for end in ends]
        up = [
            IbLink(port=self._design.leaf * width + spine + 1, peer=self._guid(subnet, spine), peer_port=number + 1)
            for spine in range(self._spines)
        ]
        return IbSwitch(
            guid=self._guid(subnet, number),
            name=self._leaf_name(rail, unit),
            system_guid=self._guid(subnet, number),
            lid=number + 1,
            port_count=self._design.leaf * width + self._spines,
            hca_links=nodes * width - self._lost[rail, unit],
            switch_links=self._spines,
            links=(*down, *up),
        )

    def _spine(self, subnet: Subnet, number: int) -> IbSwitch:
        leaves = self._units * len(subnet.rails)
        return IbSwitch(
            guid=self._guid(subnet, number),
            name=f"spine-{subnet.name}{number:02d}",
            system_guid=self._guid(subnet, number),
            lid=number + 1,
            port_count=leaves,
            hops=2,
            switch_links=leaves,
        )


def _link(number: int, end: Attached) -> IbLink:
    return IbLink(
        port=number,
        peer=end.guid,
        peer_port=end.port.hca_port,
        local_port=end.port.name,
        width=end.lanes,
        speed=_SPEEDS.get(round(end.rate * 8 / end.lanes / 1e9), ""),
        rate_bytes_per_second=end.rate,
    )
