"""The map in forms that other programs read."""

from fabricd.plan.export.formats import CLUSTER_FORMATS, NODE_FORMATS, Exported, export_cluster, export_node

__all__ = ["CLUSTER_FORMATS", "NODE_FORMATS", "Exported", "export_cluster", "export_node"]
