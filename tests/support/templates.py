"""The templates of the simulator, as the probes see the machines of this suite that they stand for."""

import json
from collections.abc import Iterator
from dataclasses import MISSING, fields, replace
from typing import Any

from fabricd.model.codec import to_builtins, without_counters
from fabricd.model.observation import Outcome
from fabricd.model.snapshot import Snapshot

#: Machine of the suite by template.
MACHINES = {
    "a100": "dgx-a100",
    "h100": "hgx-h100",
    "b200": "gcp-a4",
    "gb200": "gb200-nvl72-host0",
    "cpu": "cpu-only",
    "aws-p5": "aws-p5",
    "pcie": "l40s-8x",
}


def template_text(snapshot: Snapshot) -> str:
    """Return a machine as a template: without times and counters, without fields that have their defaults."""
    reports = tuple(
        replace(report, duration_seconds=0.0, reason="" if report.outcome is Outcome.OK else report.reason)
        for report in snapshot.probes
    )
    bare = replace(without_counters(snapshot), probes=reports, taken_at=0.0, content_hash="", instance="")
    return "{\n" + ",\n".join(_lines(lean(bare))) + "\n}\n"


def unique_facts(snapshot: Snapshot) -> Iterator[str]:
    """Yield everything of a node that no other node of its cluster may have."""
    yield snapshot.node.node_id
    yield snapshot.node.name
    yield snapshot.node.boot_id
    for gpu in snapshot.gpus:
        yield gpu.uuid
    for hca in snapshot.hcas:
        yield hca.node_guid
        yield from (gid.gid for port in hca.ports for gid in port.gids if gid.type != "roce-v1")
        yield from (f"lid {port.gids[0].gid[:19]} {port.lid}" for port in hca.ports if port.gids and port.lid)
    for nic in snapshot.interfaces:
        if nic.mac.strip("0:"):
            yield nic.mac
        yield from (one.address for one in nic.addresses if nic.kind.value != "loopback")
    for one in snapshot.lldp:
        yield f"{one.system_name} {one.port_id}"
    for fabric in snapshot.ib_fabrics:
        for switch in fabric.switches:
            yield from (f"{switch.guid} port {link.port}" for link in switch.links if link.local_port)


def lean(value: Any) -> Any:
    """Return a model as dicts and lists, without fields that have their defaults."""
    if isinstance(value, tuple | list):
        return [lean(one) for one in value]
    if not hasattr(value, "__dataclass_fields__"):
        return to_builtins(value)
    told = {field.name: getattr(value, field.name) for field in fields(value)}
    defaults = {field.name: field.default for field in fields(value) if field.default is not MISSING}
    return {name: lean(one) for name, one in told.items() if name not in defaults or one != defaults[name]}


def _lines(tree: dict[str, Any]) -> Iterator[str]:
    """Yield each field, of lists each element, on a line."""
    for name, value in tree.items():
        if isinstance(value, list) and value:
            inner = ",\n  ".join(json.dumps(one, separators=(",", ":")) for one in value)
            yield f' "{name}": [\n  {inner}\n ]'
        else:
            yield f' "{name}": {json.dumps(value, separators=(",", ":"))}'
