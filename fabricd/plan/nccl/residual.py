"""What channels have left on each link and port.

NCCL rounds it to thousandths of a GB/s at every change; all its speeds, and the shares of them that some links carry,
are whole thousandths. So thousandths are counted here, in integers.
"""

import math

from fabricd.plan.nccl.machine import PARTS, Machine, Track

THOUSANDTHS = 1000
#: Single precision puts a link of 20.6 GB/s a little below or above.
_SLACK = 1e-3


class Residual:
    """Bandwidth left, in thousandths of a GB/s.

    Attributes:
        links: by link number.
        nets: by port index.
    """

    def __init__(self, machine: Machine) -> None:
        self.links = [math.floor(bandwidth * THOUSANDTHS + _SLACK) for bandwidth in machine.capacity]
        self.nets = [math.floor(net.bandwidth * THOUSANDTHS + _SLACK) for net in machine.nets]
        ports = [(net.guid, net.port) for net in machine.nets]
        #: Ports that are one to the network: several indices of one adapter's port.
        self._same = [[other for other, port in enumerate(ports) if port == own] for own in ports]

    def take(self, track: Track, amount: int) -> bool:
        """Take bandwidth from every link of a path; from none if one has too little."""
        links = self.links
        for number in track.plain:
            if links[number] < amount:
                return False
        for number, parts in track.weighted:
            if links[number] < amount * parts // PARTS:
                return False
        self.give(track, -amount)
        return True

    def give(self, track: Track, amount: int) -> None:
        """Give back what was taken."""
        links = self.links
        for number in track.plain:
            links[number] += amount
        for number, parts in track.weighted:
            links[number] += amount * parts // PARTS

    def take_port(self, net: int, amount: int) -> None:
        """Take bandwidth, negative to give it back, from a port under all its indices."""
        for other in self._same[net]:
            self.nets[other] -= amount
