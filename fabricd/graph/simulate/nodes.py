"""The nodes of a simulated cluster: the template's facts, with identities, addresses and links of their own."""

import hashlib
import uuid
from collections.abc import Iterator
from dataclasses import replace

from fabricd.graph.simulate.design import Design, Port, ports_of
from fabricd.graph.simulate.faults import Fault, draw
from fabricd.graph.simulate.switches import Attached, Switches
from fabricd.model.cluster import NodeState, NodeStatus
from fabricd.model.codec import content_hash, without_counters
from fabricd.model.device import Gid, Gpu, Hca, HcaPort, InterfaceKind, IpAddress, LldpNeighbor, NetInterface
from fabricd.model.observation import Outcome, ProbeReport
from fabricd.model.routing import Route
from fabricd.model.snapshot import SCHEMA, Snapshot

#: Each network is a /14 of 10.0.0.0/8.
_PREFIX_LENGTH = 14
_LANES = 4


def simulate(design: Design) -> Iterator[NodeStatus]:
    """Yield the nodes of a cluster, one after another; the same for the same design.

    Raises:
        InputError: a design that is not possible; before the first node.
    """
    maker = _Maker(design)
    return (maker.node(number) for number in range(design.nodes))


class _Maker:
    def __init__(self, design: Design) -> None:
        self._design = design
        self._ports = ports_of(design)
        self._faults = draw(design, self._ports)
        self._switches = Switches(design, self._ports, self._faults)
        self._template = _impersonal(design.template)
        self._digits = max(4, len(str(design.nodes - 1)))
        self._networks = {port: self._network_of(port) for port in (*self._ports.rails, *self._ports.front)}

    def node(self, number: int) -> NodeStatus:
        """Return one node."""
        name = f"{self._design.name}-{number:0{self._digits}d}"
        faults = {port: self._faults.get((number, place)) for place, port in enumerate(self._ports.rails)}
        snapshot = _Node(self._design, self._template, number, self._networks, self._switches).snapshot(name, faults)
        broken = [f"{port.name} is {fault}" for port, fault in faults.items() if fault]
        return NodeStatus(
            node_id=snapshot.node.node_id,
            name=name,
            state=NodeState.OK,
            content_hash=snapshot.content_hash,
            schema=SCHEMA,
            note="; ".join(["simulated", *broken]),
            snapshot=snapshot,
        )

    def _network_of(self, port: Port) -> tuple[int, int, int]:
        """Return a port's network, how many ports a node has there, and which of them it is."""
        if port.rail is not None:
            return port.rail, self._ports.width, port.lane
        return self._ports.rail_count + self._ports.front.index(port), 1, 0


def _impersonal(template: Snapshot) -> Snapshot:
    """Return a template without what its nodes replace, or what they would all claim."""
    told = ProbeReport(name="lldp", outcome=Outcome.OK), ProbeReport(name="ibfabric", outcome=Outcome.OK)
    reports = {report.name: replace(report, duration_seconds=0.0) for report in template.probes}
    if template.node.virtualization in ("", "none"):
        reports |= {report.name: report for report in told}
    return replace(
        without_counters(template),
        schema=SCHEMA,
        generation=1,
        taken_at=0.0,
        this_host=False,
        probes=tuple(reports.values()),
        routes=(),
        lldp=(),
        ib_fabrics=(),
    )


