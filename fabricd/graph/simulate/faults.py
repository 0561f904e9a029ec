"""What is broken in a simulated cluster: ports drawn by the seed, so that the same design has the same faults."""

import random
from collections.abc import Mapping
from enum import StrEnum

from fabricd.errors import InputError
from fabricd.graph.simulate.design import Design, Ports


class Fault(StrEnum):
    """What is wrong with a port."""

    DEGRADED = "degraded"  #: it runs at half its rate
    MISSING = "missing"  #: its adapter is not there
    DOWN = "down"  #: it has no link


#: By node and by place in ``Ports.rails``.
Faults = Mapping[tuple[int, int], Fault]


def draw(design: Design, ports: Ports) -> Faults:
    """Return which ports of the rails are broken.

    Raises:
        InputError: there are fewer ports, or none whose rate is known could run at half of it.
    """
    if design.degraded and not ports.rails[0].speed:
        raise InputError("the template's ports do not tell their rate, so none can run at half of it")
    wanted = [Fault.DEGRADED] * design.degraded + [Fault.MISSING] * design.missing + [Fault.DOWN] * design.down
    total = design.nodes * len(ports.rails)
    if len(wanted) > total:
        raise InputError(f"{len(wanted)} ports are to be broken, but the rails have only {total}")
    drawn = random.Random(design.seed).sample(range(total), len(wanted))  # noqa: S311 - a draw that can be repeated
    return {divmod(place, len(ports.rails)): fault for place, fault in zip(drawn, wanted, strict=True)}
