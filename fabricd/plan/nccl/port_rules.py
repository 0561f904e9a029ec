"""By which ports a channel of NCCL's search may enter and leave a machine. Source: NCCL 2.30, graph/search.cc."""

from collections.abc import Sequence

from fabricd.paths.nccl.system import Net
from fabricd.plan.nccl.graphs import Pattern
from fabricd.plan.nccl.working import Working


def same_port(nets: Sequence[Net], one: int, other: int) -> bool:
    """Return whether two of a machine's ports, by their places, are one."""
    return nets[one].key == nets[other].key


def may_enter(now: Working, nets: Sequence[Net], net: int) -> bool:
    """Return whether the next channel may enter by a port: the second of a crossing pair by the first one's exit.

    Args:
        now: the channels so far.
        nets: the machine's ports.
        net: the port's place among them.
    """
    crossing = now.pattern is Pattern.RING and now.cross_nic == 2 and now.channels % 2 == 1
    return not crossing or same_port(nets, net, now.ways[now.channels - 1][1])


def may_leave(now: Working, nets: Sequence[Net], net: int) -> bool:
    """Return whether the channel that came in by one port may leave by another; see :func:`may_enter`."""
    entry = now.ways[now.channels][0]
    one, other = nets[entry], nets[net]
    if None not in (one.plane, other.plane) and one.plane != other.plane:
        return False
    if now.pattern is Pattern.TREE:
        return same_port(nets, net, entry)
    if now.pattern is Pattern.RING and now.cross_nic == 2:
        return now.channels % 2 == 0 or same_port(nets, net, now.ways[now.channels - 1][0])
    if now.cross_nic:
        return True
    if None not in (one.rail, other.rail):
        return one.rail == other.rail
    return (one.guid, one.port) == (other.guid, other.port)


def head_beside(now: Working, gpu: int, choices: int) -> int | None:
    """Return the GPU beside a port for the next channel of NVLS to start from; None if it is the head of one already.

    Args:
        now: the channels so far.
        gpu: the one beside the port; negative for none.
        choices: how many ports there are to choose from.
    """
    taken = {now.orders[channel][0] for channel in range(now.channels)}
    return gpu if gpu >= 0 and now.channels < choices and gpu not in taken else None
