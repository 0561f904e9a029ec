"""Questions for a plan, as anybody with the scope may ask them: a plan that can be told, or a plain refusal."""

from fabricd.errors import InputError
from fabricd.model.codec import from_json, to_json
from fabricd.model.collective import CollectivePlan
from fabricd.model.plan_request import PlanRequest
from fabricd.plan.job_plan import nodes_of, plan_job
from tests.fuzz.target import Target
from tests.support.nodes import hgx, mapping

_NODES = mapping(hgx("a", gpus=3), hgx("b", gpus=2, lid=10))


def check(data: bytes) -> None:
    try:
        request = from_json(data, PlanRequest)
        if request.faults():
            return
        plan = plan_job(request, nodes_of(request, _NODES))
    except InputError:
        return
    assert from_json(to_json(plan), CollectivePlan) == plan


TARGET = Target(
    check=check,
    seeds=lambda: [
        to_json(request)
        for request in (
            PlanRequest(),
            PlanRequest(ranks=("a/gpu0", "b/gpu1"), collective="all_gather", routes="free"),
            PlanRequest(ranks=("b",), collective="broadcast", kind="trees", bytes=1 << 20),
            PlanRequest(ranks=("a", "b"), collective="reduce_scatter", view="nccl"),
            PlanRequest(without=("a/mlx5_0", "gpu2"), links_down=("gpu0-nvswitch:1",)),
            PlanRequest(ranks=("a", "b"), port_speeds=(("b/mlx5_1", 1e9),)),
        )
    ],
    json=True,
    max_bytes=4096,
)