class _Node:
    """One node in the making."""

    def __init__(
        self,
        design: Design,
        template: Snapshot,
        number: int,
        networks: dict[Port, tuple[int, int, int]],
        switches: Switches,
    ) -> None:
        self._design = design
        self._template = template
        self._number = number
        self._networks = networks
        self._switches = switches
        self._by_interface = {port.interface: port for port in networks if port.interface is not None}
        self._by_hca = {(port.hca, port.hca_port): port for port in networks if port.hca is not None}

    def snapshot(self, name: str, faults: dict[Port, Fault | None]) -> Snapshot:
        interfaces = [self._interface(place, nic) for place, nic in enumerate(self._template.interfaces)]
        hcas = [self._hca(place, hca, interfaces) for place, hca in enumerate(self._template.hcas)]
        attached = []
        for port, fault in faults.items():
            if fault is not None:
                _break(port, fault, interfaces, hcas)
            hca = hcas[port.hca] if port.hca is not None else None
            end = next((one for one in hca.ports if one.port == port.hca_port), None) if hca else None
            if hca and end and end.state == "active" and port.infiniband:
                lanes = end.width or _LANES
                attached.append(Attached(port, hca.node_guid, lanes, end.rate_bytes_per_second or port.speed))
        gone = _addresses(self._template) - _addresses_of([*interfaces, *hcas])
        made = replace(
            self._template,
            node=replace(
                self._template.node,
                node_id=self._hash("node").hex(),
                name=name,
                hostname=name,
                id_source="configured",
                boot_id=self._uuid("boot"),
            ),
            instance=self._hash("instance").hex()[:16],
            # What is equal on nodes is one object, as in maps that were read.
            pci=tuple(one for one in self._template.pci if one.address not in gone) if gone else self._template.pci,
            interfaces=tuple(filter(None, interfaces)),
            routes=tuple(_routes(interfaces)),
            gpus=tuple(self._gpu(gpu) for gpu in self._template.gpus),
            hcas=tuple(filter(None, hcas)),
            lldp=tuple(self._neighbors(interfaces)),
            ib_fabrics=self._switches.fabrics(self._number, attached) if self._switches.visible else (),
        )
        return replace(made, content_hash=content_hash(made))

    def _interface(self, place: int, nic: NetInterface) -> NetInterface | None:
        port = self._by_interface.get(place)
        hca = next((number for number, one in enumerate(self._template.hcas) if one.name == nic.rdma_device), None)
        if nic.kind is InterfaceKind.IPOIB and hca is not None:
            head = nic.mac[: -len(":".join(["00"] * 8))]
            return replace(nic, mac=head + ":".join(_pairs(self._guid(hca).replace(":", ""))), addresses=())
        mac = self._mac(nic.mac, place)
        if port is None:
            kept = nic.kind in (InterfaceKind.LOOPBACK, InterfaceKind.BRIDGE, InterfaceKind.DUMMY)
            return replace(nic, mac=mac, addresses=nic.addresses if kept else ())
        address = IpAddress(address=self._address(port), prefix_length=_PREFIX_LENGTH, family=4)
        return replace(nic, mac=mac, addresses=() if nic.controller else (address,))

    def _hca(self, place: int, hca: Hca, interfaces: list[NetInterface | None]) -> Hca | None:
        guid = self._guid(place)
        ports = tuple(self._hca_port(one, guid, self._by_hca.get((place, one.port)), interfaces) for one in hca.ports)
        return replace(hca, node_guid=guid, ports=ports)

    def _hca_port(self, port: HcaPort, guid: str, place: Port | None, interfaces: list[NetInterface | None]) -> HcaPort:
        if place is not None and place.infiniband:
            gids = (Gid(index=0, gid=f"{self._switches.prefix(place)}:{guid}", type="ib"),)
            return replace(port, lid=self._switches.lid(self._number, place), sm_lid=1, gids=gids)
        nic = interfaces[place.interface] if place is not None and place.interface is not None else None
        return replace(port, gids=_gids(port, guid, nic))

    def _gpu(self, gpu: Gpu) -> Gpu:
        fabric = gpu.fabric
        if fabric is not None and fabric.cluster_uuid:
            domain = self._hash(f"domain {self._number // self._design.domain}", node=False)
            fabric = replace(fabric, cluster_uuid=str(uuid.UUID(bytes=domain)))
        mig = tuple(
            replace(one, uuid=f"MIG-{self._uuid(f'mig {gpu.index}.{place}')}") for place, one in enumerate(gpu.mig)
        )
        return replace(gpu, uuid=f"GPU-{self._uuid(f'gpu {gpu.index}')}", fabric=fabric, mig=mig)

    def _neighbors(self, interfaces: list[NetInterface | None]) -> Iterator[LldpNeighbor]:
        front = 0
        for port in self._networks:
            nic = interfaces[port.interface] if port.interface is not None else None
            if nic is not None and nic.carrier is not False and self._switches.visible:
                yield self._switches.neighbor(self._number, port, nic.name, front)
            front += port.rail is None

    def _address(self, port: Port) -> str:
        network, width, lane = self._networks[port]
        host = self._number * width + lane + 1
        value = (10 << 24) + (network << 32 - _PREFIX_LENGTH) + host
        return ".".join(str(value >> shift & 255) for shift in (24, 16, 8, 0))

    def _mac(self, old: str, place: int) -> str:
        if not old.strip("0:"):
            return old
        return ":".join([*old.split(":")[:3], *_pairs(f"{self._number << 8 | place:06x}")])

    def _guid(self, place: int) -> str:
        digits = f"{self._number << 8 | place:08x}"
        head = self._template.hcas[place].node_guid[: len("0000:0000")] or "0200:0000"
        return f"{head}:{digits[:4]}:{digits[4:]}"

    def _hash(self, what: str, *, node: bool = True) -> bytes:
        text = f"{self._design.seed} {self._design.name} {self._number if node else ''} {what}"
        return hashlib.blake2b(text.encode(), digest_size=16).digest()

    def _uuid(self, what: str) -> str:
        return str(uuid.UUID(bytes=self._hash(what)))


