"""What every host's counters say of bytes that were moved; see ``Communicator.verify()``."""

import json
import zlib
from collections.abc import Sequence
from ipaddress import ip_interface
from typing import TYPE_CHECKING, Any

from fabric_client.counters import Carried, between, read_counters, stacked_on
from fabric_client.verification import HostTraffic, Verification, judge
from fabricd.localview import LocalView, collect

if TYPE_CHECKING:
    from fabricd.model.plan import GroupPlan

#: Of each host so many devices are told, those that carried most.
_MAX_DEVICES = 32
_REPORT_MAX = 1 << 16  #: bytes of a report, unpacked


class CounterWatch:
    """What this host's counters say of the time since this was made, for the other ranks to read."""

    def __init__(self) -> None:
        self._view = collect()
        self._before = read_counters(self._view)

    def report(self, rank: int, plan: "GroupPlan | None", direct_memory: bool | None) -> bytes:
        """Return what this rank tells the others; :func:`judge_reports` reads it.

        Args:
            rank: this one.
            plan: of its group; None without one.
            direct_memory: what the engine says; see :class:`fabric_client.engine.base.Engine`.
        """
        carried = between(self._before, read_counters(self._view))
        told = _report(rank, plan, self._view, carried) | {"direct": direct_memory}
        return zlib.compress(json.dumps(told).encode())


def judge_reports(shared: Sequence[bytes], plan: "GroupPlan | None", nbytes: int) -> Verification:
    """Return the verdict on what all ranks reported, in their order.

    Args:
        shared: what each rank told.
        plan: of the group; None without one.
        nbytes: of the array that was reduced meanwhile.
    """
    reports = [_unpacked(part) for part in shared]
    return judge(
        _hosts(reports),
        nbytes,
        planned=plan is not None,
        by_memory=plan is None or plan.engine != "gloo",
        direct=_direct([report["direct"] for report in reports]),
    )


def _direct(told: Sequence[bool | None]) -> bool | None:
    """Return what all ranks' engines say together: one that does not use it is enough."""
    known = [one for one in told if one is not None]
    return all(known) if known else None


def _report(rank: int, plan: "GroupPlan | None", view: LocalView, carried: dict[str, Carried]) -> dict[str, Any]:
    """Return what one rank tells the others."""
    host, node, planned = f"{view.boot_id}.{view.net_namespace}", view.hostname, set[str]()
    if plan is not None:
        mine = next(part for part in plan.ranks if part.rank == rank)
        host, node = str(mine.host_index), mine.node
        planned = {name for part in plan.ranks if part.host_index == mine.host_index for name in part.devices}
    most = sorted(carried, key=lambda name: (name in planned, carried[name].sent + carried[name].received))
    return {
        "host": host,
        "node": node,
        "planned": sorted(planned),
        "carried": {
            name: [one.sent, one.received, one.loopback, one.estimated]
            for name in most[-_MAX_DEVICES:]
            if (one := carried[name]).sent or one.received
        },
        "same_bytes": {name: sorted(stacked_on(name)) for name in planned},
        "rails": _rails(planned, view),
    }


def _unpacked(report: bytes) -> dict[str, Any]:
    """Return what another rank told."""
    told: dict[str, Any] = json.loads(zlib.decompressobj().decompress(report, _REPORT_MAX))
    return told


def _rails(planned: set[str], view: LocalView) -> dict[str, str]:
    """Return the subnet of each planned interface that has one; ports of an RDMA device by their GID's interface."""
    subnets = {one.name: str(ip_interface(one.addresses[0]).network) for one in view.interfaces if one.addresses}
    behind = {f"{hca.name}:{gid.port}": gid.interface for hca in view.hcas for gid in hca.gids if gid.interface}
    return {name: subnets[on] for name in planned if (on := behind.get(name, name)) in subnets}


def _hosts(reports: Sequence[dict[str, Any]]) -> list[HostTraffic]:
    """Return what each host carried; all ranks of a host read the same counters, so the first one's word counts."""
    by_host: dict[str, list[dict[str, Any]]] = {}
    for report in reports:
        by_host.setdefault(report["host"], []).append(report)
    return [
        HostTraffic(
            node=told[0]["node"],
            ranks=len(told),
            planned=tuple(told[0]["planned"]),
            carried={
                name: Carried(sent=sent, received=received, loopback=loopback, estimated=estimated)
                for name, (sent, received, loopback, estimated) in told[0]["carried"].items()
            },
            same_bytes={name: tuple(others) for name, others in told[0]["same_bytes"].items()},
            rails=told[0]["rails"],
        )
        for told in by_host.values()
    ]
