"""Settings of the engines, with where each value comes from."""

from fabricd.plan.settings.job import as_seen
from fabricd.plan.settings.nccl import SiteChoices
from fabricd.plan.settings.settings_for import ENGINES, of_node, settings_for

__all__ = ["ENGINES", "SiteChoices", "as_seen", "of_node", "settings_for"]
