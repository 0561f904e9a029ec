"""Everything else that goes over the wire between daemons, clients and ranks: ``{"kind": NAME, "message": ...}``."""

from collections.abc import Callable
from typing import Any

import msgspec

from fabric_client.engine.settings import choose_settings
from fabricd.api.message import WIRE_TYPES
from fabricd.cluster.groups_access import Access
from fabricd.cluster.groups_limits import Limits, check_keys
from fabricd.cluster.groups_record import GroupRecord, MemberRecord, state_of
from fabricd.errors import EngineError, InputError
from fabricd.localview import LocalView, ViewInterface
from fabricd.model.cluster import ClusterStatus, NodeStatus
from fabricd.model.codec import from_json, to_json
from fabricd.model.collective import CollectivePlan
from fabricd.model.event import Event, EventKind, EventPage
from fabricd.model.measurement import ListenAnswer, ListenRequest, MeasureRequest
from fabricd.model.path import PathAnswer, Transport
from fabricd.model.plan import GroupPlan, Island, NetworkChoice, RankSlice, Setting
from fabricd.model.plan_request import PlanRequest
from fabricd.model.problem import Problem
from fabricd.model.wire import FenceAnswer, FenceRequest, GroupPhase, GroupStatus, JoinAnswer, WatchEvent
from fabricd.plan.job_plan import nodes_of, with_own_node
from fabricd.plan.worker import Refusal
from tests.fuzz.target import Target
from tests.support.nodes import hgx, mapping

_KINDS = {kind.__name__: kind for kind in (*WIRE_TYPES, GroupRecord, Refusal)}
_VIEW = LocalView(interfaces=(ViewInterface(name="eth0", up=True),))
_NODES = mapping(hgx("a"), hgx("b"))


def check(data: bytes) -> None:
    try:
        told = from_json(data, dict[str, msgspec.Raw])
        kind = _KINDS[from_json(bytes(told["kind"]), str)]
        message: Any = from_json(bytes(told["message"]), kind)
    except (InputError, KeyError):
        return
    assert from_json(to_json(message), kind) == message
    use = _USES.get(kind)
    if use is not None:
        try:
            use(message)
        except InputError:
            return


def _fence(message: FenceRequest) -> None:
    check_keys(message.rank, message, Limits())


def _settings(message: JoinAnswer) -> None:
    for one in message.plan.ranks:
        try:
            chosen, _ = choose_settings(one.settings, _VIEW, {})
        except EngineError:
            continue
        assert not any("\0" in value or name.startswith("LD_") for name, value in chosen.items())


def _record(message: GroupRecord) -> None:
    state_of(message, 0.0, max_bytes=1 << 20).status()


def _question(message: PlanRequest) -> None:
    if not message.faults():
        nodes_of(with_own_node(message, "id-a"), _NODES)


_USES: dict[type, Callable[[Any], None]] = {
    FenceRequest: _fence, JoinAnswer: _settings, GroupRecord: _record, PlanRequest: _question,
}  # fmt: skip

_PLAN = GroupPlan(
    engine="mpi",
    size=2,
    ranks=tuple(
        RankSlice(
            rank=rank,
            node=host,
            host_index=rank,
            devices=("eth0",),
            address=f"10.1.0.{rank + 1}",
            settings=(
                Setting(name="UCX_NET_DEVICES", value="eth0", because="it joins the hosts"),
                Setting(name="UCX_TLS", value="self,tcp", scope="rank", rank=rank),
            ),
        )
        for rank, host in enumerate("ab")
    ),
    networks=(NetworkChoice(network="10.1.0.0/24", transport=Transport.ETHERNET, chosen=True),),
    islands=(Island(network="a", transport=Transport.SHM, ranks=(0,), leader=0),),
    process_mapping="(vector,(0,2,1))",
)
_RECORD = GroupRecord(
    name="job",
    incarnation=0,
    size=2,
    engine="mpi",
    kvsname="ab" * 16,
    owner="uid 0",
    access=Access(salt="00", uid=0),
    members=tuple(MemberRecord(rank=rank, claim="c" * 32, host="a", pid=9, left=bool(rank)) for rank in range(2)),
    rounds_done=1,
    last_keys={"key": "value"},
    plan=_PLAN,
)
_MESSAGES = (
    JoinAnswer(group="job", incarnation=0, rank=0, size=2, kvsname="ab" * 16, plan=_PLAN),
    GroupStatus(group="job", incarnation=0, size=2, phase=GroupPhase.FORMING, present=(0,), missing=(1,)),
    FenceRequest(rank=0, keys={"-bc-0": "description#n0$port#5$"}),
    FenceAnswer(round=0, keys={"-bc-0": "description#n0$port#5$"}),
    WatchEvent(kind="lost", ranks=(1,), reason="it is gone"),
    MeasureRequest(dst_node="id-b", src_address="10.0.0.1", dst_address="10.0.0.2"),
    ListenRequest(address="10.0.0.1", client_address="10.0.0.2"),
    ListenAnswer(port=1234, token="ab" * 16),
    PlanRequest(ranks=("a", "b/gpu1"), without=("a/mlx5_0",), port_speeds=(("b/mlx5_1", 1e9),)),
    PlanRequest(links_down=("a/gpu0-nvswitch:1",)),
    CollectivePlan(collective="all_reduce", bytes=1 << 30, ranks=("a/gpu0",)),
    PathAnswer(src="a/eth0", dst="b/eth0"),
    EventPage(cursor="i-1", events=(Event(kind=EventKind.NODE_JOINED, node_id="id-a"),)),
    Problem(type="t", title="t", status=400, detail="d", code="bad-input"),
    ClusterStatus(instance="i", generation=1, nodes=(NodeStatus(node_id="a", name="a", state="ok"),)),
    _RECORD,
)  # fmt: skip
TARGET = Target(
    check=check,
    seeds=lambda: [to_json({"kind": type(message).__name__, "message": message}) for message in _MESSAGES],
    json=True,
)
