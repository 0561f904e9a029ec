"""The order of ranks over the nodes of a cluster."""

from fabricd.plan.order.bandwidth import PairBandwidth
from fabricd.plan.order.order import RankOrder, SlowestEdge, rank_order
from fabricd.plan.order.places import Crossing, RankPlace

__all__ = ["Crossing", "PairBandwidth", "RankOrder", "RankPlace", "SlowestEdge", "rank_order"]
