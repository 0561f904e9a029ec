"""Probe ``numa``: the NUMA nodes with their CPUs, memory and distances, from /sys/devices/system/node."""

import re
from pathlib import Path

from fabricd.model.device import NumaNode
from fabricd.probe.base import ProbeAbsent, ProbeContext, ProbeResult
from fabricd.probe.files import FieldReader
from fabricd.probe.host import memory_total

_NODE = re.compile(r"^node(\d{1,5})$")
_MAX_DISTANCE = 255  # an ACPI SLIT entry is one byte


class NumaProbe:
    """NUMA nodes, those without CPUs (memory of a GPU, CXL) included."""

    name = "numa"
    deadline_seconds = 5.0

    def run(self, ctx: ProbeContext) -> ProbeResult:
        """Read the nodes.

        Raises:
            ProbeAbsent: sysfs shows neither nodes nor CPUs.
        """
        read = FieldReader()
        base = ctx.roots.sys / "devices/system/node"
        indices = sorted(int(match[1]) for name in read.entries(base) if (match := _NODE.match(name)))
        if not indices:
            return _single_node(ctx, read)
        nodes = tuple(_read_node(base / f"node{index}", index, len(indices), read) for index in indices)
        return ProbeResult(facts={"numa": nodes}, notes=tuple(read.notes))


def _read_node(path: Path, index: int, count: int, read: FieldReader) -> NumaNode:
    return NumaNode(
        index=index,
        cpus=read.cpu_list(path / "cpulist"),
        memory_bytes=memory_total(path / "meminfo", read),
        distances=_distances(path / "distance", count, read),
    )


def _distances(path: Path, count: int, read: FieldReader) -> tuple[int, ...]:
    words = (read.text(path) or "").split()
    if not words:
        return ()
    if len(words) != count or not all(word.isdecimal() and 0 < int(word) <= _MAX_DISTANCE for word in words):
        read.note(path, f"not {count} distances: {' '.join(words)[:60]!r}")
        return ()
    return tuple(int(word) for word in words)


def _single_node(ctx: ProbeContext, read: FieldReader) -> ProbeResult:
    """A kernel built without NUMA has one memory: say so as node 0, which is how it numbers devices too."""
    cpus = read.cpu_list(ctx.roots.sys / "devices/system/cpu/online")
    if not cpus:
        raise ProbeAbsent(f"no NUMA nodes: {ctx.roots.sys}/devices/system/node and .../cpu are missing")
    node = NumaNode(index=0, cpus=cpus, memory_bytes=memory_total(ctx.roots.proc / "meminfo", read), distances=(10,))
    read.note(ctx.roots.sys / "devices/system/node", "missing: the kernel has no NUMA, all CPUs are shown as node 0")
    return ProbeResult(facts={"numa": (node,)}, notes=tuple(read.notes))
