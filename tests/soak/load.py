"""What clients ask a cluster all the time, and what answers they get."""

import asyncio
import random
import ssl
import threading
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field

import httpx

from tests.soak.cluster import Cluster, Node
from tests.support.group_client import SECRET, join_all, members

_NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
#: Asked of each daemon once in so many seconds.
_EVERY_SECONDS = 1.0
_PLAN_SECONDS = 60.0
_GROUP_SECONDS = 5.0


@dataclass
class Answers:
    """What came back, and what must not have."""

    by_status: Counter[str] = field(default_factory=Counter)  #: "GET /v1/node 200": how many
    broken: Counter[str] = field(default_factory=Counter)  #: no answer, by daemon and error
    wrong: list[str] = field(default_factory=list)

    def take(self, what: str, answer: httpx.Response) -> None:
        self.by_status[f"{what} {answer.status_code}"] += 1
        if answer.status_code == 503:
            if "retry-after" not in answer.headers and answer.request.url.path != "/readyz":
                self.wrong.append(f"{what}: 503 without Retry-After: {answer.text[:200]}")
        elif answer.status_code >= 500:
            self.wrong.append(f"{what}: {answer.status_code} {answer.text[:300]}")

    @property
    def total(self) -> int:
        return self.by_status.total()

    def shed(self) -> int:
        return sum(count for what, count in self.by_status.items() if what.endswith(" 503"))


class Load:
    """Clients in a thread of their own."""

    def __init__(self, cluster: Cluster, seed: int) -> None:
        self.answers = Answers()
        self._cluster = cluster
        self._random = random.Random(seed)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._all()), name="load")
        self.failure: BaseException | None = None

    def __enter__(self) -> "Load":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(60)
        if self.failure is not None:
            raise self.failure

    async def _all(self) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [
                    group.create_task(work)
                    for node in self._cluster.nodes
                    for work in (self._ask(node), self._poll(node), self._events(node), self._groups(node))
                ]
                tasks.append(group.create_task(self._plans(self._cluster.replay)))
                while not self._stop.is_set():  # noqa: ASYNC110 - set by another thread
                    await asyncio.sleep(0.2)
                for task in tasks:
                    task.cancel()
        except BaseException as error:  # noqa: BLE001 - raised by the thread that waits for this one
            self.failure = error

    def _client(self, node: Node, seconds: float = 15.0) -> httpx.AsyncClient:
        transport = httpx.AsyncHTTPTransport(uds=node.unix, verify=_NO_TLS)
        return httpx.AsyncClient(transport=transport, base_url="http://fabricd", timeout=seconds, trust_env=False)

    async def _take(self, node: Node, client: httpx.AsyncClient, method: str, path: str, **more: object) -> None:
        what = f"{node.name} {method} {path.partition('?')[0]}"
        try:
            answer = await client.request(method, path, **more)  # type: ignore[arg-type] # json, headers
        except httpx.TransportError as error:
            self.answers.broken[f"{node.name} {type(error).__name__}"] += 1
            await asyncio.sleep(0.5)
        else:
            self.answers.take(what, answer)

    async def _ask(self, node: Node) -> None:
        """Questions of all kinds, one after another."""
        etag = ""
        async with self._client(node) as client:
            questions = ["/livez", "/readyz", "/v1/node", "/v1/cluster", "/metrics", "/v1/export/matrix.txt"]
            questions += ["/v1/findings", "/v1/events", f"/v1/nodes/{node.name}", "/v1/nodes/nobody", "/openapi.json"]
            ends = [self._cluster.steady.name, self._cluster.other.name]
            if node is self._cluster.replay:
                ends = ["h100-0000/gpu0", "h100-0001/gpu3"]
            questions += ["/v1/paths?src={}&dst={}&explain=1".format(*ends)] * 4
            while True:
                await self._take(node, client, "GET", self._random.choice(questions))
                await self._take(node, client, "GET", "/v1/cluster?networks=1", headers={"If-None-Match": etag})
                await asyncio.sleep(_EVERY_SECONDS * self._random.uniform(0.5, 1.5))

    async def _poll(self, node: Node) -> None:
        async with self._client(node) as client:
            while True:
                await self._take(node, client, "GET", "/v1/cluster?wait=10&summary=1")
                await asyncio.sleep(0.5)

    async def _events(self, node: Node) -> None:
        """A stream that is opened again whenever it ends."""
        async with self._client(node, 30.0) as client:
            while True:
                with suppress(httpx.TransportError):
                    async with client.stream("GET", "/v1/events", headers={"Accept": "text/event-stream"}) as answer:
                        if answer.status_code != 200:
                            await answer.aread()
                        self.answers.take(f"{node.name} GET stream", answer)
                        async for _ in answer.aiter_lines():
                            pass
                await asyncio.sleep(1.0)

    async def _groups(self, node: Node) -> None:
        """A job of three ranks that meets, fences and leaves, again and again; what goes wrong is a lost job."""
        async with self._client(node, 40.0) as client:
            for number in range(1 << 30):
                ranks = members(client, 3, group=f"job-{node.name}-{number}", secret=SECRET)
                try:
                    await join_all(ranks)
                    async with ranks[0].watch(), ranks[1].watch(), ranks[2].watch():
                        await asyncio.gather(*(one.fence(0, {f"k{one.rank}": "v"}) for one in ranks))
                        await asyncio.gather(*(one.leave() for one in ranks))
                    self.answers.by_status[f"{node.name} job ended"] += 1
                except httpx.HTTPStatusError as error:
                    self.answers.take(f"{node.name} job", error.response)
                except (httpx.TransportError, TimeoutError, StopAsyncIteration) as error:
                    self.answers.broken[f"{node.name} job {type(error).__name__}"] += 1
                await asyncio.sleep(_GROUP_SECONDS)

    async def _plans(self, node: Node) -> None:
        request = {"nodes": ["h100-0000", "h100-0001"], "collective": "all_reduce", "bytes": 1 << 26}
        async with self._client(node, 90.0) as client:
            while True:
                await self._take(node, client, "POST", "/v1/plans", json=request)
                await asyncio.sleep(_PLAN_SECONDS)
