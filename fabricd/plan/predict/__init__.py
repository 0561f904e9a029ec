"""The time that a collective takes: a model fitted to measured results of real clusters, with its error.

``predict`` prices what ``fabricd.plan.nccl.emulate.plan`` says that NCCL will do::

    topology = merge_ports(topology)
    nccl = plan(topology, nodes=2)
    predict(nccl, conditions_of(topology), Collective.ALL_REDUCE, 1 << 30)

NCCL's own model is ``NcclPlan.choose``.
"""

from fabricd.plan.predict.calibration import Calibration
from fabricd.plan.predict.conditions import Conditions, conditions_of, virtual_of
from fabricd.plan.predict.model import predict
from fabricd.plan.predict.ports import merge_ports

__all__ = ["Calibration", "Conditions", "conditions_of", "merge_ports", "predict", "virtual_of"]
