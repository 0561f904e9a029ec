"""What is wrong with all nodes, for those who ask again and again: worked out once for all who ask meanwhile."""

import asyncio
from dataclasses import dataclass, field

from fabricd.api.findings import recent_findings
from fabricd.api.services import Services
from fabricd.cluster.nodes import NodeMap
from fabricd.config import Config
from tests.support.nodes import hgx


@dataclass
class Clock:
    """Goes on by a second each time that it is read; what is kept is so kept for a time that is known."""

    now: float = field(default=0.0)

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


def test_many_who_ask_at_once_get_one_answer_and_later_another():
    async def run():
        nodes = NodeMap()
        nodes.set_local(hgx())
        clock = Clock()
        services = Services(config=Config(), nodes=nodes, clock=clock)
        first, *others = await asyncio.gather(*(recent_findings(services) for _ in range(8)))
        assert first.nodes == 1
        assert all(one is first for one in others)
        clock.now += 60.0
        assert await recent_findings(services) is not first

    asyncio.run(run())


def test_whoever_leaves_while_it_is_worked_out_leaves_the_others_their_turn():
    async def run():
        nodes = NodeMap()
        nodes.set_local(hgx())
        services = Services(config=Config(), nodes=nodes)
        leaver = asyncio.create_task(recent_findings(services))
        stayer = asyncio.create_task(recent_findings(services))
        await asyncio.sleep(0)
        leaver.cancel()
        assert (await stayer).nodes == 1

    asyncio.run(run())
