"""Probe ``ibfabric``: the InfiniBand switches around this node, from a walk over the fabric that root has left.

Only root may send the packets of such a walk, and they load every switch; so it is off until the configuration says
``ib_fabric = "on"``. Then ``fabricd facts`` walks, and leaves what it has seen (``fabricd.probe.ibwalk``).
"""

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from fabricd.errors import ParseError
from fabricd.model.infiniband import IbFabric, IbLink, IbSwitch
from fabricd.probe.answers import ask
from fabricd.probe.base import ProbeAbsent, ProbeContext, ProbeFailed, ProbeNotRun, ProbeResult
from fabricd.probe.files import FieldReader
from fabricd.probe.ibnet import MAX_BYTES, IbKind, IbNet, IbNode, IbPort, parse_ibnet
from fabricd.smallfile import printable, read_bytes, status_of
from fabricd.units import infiniband_rate

#: Below ``Roots.run``.
LEFT_FACTS = "fabricd-facts/ibnet.txt"
#: Where a replay keeps what was made of the walk, in the folder of recorded answers.
RECORDED = "ibfabric.json"
_OLD_SECONDS = 86400.0
_INFINIBAND = "InfiniBand"


@dataclass(frozen=True, slots=True)
class _Seen:
    """What was made of the file; it is read again only when it, or this node's adapters, are others."""

    key: object
    fabrics: tuple[IbFabric, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class IbFabricAnswer:
    """What the walk shows of this node's surroundings."""

    fabrics: tuple[IbFabric, ...] = ()
    notes: tuple[str, ...] = ()


class IbFabricProbe:
    """Switches around this node's InfiniBand ports."""

    name = "ibfabric"
    deadline_seconds = 30.0

    def __init__(self) -> None:
        self._seen: _Seen | None = None

    def run(self, ctx: ProbeContext) -> ProbeResult:
        """Read what was left.

        Raises:
            ProbeAbsent: no InfiniBand port.
            ProbeNotRun: nothing was left.
            ProbeFailed: what was left is no such text, or does not show this node.
        """
        answer = ask(ctx, RECORDED, IbFabricAnswer, lambda: self._around(ctx), from_files=True)
        return ProbeResult(facts={"ib_fabrics": answer.fabrics}, notes=answer.notes)

    def _around(self, ctx: ProbeContext) -> IbFabricAnswer:
        read = FieldReader()
        adapters = _adapters(ctx, read)
        if not adapters:
            raise ProbeAbsent("no InfiniBand port")
        path = ctx.roots.run / LEFT_FACTS
        try:
            status = status_of(path)
        except FileNotFoundError:
            raise ProbeNotRun('off: needs ib_fabric = "on", and fabricd facts to be run as root') from None
        except OSError as error:
            raise ProbeFailed(f"{path}: {error.strerror or error}") from error
        key = (path, status.st_ino, status.st_mtime_ns, status.st_size, tuple(adapters.items()))
        seen = self._seen
        if seen is None or seen.key != key:
            seen = self._seen = _Seen(key, *_read(path, adapters))
        if ctx.this_host and time.time() - status.st_mtime > _OLD_SECONDS:
            read.note(path, "is older than a day: what has changed since is not seen")
        return IbFabricAnswer(fabrics=seen.fabrics, notes=(*read.notes, *seen.notes))


def _adapters(ctx: ProbeContext, read: FieldReader) -> dict[str, str]:
    """Return this node's InfiniBand devices: names by node GUID."""
    base = ctx.roots.sys / "class/infiniband"
    found = {}
    for name in read.entries(base):
        ports = read.entries(base / name / "ports")
        if any(read.text(base / name / "ports" / port / "link_layer") == _INFINIBAND for port in ports):
            found[(read.text(base / name / "node_guid") or "").lower()] = printable(name)
    found.pop("", None)
    return found


def _read(path: Path, adapters: dict[str, str]) -> tuple[tuple[IbFabric, ...], tuple[str, ...]]:
    try:
        net = parse_ibnet(read_bytes(path, MAX_BYTES + 1).decode("utf-8", "backslashreplace"), what=str(path))
    except (OSError, ParseError) as error:
        raise ProbeFailed(str(error)) from error
    met = {node.guid for node in net.nodes.values()}
    if met.isdisjoint(adapters):
        raise ProbeFailed(f"{path} shows {len(net.nodes)} nodes, and no adapter of this machine among them")
    unmet = (f"{name}: no walk has met it" for guid, name in adapters.items() if guid not in met)
    return tuple(fabrics_around(net, adapters)), (*unmet, *net.notes)


def fabrics_around(net: IbNet, adapters: dict[str, str]) -> Iterator[IbFabric]:
    """Return each fabric with a port of this node, in order of its GUID.

    Adapters do not join fabrics: the ports of one may be on two.

    Args:
        net: what a walk has seen.
        adapters: this node's, names by node GUID.
    """
    switches = {node.id: node for node in net.nodes.values() if node.kind is IbKind.SWITCH}
    around = _Around(net, switches, adapters)
    left = dict.fromkeys(sorted(switches, key=lambda one: switches[one].guid))
    while left:
        members = [next(iter(left))]
        for node_id in members:  # grows meanwhile
            left.pop(node_id, None)
            for peer in {port.peer for port in switches[node_id].ports.values()}:
                if peer in left:
                    del left[peer]
                    members.append(peer)
        fabric = around.fabric([switches[node_id] for node_id in members])
        if fabric.switches:
            yield fabric


class _Around:
    def __init__(self, net: IbNet, switches: dict[str, IbNode], adapters: dict[str, str]) -> None:
        self._net = net
        self._switches = switches
        self._own = {node.id: adapters[node.guid] for node in net.nodes.values() if node.guid in adapters}

    def fabric(self, members: list[IbNode]) -> IbFabric:
        """Return a fabric of these switches; without switches when this node has no port on it."""
        near = {one.id for one in members if any(port.peer in self._own for port in one.ports.values())}
        next_to = {port.peer for node_id in near for port in self._switches[node_id].ports.values()}
        shown = sorted(
            (self._switch(one, near) for one in members if one.id in near or one.id in next_to),
            key=lambda one: (one.hops, one.guid),
        )
        ends = [self._kind(port) for one in members for port in one.ports.values()]
        hcas = {port.peer for one in members for port in one.ports.values() if self._kind(port) is IbKind.HCA}
        between = ends.count(IbKind.SWITCH)
        return IbFabric(
            guid=min(one.guid for one in members),
            switch_count=len(members),
            hca_count=len(hcas),
            link_count=len(ends) - between + between // 2,
            switches=tuple(shown),
        )

    def _switch(self, node: IbNode, near: Iterable[str]) -> IbSwitch:
        kinds = [self._kind(port) for port in node.ports.values()]
        return IbSwitch(
            guid=node.guid,
            name=node.name,
            system_guid=node.system_guid,
            vendor_id=node.vendor_id,
            device_id=node.device_id,
            lid=node.lid,
            port_count=node.port_count,
            hops=1 if node.id in near else 2,
            hca_links=kinds.count(IbKind.HCA),
            switch_links=kinds.count(IbKind.SWITCH),
            aggregation=IbKind.AGGREGATION in kinds,
            links=tuple(self._links(node)) if node.id in near else (),
        )

    def _links(self, node: IbNode) -> Iterator[IbLink]:
        """Return the links to this node and to other switches."""
        for number, port in sorted(node.ports.items()):
            own = self._own.get(port.peer, "")
            peer = self._net.nodes.get(port.peer)
            if peer is not None and (own or peer.kind is IbKind.SWITCH):
                yield IbLink(
                    port=number,
                    peer=peer.guid,
                    peer_port=port.peer_port,
                    local_port=f"{own}:{port.peer_port}" if own else "",
                    width=port.width,
                    speed=port.speed,
                    rate_bytes_per_second=infiniband_rate(port.speed, port.width) if port.width else None,
                )

    def _kind(self, port: IbPort) -> IbKind | None:
        peer = self._net.nodes.get(port.peer)
        return peer.kind if peer else None
