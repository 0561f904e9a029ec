"""Machines drawn from a seed, in NCCL's XML: what is odd about real ones, in combinations that nobody writes down."""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

_GENERATIONS = (70, 80, 86, 89, 90, 100)
_PORT_MEGABITS = (10_000, 25_000, 50_000, 100_000, 200_000, 400_000, 800_000)
_PCIE_SPEEDS = ("8.0 GT/s PCIe", "16.0 GT/s PCIe", "32.0 GT/s PCIe", "64.0 GT/s PCIe")
_CPUS = (
    'arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="85"',
    'arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="143"',
    'arch="x86_64" vendor="AuthenticAMD" familyid="143" modelid="49"',
    'arch="arm64" vendor="0" familyid="0" modelid="0"',
)
_NVSWITCH = "0x068000"
#: Pairs of GPUs and the number of NVLinks between them.
_Links = dict[tuple[int, int], int]


@dataclass
class _Draft:
    """A machine being drawn: lines of XML for each CPU, and the addresses of its GPUs."""

    chance: random.Random
    gpus: int
    sm: int
    lines: list[str] = field(default_factory=list)
    devices: int = 0
    ports: int = 0

    def address(self) -> str:
        self.devices += 1
        return f"0000:{0x10 + self.devices // 8:02x}:{self.devices % 8:02x}.0"

    def link(self, best: str) -> str:
        """Return the attributes of a PCIe link: mostly as good as can be, at times narrow or slow."""
        speed = best if self.chance.random() < 0.9 else self.chance.choice(_PCIE_SPEEDS)
        width = 16 if self.chance.random() < 0.9 else self.chance.choice((4, 8))
        return f'link_speed="{speed}" link_width="{width}"'


def random_machine(seed: int) -> str:
    """Return the topology of a machine: 1 to 16 GPUs on 1 to 4 sockets, any of the usual ways to join them.

    The same seed gives the same machine.
    """
    chance = random.Random(seed)
    gpus = chance.choice((1, 2, 2, 3, 4, 4, 4, 5, 6, 7, 8, 8, 8, 8, 10, 12, 16))
    draft = _Draft(chance, gpus, chance.choice(_GENERATIONS))
    sockets = chance.choice((1, 1, 2, 2, 2, 4))
    best = chance.choice(_PCIE_SPEEDS[:3])
    cpu = chance.choice(_CPUS)
    links = chance.choice((_none, _none, _switched, _switched, _meshed, _paired, _chained, _lopsided))(draft)
    megabits = chance.choice(_PORT_MEGABITS)
    cards = chance.choice((0, 1, 1, 2, 2, 4, gpus, gpus))
    homes = [chance.randrange(sockets) if chance.random() < 0.2 else at * sockets // gpus for at in range(gpus)]
    card_homes = [at % sockets for at in range(cards)]
    draft.lines.append('<system version="1">')
    for socket in range(sockets):
        draft.lines.append(f'<cpu numaid="{socket}" affinity="{1 << socket:x}" {cpu}>')
        own = [gpu for gpu in range(gpus) if homes[gpu] == socket]
        own_cards = [card for card in range(cards) if card_homes[card] == socket]
        while own or own_cards:
            group = chance.choice((1, 2, 4, 8))
            _switch(draft, own[:group], len(own_cards[: max(1, group // 2)]), best, links, megabits)
            own, own_cards = own[group:], own_cards[max(1, group // 2) :]
        draft.lines.append("</cpu>")
    draft.lines.append("</system>")
    return "\n".join(draft.lines) + "\n"


def _switch(draft: _Draft, gpus: list[int], cards: int, best: str, links: _Links, megabits: int) -> None:
    """Draw some GPUs and cards below a PCIe switch, or two on top of each other, or straight below the CPU."""
    depth = draft.chance.choice((0, 1, 1, 1, 2))
    for _ in range(depth):
        draft.lines.append(f'<pci busid="{draft.address()}" class="0x060400" {draft.link(best)}>')
    for gpu in gpus:
        draft.lines.append(f'<pci busid="{_gpu_address(gpu)}" class="0x030200" {draft.link(best)}>')
        gdr = int(draft.chance.random() < 0.9)
        draft.lines.append(f'<gpu dev="{gpu}" sm="{draft.sm}" rank="{gpu}" gdr="{gdr}">')
        draft.lines += _nvlinks(gpu, links)
        draft.lines += ["</gpu>", "</pci>"]
    for _ in range(cards):
        _card(draft, best, megabits)
    draft.lines += ["</pci>"] * depth


def _card(draft: _Draft, best: str, megabits: int) -> None:
    chance = draft.chance
    draft.lines += [f'<pci busid="{draft.address()}" class="0x020000" {draft.link(best)}>', "<nic>"]
    for port in range(1 if chance.random() < 0.85 else 2):
        speed = megabits if chance.random() < 0.9 else chance.choice(_PORT_MEGABITS)
        gdr = int(chance.random() < 0.9)
        draft.lines.append(
            f'<net name="mlx5_{draft.ports}" dev="{draft.ports}" latency="0" speed="{speed}" port="{port + 1}" '
            f'guid="0x{0x1000 + draft.ports:x}" maxconn="131072" gdr="{gdr}" net="1"/>'
        )
        draft.ports += 1
    draft.lines += ["</nic>", "</pci>"]


def _gpu_address(gpu: int) -> str:
    return f"0001:{0x40 + gpu:02x}:00.0"


def _nvlinks(gpu: int, links: _Links) -> Iterator[str]:
    for (first, second), count in sorted(links.items()):
        if gpu == first:
            target, kind = (_gpu_address(second), "0x030200") if second >= 0 else ("ffffffff:ffff:ff", _NVSWITCH)
            yield f'<nvlink target="{target}" count="{count}" tclass="{kind}"/>'


def _none(draft: _Draft) -> _Links:
    return {}


def _switched(draft: _Draft) -> _Links:
    """All on NVSwitches; at times some links of one are down, or one has none."""
    count = {70: 6, 80: 12}.get(draft.sm, 18)
    links = {(gpu, -1): count for gpu in range(draft.gpus)}
    if draft.chance.random() < 0.3:
        weak = draft.chance.randrange(draft.gpus)
        links[weak, -1] -= draft.chance.choice((1, count // 2, count))
    return {pair: many for pair, many in links.items() if many}


def _both_ways(pairs: Iterator[tuple[int, int]], count: Callable[[], int]) -> _Links:
    links: _Links = {}
    for first, second in pairs:
        links[first, second] = links[second, first] = count()
    return links


def _meshed(draft: _Draft) -> _Links:
    """Any pair may have some."""
    chance = draft.chance
    some = ((a, b) for a in range(draft.gpus) for b in range(a) if chance.random() < 0.4)
    return _both_ways(some, lambda: chance.choice((1, 1, 2, 4)))


def _paired(draft: _Draft) -> _Links:
    """Bridges between neighbours; an odd one has none."""
    return _both_ways(((at, at + 1) for at in range(0, draft.gpus - 1, 2)), lambda: draft.chance.choice((2, 4, 12)))


def _chained(draft: _Draft) -> _Links:
    """A chain that need not close."""
    return _both_ways(((at, at + 1) for at in range(draft.gpus - 1)), lambda: draft.chance.choice((1, 2, 4)))


def _lopsided(draft: _Draft) -> _Links:
    """As a mesh, but some links are known at one end only."""
    links = _meshed(draft)
    return {pair: many for pair, many in links.items() if draft.chance.random() < 0.85}
