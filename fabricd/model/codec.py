"""Models to JSON and back. Unknown fields are ignored, missing ones take their defaults."""

from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from fabricd.errors import ParseError

if TYPE_CHECKING:  # a rank decodes messages, and no snapshots
    from fabricd.model.snapshot import Snapshot

T = TypeVar("T")

#: Base classes of display and of processing accelerators. Source: PCI Code and ID Assignment Specification.
_GPU_CLASSES = (0x03, 0x12)
#: Longest name of a node that is taken from elsewhere.
_MAX_NAME = 255
#: Bound on CPU numbers: masks are made of them. Linux is built for 8,192 at most.
_MAX_CPUS = 65_536


def to_json(value: Any) -> bytes:
    """Return the JSON of a model, a mapping or a sequence, UTF-8."""
    return msgspec.json.encode(value)


def to_line(value: Any) -> bytes:
    """Return the same as a line, for lists of them, and for people to whom curl shows an answer."""
    return to_json(value) + b"\n"


def to_builtins(value: Any) -> Any:
    """Return a model as dicts, lists, strings and numbers."""
    return msgspec.to_builtins(value)


def from_json(data: bytes | str, kind: type[T], *, what: str = "message") -> T:
    """Decode and validate.

    Raises:
        ParseError: not JSON, or not of that shape; says where.
    """
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ParseError(f"{what} is not a valid {kind.__name__}: {error}") from error


def check_snapshot(snapshot: "Snapshot") -> None:
    """Check what another daemon, or a file, says of a node.

    Raises:
        ParseError: it does not say whose it is, or has numbers that no machine has and that others would count with.
    """
    for name in (snapshot.node.node_id, snapshot.node.name):
        if not 0 < len(name) <= _MAX_NAME or not name.isprintable():
            raise ParseError(f"it does not say who it is: {name[:40]!r}")
    for node in snapshot.numa:
        odd = [cpu for cpu in node.cpus if not 0 <= cpu < _MAX_CPUS]
        if odd:
            raise ParseError(f"NUMA node {node.index} has a CPU {odd[0]}; they are numbered from 0 to {_MAX_CPUS - 1}")


def without_counters(snapshot: "Snapshot") -> "Snapshot":
    """Return a snapshot without what counts up: bytes and errors of interfaces, ports and links."""
    return replace(
        snapshot,
        pcie_errors=(),
        interfaces=tuple(replace(nic, rx_bytes=None, tx_bytes=None) for nic in snapshot.interfaces),
        hcas=tuple(
            replace(hca, counters=(), ports=tuple(replace(port, counters=(), hw_counters=()) for port in hca.ports))
            for hca in snapshot.hcas
        ),
        gpus=tuple(replace(gpu, links=tuple(replace(link, errors=()) for link in gpu.links)) for gpu in snapshot.gpus),
    )


def _without_idle_speeds(snapshot: "Snapshot") -> "Snapshot":
    """Return a snapshot without the PCIe speed of GPUs now, at both ends of their links.

    A GPU that idles lowers it to save power, and raises it within milliseconds of the first work. Its width stays, and
    so does the speed that both ends can do, which is what paths count with.
    """
    gpus = {device.address for device in snapshot.pci if (device.class_code or 0) >> 16 in _GPU_CLASSES}
    gpus.update(gpu.pci_address for gpu in snapshot.gpus)
    sleepers = gpus | {device.parent for device in snapshot.pci if device.address in gpus}
    return replace(
        snapshot,
        pci=tuple(
            replace(device, link=replace(device.link, speed_gts=None)) if device.address in sleepers else device
            for device in snapshot.pci
        ),
        gpus=tuple(replace(gpu, pcie=replace(gpu.pcie, speed_gts=None)) for gpu in snapshot.gpus),
    )


def content_hash(snapshot: "Snapshot") -> str:
    """Return a hash over a snapshot's facts; times, counters, durations and how fast GPUs idle do not count."""
    import hashlib  # ranks decode messages, and hash none

    facts = replace(
        _without_idle_speeds(without_counters(snapshot)),
        generation=0,
        instance="",
        content_hash="",
        taken_at=0.0,
        probes=tuple(replace(report, duration_seconds=0.0) for report in snapshot.probes),
    )
    return hashlib.blake2b(to_json(facts), digest_size=16).hexdigest()
