"""Probe ``site``: what this daemon's configuration says of the node's networks (tables ``[[network]]``)."""

from collections.abc import Sequence

from fabricd.model.network import NetworkRule
from fabricd.probe.base import ProbeContext, ProbeResult


class SiteProbe:
    """Makes the site's word a fact of this node, so that all who read its snapshot take it.

    Args:
        networks: the rules.
    """

    name = "site"
    deadline_seconds = 1.0

    def __init__(self, networks: Sequence[NetworkRule]) -> None:
        self._networks = tuple(networks)

    def run(self, _ctx: ProbeContext) -> ProbeResult:
        """Return the rules."""
        return ProbeResult(facts={"site_networks": self._networks})
