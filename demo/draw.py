"""Two hosts and two networks as chance wills: names, subnets, order, and which of the networks is the slow one."""

import random
from dataclasses import dataclass

from demo.hosts import NetworkSpec

SLOW_BITS_PER_SECOND = 200_000_000
_PREFIXES = ("eth", "ens", "eno", "enp", "net", "nic", "wan", "data", "fast", "slow", "ib", "x")


@dataclass(frozen=True, slots=True, kw_only=True)
class Draw:
    """What chance gave. Networks are called A and B here; no host knows these names."""

    networks: tuple[NetworkSpec, NetworkSpec]  #: in the order in which they are made
    slow: str  #: name of the shaped one
    control: str  #: name of the one over which daemons and ranks talk to one another

    @property
    def fast(self) -> str:
        """Name of the network that is not shaped."""
        return next(spec.name for spec in self.networks if spec.name != self.slow)


def draw(chance: random.Random) -> Draw:
    """Draw two networks for two hosts."""
    names = _interface_names(chance, 4)
    subnets = chance.sample([f"10.{i}.{j}.0/24" for i in range(10, 250) for j in (0, 7, 90)], 2)
    slow = chance.choice("AB")
    specs = [
        NetworkSpec(
            name,
            subnet,
            interfaces=(names.pop(), names.pop()),
            bits_per_second=SLOW_BITS_PER_SECOND if name == slow else None,
        )
        for name, subnet in zip("AB", subnets, strict=True)
    ]
    return Draw(networks=(specs[0], specs[1]), slow=slow, control=chance.choice("AB"))


def _interface_names(chance: random.Random, count: int) -> list[str]:
    """Return different names that tell nothing, or the wrong thing."""
    names: set[str] = set()
    while len(names) < count:
        names.add(f"{chance.choice(_PREFIXES)}{chance.randrange(100)}")
    return chance.sample(sorted(names), count)
