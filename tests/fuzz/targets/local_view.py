"""What a rank says that it sees, when it joins: the request's checks, and the plan that is made with it."""

from dataclasses import replace

from fabricd.cluster.groups_limits import Limits, check_join
from fabricd.errors import InputError, NoNetworkError
from fabricd.localview import LocalView, ViewGid, ViewHca, ViewInterface
from fabricd.model.codec import from_json, to_json
from fabricd.model.plan import GroupPlan
from fabricd.model.wire import JoinRequest
from fabricd.plan.group import AUTO, plan_group
from fabricd.plan.group_survey import survey
from tests.fuzz.target import Target
from tests.support.nodes import hgx, nic

_LIMITS = Limits()


def _view(host: str, number: int) -> LocalView:
    return LocalView(
        hostname=host,
        pid=100 + number,
        boot_id=f"boot-{host}",
        net_namespace="1",
        ipc_namespace="2",
        pid_namespace="3",
        shm_device="4:5",
        shm_bytes=1 << 30,
        cpus=(0, 1),
        interfaces=(
            ViewInterface(name="lo", up=True, loopback=True, addresses=("127.0.0.1/8", "::1/128")),
            ViewInterface(name="eth0", mac=f"02:00:00:00:00:0{number}", up=True, addresses=(f"10.1.0.{number}/24",)),
        ),
        hcas=(
            ViewHca(
                name="mlx5_0",
                node_guid=f"0000:0000:0000:000{number}",
                usable=True,
                ports=(1,),
                gids=(ViewGid(port=1, index=3, gid=f"::ffff:10.1.0.{number}", type="roce-v2", interface="eth0"),),
            ),
        ),
        gpu_uuids=(f"GPU-{host}-0", f"GPU-{host}-1"),
        imex_channels=(0,),
        node_id=f"id-{host}",
        versions=(("mpich", "5.0.2"), ("mpi4py", "4.1.0"), ("nccl", "2.27.3"), ("cupy", "14.0.0"), ("torch", "2.13.0")),
    )


def _node(host: str, number: int):
    return replace(hgx(host), interfaces=(nic("eth0", f"10.1.0.{number}/24", mac=f"02:00:00:00:00:0{number}"),))


_NODES = {f"id-{host}": _node(host, number) for number, host in enumerate("ab", 1)}
_OTHER = _view("b", 2)


def check(data: bytes) -> None:
    try:
        request = from_json(data, JoinRequest)
        assert from_json(to_json(request), JoinRequest) == request
        view = check_join(0, replace(request, world_size=2), _LIMITS)
    except InputError:
        return
    views = {0: view, 1: _OTHER}
    survey(views, _NODES)
    for engine in ("mpi", "gloo", AUTO):
        try:
            plan = plan_group(engine, views, _NODES)
        except (NoNetworkError, InputError):
            continue
        assert sorted(one.rank for one in plan.ranks) == [0, 1]
        assert from_json(to_json(plan), GroupPlan) == plan


TARGET = Target(
    check=check,
    seeds=lambda: [
        to_json(JoinRequest(world_size=2, claim="0" * 32, view=view, engine=engine))
        for engine, view in (
            ("mpi", _view("a", 1)),
            ("nccl", _view("a", 1)),
            ("auto", replace(_view("c", 3), node_id="", hcas=(), gpu_uuids=())),
            ("gloo", _view("b", 2)),
        )
    ],
    json=True,
)