def _gids(port: HcaPort, guid: str, nic: NetInterface | None) -> tuple[Gid, ...]:
    """Return a GID table as it is on this node; a RoCE port that the template gave no address has an entry more."""
    found = [gid for old in port.gids if (gid := _gid(old, guid, nic))]
    address = next((one.address for one in nic.addresses), "") if nic is not None else ""
    if nic is not None and address and not any(":ffff:" in gid.gid for gid in found):
        last = max((gid.index for gid in found if gid.type == "roce-v2"), default=None)
        if last is not None:
            found.append(Gid(index=last + 1, gid=_mapped(address), type="roce-v2", interface=nic.name))
    return tuple(found)


def _mapped(address: str) -> str:
    digits = "".join(f"{int(part):02x}" for part in address.split("."))
    return f"0000:0000:0000:0000:0000:ffff:{digits[:4]}:{digits[4:]}"


def _gid(old: Gid, guid: str, nic: NetInterface | None) -> Gid | None:
    """Return an entry of a GID table as it is on this node; None where its address is not there any more."""
    if nic is None:
        return replace(old, gid=f"{old.gid[:20]}{guid}") if not old.interface else None
    if old.gid.startswith("fe80"):
        head = nic.mac.replace(":", "")
        host = f"{int(head[:2], 16) ^ 2:02x}{head[2:6]}fffe{head[6:]}"
        return replace(old, gid="fe80:0000:0000:0000:" + ":".join(host[start : start + 4] for start in (0, 4, 8, 12)))
    address = next((one.address for one in nic.addresses), "")
    if not address or ":ffff:" not in old.gid:
        return None
    return replace(old, gid=_mapped(address))


def _break(port: Port, fault: Fault, interfaces: list[NetInterface | None], hcas: list[Hca | None]) -> None:
    """Put a fault into the interface and the RDMA device of a port; both are None when it is missing."""
    hca = hcas[port.hca] if port.hca is not None else None
    if hca is not None and port.hca is not None:
        ports = tuple(_broken(one, fault) if one.port == port.hca_port else one for one in hca.ports)
        hcas[port.hca] = None if fault is Fault.MISSING else replace(hca, ports=ports)
    for place, nic in enumerate(interfaces):
        mine = place == port.interface or (hca is not None and nic is not None and nic.rdma_device == hca.name)
        if nic is None or not mine:
            continue
        if fault is Fault.MISSING:
            interfaces[place] = None
        elif fault is Fault.DOWN:
            interfaces[place] = replace(nic, oper_state="down", carrier=False, speed_bytes_per_second=None)
        elif nic.speed_bytes_per_second:
            interfaces[place] = replace(nic, speed_bytes_per_second=nic.speed_bytes_per_second // 2)


def _broken(port: HcaPort, fault: Fault) -> HcaPort:
    if fault is Fault.DOWN:
        return replace(port, state="down", physical_state="polling")
    width = port.width // 2 if port.width and port.width > 1 else port.width
    return replace(port, rate_bytes_per_second=(port.rate_bytes_per_second or 0) // 2 or None, width=width)


def _routes(interfaces: list[NetInterface | None]) -> Iterator[Route]:
    """Yield the routes to the networks that a node is on."""
    for nic in filter(None, interfaces):
        for address in nic.addresses:
            if address.prefix_length == _PREFIX_LENGTH:
                first, second, *_ = map(int, address.address.split("."))
                yield Route(destination=f"{first}.{second & ~3}.0.0/{_PREFIX_LENGTH}", family=4, interface=nic.name)


def _addresses(snapshot: Snapshot) -> set[str]:
    return _addresses_of([*snapshot.interfaces, *snapshot.hcas])


def _addresses_of(devices: list[NetInterface | Hca | None]) -> set[str]:
    return {device.pci_address for device in devices if device is not None and device.pci_address}


def _pairs(digits: str) -> list[str]:
    return [digits[start : start + 2] for start in range(0, len(digits), 2)]
