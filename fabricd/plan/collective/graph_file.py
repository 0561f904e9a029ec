"""Our rings in the form of NCCL's graph file (NCCL_GRAPH_FILE), for the machines of one kind.

The file holds the rings alone: NCCL then searches as many tree channels by itself. It names GPUs and ports by their
index on the machine, in hexadecimal digits, so that one file serves all machines that are alike. A process with that
variable obeys it for every communicator, and a communicator that lacks one of the GPUs fails.

Source: NCCL 2.30, graph/search.cc (ncclTopoGetGraphFromXml and the functions that dump one), graph/xml.h.
"""

from collections.abc import Iterator, Sequence

from fabricd.errors import InputError
from fabricd.graph.nccl_xml import NCCL_MAX_CHILDREN, Element, render
from fabricd.paths.nccl.kinds import PathKind
from fabricd.paths.nccl.system import Device, node_key
from fabricd.plan.collective.cluster import Part
from fabricd.plan.collective.columns import Segment
from fabricd.plan.collective.lanes import Lane
from fabricd.plan.collective.planner import Planner
from fabricd.plan.nccl.graphs import Pattern

_VERSION = "1"
_RING_ID = "0"
#: NCCL reads no more elements than this.
_MAX_ELEMENTS = 4096


def graph_file(planner: Planner, machine: int = 0) -> str:
    """Return the file for one machine of a job, and for all that are like it.

    Args:
        planner: of the job.
        machine: its place in the job's order.

    Raises:
        InputError: no ring, a machine that NCCL splits, more GPUs than fit, rings that only free routes have.
    """
    plan = planner.nccl
    if planner.alone:
        raise InputError("one rank has no ring to tell NCCL of")
    if len(plan.members) > len(planner.request.order):
        raise InputError("NCCL splits a machine of this job, and reads one file for all its parts")
    equal = planner.equal_speed
    if equal is None:
        raise InputError("no ring: some rank cannot be reached from another")
    number = plan.members[machine].part
    part = planner.engine_parts[number]
    lanes = equal.lanes[number]
    size = 2 + len(lanes) * (1 + part.fabric.ranks + (2 if part.fabric.nets else 0))
    if size > _MAX_ELEMENTS or part.fabric.ranks + 2 > NCCL_MAX_CHILDREN:
        raise InputError(f"{len(lanes)} rings over {part.fabric.ranks} GPUs", hint="more than NCCL reads of a file")
    graph = Element("graph", _attributes(part, lanes, equal.speed), tuple(_channels(part, lanes)))
    return render(Element("graphs", {"version": _VERSION}, (graph,)))


def _attributes(part: Part, lanes: Sequence[Lane], speed: float) -> dict[str, str]:
    segments = [lane.even for lane in lanes]
    crossed = any(lane.even != lane.odd for lane in lanes)  # then all lanes come in pairs that change places
    nets = part.fabric.nets
    return {
        "id": _RING_ID,
        "pattern": str(int(Pattern.RING)),
        "crossnic": "2" if crossed else str(int(any(one.entry != one.leave for one in segments))),
        "nchannels": str(len(lanes)),
        "speedintra": _down(speed),
        "speedinter": _down(speed),
        "latencyinter": f"{max((net.latency for net in nets), default=0.0):g}",
        "typeintra": _worst(part, segments, between=False).name,
        "typeinter": _worst(part, segments, between=True).name,
        "samechannels": str(int(len({one.order for one in segments}) == 1)),
    }


def _down(speed: float) -> str:
    """Return a speed in six digits, rounded down: the sum must not exceed any link."""
    text = f"{speed:.6g}"
    return text if float(text) <= speed else f"{speed * (1 - 1e-5):.6g}"


def _worst(part: Part, segments: Sequence[Segment], *, between: bool) -> PathKind:
    fabric = part.fabric
    points = [*fabric.gpus, *fabric.nets]
    kinds = [
        fabric.table.get(points[src], points[dst]).kind
        for segment in segments
        for src, dst in segment.steps(fabric.ranks)
        if (max(src, dst) >= fabric.ranks) == between
    ]
    return PathKind(max(kinds, default=PathKind.PIX if between else PathKind.LOC))


def _channels(part: Part, lanes: Sequence[Lane]) -> Iterator[Element]:
    fabric = part.fabric
    for lane in lanes:
        segment = lane.even
        gpus = [Element("gpu", {"dev": _index(fabric.gpus[rank].device)}) for rank in segment.order]
        if segment.entry < 0:
            yield Element("channel", {}, tuple(gpus))
            continue
        ends = [Element("net", {"dev": f"0x{fabric.nets[port].key:x}"}) for port in (segment.entry, segment.leave)]
        yield Element("channel", {}, (ends[0], *gpus, ends[1]))


def _index(device: Device) -> str:
    return f"0x{node_key(device.host, device.dev):x}"
