"""The settings of a job for some engines, each with the rule and the fact it came from."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from types import MappingProxyType

from fabricd.errors import UnknownNameError
from fabricd.model.path import Policy
from fabricd.model.plan import Setting
from fabricd.model.snapshot import Snapshot
from fabricd.plan.settings.job import Job, job_of
from fabricd.plan.settings.nccl import SiteChoices, nccl_settings
from fabricd.plan.settings.others import gloo_settings, libfabric_settings, ucx_settings

_ENGINES: Mapping[str, Callable[[Job, SiteChoices], Iterator[Setting]]] = {
    "nccl": nccl_settings,
    "ucx": lambda job, _: ucx_settings(job),
    "gloo": lambda job, _: gloo_settings(job),
    "libfabric": lambda job, _: libfabric_settings(job),
}
ENGINES = tuple(_ENGINES)


def settings_for(
    nodes: Mapping[str, Snapshot],
    *,
    engines: Collection[str] = ENGINES,
    site: SiteChoices | None = None,
    policy: Policy = Policy.FASTEST,
    unreachable: Mapping[str, str] = MappingProxyType({}),
) -> tuple[Setting, ...]:
    """Return what a job on all of some nodes is told, by engine, and nothing that is right by default.

    Args:
        nodes: by name; as the ranks see them, where that is known.
        engines: of ``ENGINES``.
        site: what only the site knows.
        policy: by what the network is chosen.
        unreachable: see ``job_of``.

    Raises:
        InputError: no node.
        NoNetworkError: several nodes that no network joins.
        UnknownNameError: an engine that there is not.
    """
    unknown = [name for name in engines if name not in _ENGINES]
    if unknown:
        raise UnknownNameError("engine", unknown[0][:40], ENGINES)
    job = job_of(nodes, policy=policy, unreachable=unreachable)
    found = [setting for name in ENGINES if name in engines for setting in _ENGINES[name](job, site or SiteChoices())]
    return tuple(found)


def of_node(settings: Iterable[Setting], node: str, *, rank: int | None = None) -> tuple[Setting, ...]:
    """Return those settings that hold on one node, and for one rank where one is named."""
    return tuple(one for one in settings if one.node in ("", node) and (one.rank is None or one.rank == rank))
