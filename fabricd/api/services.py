"""What handlers work with."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Annotated, cast

from fastapi import Depends, Request

from fabricd.api.longpoll import LongPolls
from fabricd.api.plan_process import Plans
from fabricd.cluster.agent import AgentMeasurer, AgentPlanner, Directory
from fabricd.cluster.groups import GroupService
from fabricd.cluster.groups_planner import MeasuringPlanner
from fabricd.cluster.groups_record import GroupStore
from fabricd.cluster.map_client import MapClient
from fabricd.cluster.measuring import Measurer
from fabricd.cluster.nodes import NodeMap
from fabricd.cluster.overview import Overview
from fabricd.cluster.pairs import PairMeasurer
from fabricd.cluster.peer_post import PeerPost
from fabricd.cluster.placement_files import PlacementFiles
from fabricd.config import Config
from fabricd.credentials import Credentials
from fabricd.findings.find import KnownFindings
from fabricd.metrics import Metrics
from fabricd.model.finding import Findings
from fabricd.paths.ends import Ends
from fabricd.shortage import Shortages


@dataclass(frozen=True, slots=True)
class KeptFindings:
    """What was found lately."""

    findings: Findings
    until: float  #: monotonic time from which it is old


@dataclass(slots=True, kw_only=True)
class Services:
    """The parts of the daemon that answer requests. ``config`` and ``credentials`` change when they are reloaded."""

    config: Config
    nodes: NodeMap
    metrics: Metrics = field(default_factory=Metrics)
    polls: LongPolls = field(default_factory=LongPolls)
    shortages: Shortages = field(default_factory=Shortages)
    plans: Plans = field(default_factory=Plans)
    credentials: Credentials = field(default_factory=Credentials)
    #: Reads the configuration again; raises ConfigError. None: it comes from no file.
    reload: Callable[[], Awaitable[None]] | None = None
    #: Path searches at once: they compete for the interpreter with the event loop.
    searches: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(2))
    #: Names and graphs of the nodes that paths were asked for.
    ends: Ends = field(default_factory=Ends)
    #: How near this daemon is to the memory that it may have; "" when there is enough left.
    near_memory_limit: Callable[[], str] = lambda: ""
    #: Monotonic time of the event loop's last heartbeat.
    beat_at: float = field(default_factory=time.monotonic)
    clock: Callable[[], float] = time.monotonic
    findings: KnownFindings = field(init=False)
    kept_findings: KeptFindings | None = None
    #: Whoever asks for what is wrong with all nodes while that is worked out waits for the same.
    finding: asyncio.Lock = field(default_factory=asyncio.Lock)
    measurer: Measurer = field(init=False)
    pairs: PairMeasurer = field(init=False)
    #: Of many pairs, one at a time: two would measure each other.
    sweeping: asyncio.Lock = field(default_factory=asyncio.Lock)
    groups: GroupService = field(init=False)
    overview: Overview = field(init=False)
    placement_files: PlacementFiles = field(init=False)
    #: Of an agent: who holds the map. None: this daemon does.
    maps: MapClient | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.findings = KnownFindings(self.ends.ports)
        post = PeerPost(lambda: self.credentials.peers)
        records = self.config.records_dir
        store = GroupStore(records / "groups") if records else None
        directory = None
        if self.config.role == "agent":
            self.maps = MapClient(lambda: self.config.map_nodes, lambda: self.credentials.peers, self.nodes.instance)
            directory = Directory(self.nodes, self.maps, clock=self.clock)
            self.measurer = AgentMeasurer(self.nodes, post, directory, clock=self.clock)
        else:
            self.measurer = Measurer(self.nodes, post, clock=self.clock)
        self.placement_files = PlacementFiles(self.config.placement_files)
        self.overview = Overview(
            self.nodes, self.measurer, self.placement_files, self.searches, self.ends.ports, clock=self.clock
        )
        self.pairs = PairMeasurer(self.nodes, self.measurer, post)
        planner = MeasuringPlanner(
            self.nodes,
            self.pairs,
            self.placement_files,
            max_age_seconds=lambda: self.config.measure_max_age_seconds,
        )
        self.groups = GroupService(
            AgentPlanner(planner, directory) if directory else planner,
            store=store,
            shortages=self.shortages,
            clock=self.clock,
        )


async def _services(request: Request) -> Services:  # FastAPI runs plain functions in threads, which costs more
    return cast(Services, request.app.state.services)


#: Annotation of a handler's parameter that takes the services.
UsesServices = Annotated[Services, Depends(_services)]
