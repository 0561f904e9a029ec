"""Walks over the InfiniBand fabrics of this node by ``ibnetdiscover``, for the probe ``ibfabric``. Root only.

Each walk asks every switch and adapter of a fabric, so it runs when root says so, and never in the daemon.
"""

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from fabricd.errors import ParseError
from fabricd.probe.base import ProbeAbsent, ProbeContext, ProbeFailed
from fabricd.probe.ibnet import MAX_BYTES, parse_ibnet
from fabricd.probe.process import Program
from fabricd.probe.rdma_sysfs import RdmaProbe

_WALK_SECONDS, _ALL_WALKS_SECONDS = 120.0, 480.0


@dataclass(frozen=True, slots=True)
class Port:
    """A port to walk from."""

    device: str
    node_guid: str
    number: int


def active_ports(ctx: ProbeContext) -> list[Port]:
    """Return this node's active InfiniBand ports.

    Raises:
        ProbeAbsent: there is none.
    """
    ports = [
        Port(hca.name, hca.node_guid, port.port)
        for hca in RdmaProbe().run(ctx).facts["hcas"]
        for port in hca.ports
        if port.link_layer == "infiniband" and port.state == "active"
    ]
    if not ports:
        raise ProbeAbsent("no active InfiniBand port")
    return ports


def walk(
    ports: Iterable[Port], tool: str, environment: Mapping[str, str] | None = None
) -> tuple[bytes, tuple[str, ...]]:
    """Return what the tool prints of all fabrics, one after another, and why ports led to none.

    A port that an earlier walk has met is not started from again.

    Args:
        ports: where to start; one at least.
        tool: path of ibnetdiscover.
        environment: of the tool, by default this process's.

    Raises:
        ProbeFailed: no walk came to an end; says why.
    """
    met: set[tuple[str, int]] = set()
    texts: list[bytes] = []
    failures: list[str] = []
    end = time.monotonic() + _ALL_WALKS_SECONDS
    for port in ports:
        if (port.node_guid, port.number) in met:
            continue
        left = end - time.monotonic()
        if left <= 0:
            failures.append(f"{port.device}:{port.number}: no time left")
            continue
        command = (tool, "-C", port.device, "-P", str(port.number))
        program = Program(command, "ibnetdiscover", environment, silent=False, max_bytes=MAX_BYTES)
        try:
            text = program.ask(min(_WALK_SECONDS, left))
            net = parse_ibnet(text.decode("utf-8", "backslashreplace"))
        except (ProbeFailed, ParseError) as error:
            failures.append(f"{port.device}:{port.number}: {error}")
            continue
        met.update((node.guid, number) for node in net.nodes.values() for number in node.ports)
        texts.append(text)
    if not texts:
        raise ProbeFailed("; ".join(failures))
    return b"\n".join(texts), tuple(failures)
