"""Plans that a daemon makes: it knows the map, and has numpy and scipy."""

from collections.abc import Sequence
from dataclasses import replace

from fabric_client.cli.job_nodes import JobNodes
from fabric_client.connection import Connection
from fabricd.model.collective import CollectivePlan
from fabricd.model.plan_request import PlanRequest
from fabricd.plan.job_plan import gpus_taking_part, taking_part

#: A daemon makes one plan after another, each within a minute.
_SECONDS = 130.0


def plan_by_daemon(
    connection: Connection, nodes: JobNodes, chosen: Sequence[int], question: PlanRequest
) -> CollectivePlan:
    """Return the plan of a job.

    Args:
        connection: to the daemon.
        nodes: the job's. None is fetched unless ranks are chosen, and then none after the last rank's.
        chosen: ranks that take part, counted over the nodes' GPUs; empty for all.
        question: all else.

    Raises:
        InputError: a rank that there is not, more nodes than a daemon plans for, what cannot be planned.
        FabricError: what else the daemon answers.
    """
    ranks = tuple(nodes.ids.values())
    if chosen:
        kept, numbers = taking_part(nodes, chosen)
        names = [f"{nodes.ids[node]}/gpu{gpu}" for node, one in kept.items() for gpu in gpus_taking_part(one)]
        ranks = tuple(names[number] for number in numbers)
    return connection.post("/v1/plans", CollectivePlan, body=replace(question, ranks=ranks), seconds=_SECONDS)
