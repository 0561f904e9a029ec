"""``Communicator.verify()``: move some bytes and look where they went, on every host."""

import json
import zlib
from collections.abc import Sequence
from ipaddress import ip_interface
from typing import TYPE_CHECKING, Any

import numpy as np

from fabric_client.counters import Carried, between, read_counters, stacked_on
from fabric_client.verification import HostTraffic, Verification, judge
from fabricd.localview import LocalView, collect

if TYPE_CHECKING:
    from fabric_client.communicator import Communicator
    from fabricd.model.plan import GroupPlan

#: Of each host so many devices are told, those that carried most.
_MAX_DEVICES = 32
_REPORT_MAX = 1 << 16  #: bytes of a report, unpacked


def verify_communicator(comm: "Communicator", nbytes: int, timeout: float | None) -> Verification:
    """Reduce an array over all ranks and judge what the hosts' counters say; see ``Communicator.verify``."""
    runner = comm._runner
    plan = None if runner.membership is None else runner.membership.plan
    view = collect()
    dtype = np.dtype(np.uint8)
    array = comm._arrays.give(comm._arrays.as_result(None, (nbytes,), dtype), None)
    before = read_counters(view)
    comm.barrier(timeout=timeout)  # nobody's bytes come before everybody's first look
    comm.all_reduce(array, "max", out=array, timeout=timeout)
    comm.barrier(timeout=timeout)
    carried = between(before, read_counters(view))
    told = _report(comm.rank, plan, view, carried) | {"direct": comm._engine.direct_memory}
    report = zlib.compress(json.dumps(told).encode())
    reports = [_unpacked(part) for part in comm._share(report, timeout)]
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
