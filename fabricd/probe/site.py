"""Probe ``site``: what this daemon's configuration says of the node's networks (tables ``[[network]]``)."""

from collections.abc import Sequence
from dataclasses import dataclass

from fabricd.model.network import NetworkRule
from fabricd.probe.answers import ask
from fabricd.probe.base import ProbeContext, ProbeResult

#: Where a replay keeps them, in the folder of recorded answers.
RECORDED = "site.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteAnswer:
    """What the site says."""

    networks: tuple[NetworkRule, ...] = ()


class SiteProbe:
    """Makes the site's word a fact of this node, so that all who read its snapshot take it.

    Args:
        networks: the rules.
    """

    name = "site"
    deadline_seconds = 1.0

    def __init__(self, networks: Sequence[NetworkRule]) -> None:
        self._networks = tuple(networks)

    def run(self, ctx: ProbeContext) -> ProbeResult:
        """Return the rules; of a replay those that its own site had."""
        told = ask(ctx, RECORDED, SiteAnswer, lambda: SiteAnswer(networks=self._networks), from_files=True)
        return ProbeResult(facts={"site_networks": told.networks})
