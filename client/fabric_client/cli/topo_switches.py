"""The InfiniBand switches around a node, as a table: where its ports go in, and what goes up from there."""

from collections import Counter
from collections.abc import Iterable

from rich.table import Table

from fabric_client.cli.show import table
from fabricd.model.infiniband import IbFabric, IbLink, IbSwitch

_COLUMNS = ("INFINIBAND SWITCH", ">LID", "THIS NODE", ">ADAPTERS", "UPLINKS")


def switch_tables(fabrics: Iterable[IbFabric]) -> list[Table]:
    """Return one table for each fabric: a row for each switch that carries a port of the node."""
    return [
        table(
            _COLUMNS,
            [_row(switch) for switch in fabric.switches if switch.hops == 1],
            title=f"fabric {fabric.guid}: {fabric.switch_count} switches, {fabric.hca_count} adapters",
        )
        for fabric in fabrics
    ]


def _row(switch: IbSwitch) -> tuple[object, ...]:
    own = ", ".join(f"{link.local_port} ({_speed(link)})" for link in switch.links if link.local_port)
    up = [link for link in switch.links if not link.local_port]
    speeds = ", ".join(f"{count} of {speed}" for speed, count in Counter(map(_speed, up)).items())
    switches = len({link.peer for link in up})
    told = f"{speeds} to {switches} switch{'es' if switches > 1 else ''}" if up else "none"
    return switch.name, "?" if switch.lid is None else switch.lid, own, switch.hca_links, told


def _speed(link: IbLink) -> str:
    return f"{link.width or '?'}x {link.speed or '?'}" if link.width or link.speed else "unknown speed"
