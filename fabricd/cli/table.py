"""A snapshot as tables for people."""

from collections.abc import Iterable

from rich.console import Console
from rich.table import Table
from rich.text import Text

from fabricd.model.device import Gpu, Hca, NetInterface, PciDevice, PcieLink
from fabricd.model.infiniband import IbLink
from fabricd.model.observation import Outcome
from fabricd.model.snapshot import Snapshot
from fabricd.smallfile import escaped
from fabricd.units import format_bandwidth, format_count, format_ranges

_MAX_CELL = 120
_PIPE_WIDTH = 200  # nobody's screen limits what goes into a file
_STYLES = {Outcome.OK: "green", Outcome.FAILED: "red", Outcome.STALE: "red", Outcome.DENIED: "yellow"}
_PCI_BRIDGE = 0x06


def print_snapshot(snapshot: Snapshot, console: Console | None = None) -> None:
    """Print host, NUMA nodes, PCI devices, GPUs, HCAs, interfaces, InfiniBand switches and how each probe ended."""
    console = console or Console(highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        console.width = _PIPE_WIDTH
    for line in _host_lines(snapshot):
        console.print(safe(line), soft_wrap=True)
    for table in (
        _numa(snapshot),
        _pci(snapshot),
        _gpus(snapshot),
        _hcas(snapshot),
        _nics(snapshot),
        _ib_switches(snapshot),
        _probes(snapshot),
    ):
        if table.row_count:
            console.print()
            console.print(table)


def safe(value: object, style: str = "") -> Text:
    """Return text for a cell: no markup, no control character, no endless line. Names come from outside."""
    text = escaped(str(value))
    return Text(text if len(text) <= _MAX_CELL else text[: _MAX_CELL - 1] + "…", style=style)


def _host_lines(snapshot: Snapshot) -> Iterable[str]:
    node = snapshot.node
    cpu = node.cpu
    yield f"{node.name}  node_id {node.node_id} (from {node.id_source or 'unknown'})" + (
        "" if snapshot.this_host else "  not this host"
    )
    yield "  " + ", ".join(
        part for part in (node.os, node.kernel, node.virtualization and f"on {node.virtualization}") if part
    )
    machine = " ".join(part for part in (node.vendor, node.product) if part)
    sockets = f"{_counted(cpu.sockets, 'socket')}, {_counted(cpu.logical, 'CPU')}"
    yield "  " + ", ".join(
        part for part in (machine, cpu.name, cpu.architecture, sockets, _memory(node.memory_bytes)) if part
    )


def _numa(snapshot: Snapshot) -> Table:
    table = _table("NUMA nodes", "node", "CPUs", "memory", "distances")
    for node in snapshot.numa:
        _row(
            table, node.index, format_ranges(node.cpus), _memory(node.memory_bytes), " ".join(map(str, node.distances))
        )
    return table


def _pci(snapshot: Snapshot) -> Table:
    table = _table(
        "PCI devices", "address", "class", "vendor:device", "driver", "NUMA", "link now", "link at most", "behind"
    )
    for device in snapshot.pci:
        if device.class_code is not None and device.class_code >> 16 == _PCI_BRIDGE:
            continue
        _row(
            table,
            device.address,
            _pci_class(device),
            f"{_hex(device.vendor_id)}:{_hex(device.device_id)}",
            device.driver,
            _or_unknown(device.numa_node),
            _link(device.link.speed_gts, device.link.width),
            Text.assemble(safe(_link(device.link.max_speed_gts, device.link.max_width)), _trained_down(device.link)),
            device.parent or device.root,
        )
    return table


def _gpus(snapshot: Snapshot) -> Table:
    table = _table("GPUs", "GPU", "name", "PCI address", "memory", "NVLinks active", "fabric", "outcome")
    for gpu in snapshot.gpus:
        _row(
            table,
            gpu.index,
            gpu.name,
            gpu.pci_address,
            _memory(gpu.memory_bytes),
            _nvlinks(gpu),
            gpu.fabric.state if gpu.fabric else "",
            _outcome(gpu.outcome, gpu.reason),
        )
    return table


def _hcas(snapshot: Snapshot) -> Table:
    table = _table("RDMA devices", "port", "kind", "state", "link layer", "rate", "LID", "PCI address", "NUMA")
    for hca in snapshot.hcas:
        for cells in _hca_ports(hca):
            _row(table, *cells)
    return table


def _nics(snapshot: Snapshot) -> Table:
    table = _table("Interfaces", "name", "kind", "speed", "state", "MTU", "NUMA", "PCI address", "addresses")
    for nic in snapshot.interfaces:
        _row(
            table,
            nic.name,
            nic.kind.value + (f" ({nic.driver})" if nic.driver else ""),
            format_bandwidth(nic.speed_bytes_per_second),
            Text(_state(nic), style="green" if nic.carrier and nic.admin_up else "dim"),
            _or_unknown(nic.mtu),
            _or_unknown(nic.numa_node),
            nic.pci_address,
            ", ".join(f"{address.address}/{address.prefix_length}" for address in nic.addresses),
        )
    return table


def _ib_switches(snapshot: Snapshot) -> Table:
    columns = ("switch", "fabric", "GUID", "LID", "ports", "to HCAs", "to switches", "this node's ports")
    table = _table("InfiniBand switches around this node", *columns)
    for fabric in snapshot.ib_fabrics:
        for switch in fabric.switches:
            _row(
                table,
                switch.name,
                fabric.guid,
                switch.guid,
                _or_unknown(switch.lid),
                _or_unknown(switch.port_count),
                switch.hca_links,
                switch.switch_links,
                ", ".join(_own_port(link) for link in switch.links if link.local_port),
            )
    return table


def _own_port(link: IbLink) -> str:
    return f"{link.local_port} at {link.port} ({_or_unknown(link.width)}x{link.speed or '?'})"


def _probes(snapshot: Snapshot) -> Table:
    table = _table("Probes", "probe", "outcome", "time", "reason")
    for report in snapshot.probes:
        reason = "; ".join(part for part in (report.reason, *report.notes) if part)
        _row(table, report.name, _outcome(report.outcome), f"{report.duration_seconds * 1e3:.1f} ms", reason)
    return table


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for column in columns:
        table.add_column(column, header_style="dim", overflow="fold")
    return table


def _row(table: Table, *cells: object) -> None:
    table.add_row(*(cell if isinstance(cell, Text) else safe(cell) for cell in cells))


def _outcome(outcome: Outcome, reason: str = "") -> Text:
    return safe(f"{outcome.value}: {reason}" if reason else outcome.value, _STYLES.get(outcome, "dim"))


def _state(nic: NetInterface) -> str:
    """Return the state in words: what the administrator wants first, then what the link does."""
    if not nic.admin_up:
        return "off"
    if nic.carrier is False:
        return "no carrier"
    return nic.oper_state if nic.oper_state not in ("", "unknown") or nic.carrier is None else "up"


def _hca_ports(hca: Hca) -> Iterable[tuple[object, ...]]:
    numa = _or_unknown(hca.numa_node)
    for name, port in hca.named_ports():
        rate = format_bandwidth(port.rate_bytes_per_second)
        lid = _or_unknown(port.lid)
        yield name, hca.kind, port.state, port.link_layer, rate, lid, hca.pci_address, numa
    if not hca.ports:
        yield hca.name, hca.kind, "no ports", "", "", "", hca.pci_address, numa


def _nvlinks(gpu: Gpu) -> str:
    if not gpu.links:
        return "none"
    return f"{sum(link.active is True for link in gpu.links)} of {len(gpu.links)}"


def _link(speed_gts: float | None, width: int | None) -> str:
    if speed_gts is None and width is None:
        return "?"
    return f"{_or_unknown(speed_gts)} GT/s x{_or_unknown(width)}"


def _trained_down(link: PcieLink) -> Text:
    slower = link.speed_gts is not None and link.max_speed_gts is not None and link.speed_gts < link.max_speed_gts
    narrower = link.width is not None and link.max_width is not None and link.width < link.max_width
    words = [word for word, true in (("slower", slower), ("narrower", narrower)) if true]
    return Text(f" ({' and '.join(words)} now)" if words else "", style="yellow")


def _pci_class(device: PciDevice) -> str:
    names = {
        0x0200: "ethernet",
        0x0207: "infiniband",
        0x0280: "network",
        0x0300: "VGA",
        0x0302: "3D",
        0x1200: "accelerator",
    }
    if device.class_code is None:
        return "?"
    return names.get(device.class_code >> 8, f"{device.class_code:06x}")


def _memory(count: int | None) -> str:
    return "" if count is None else f"{count / 2**30:.1f} GiB"


def _hex(number: int | None) -> str:
    return "?" if number is None else f"{number:04x}"


def _counted(count: int | None, what: str) -> str:
    return f"? {what}s" if count is None else format_count(count, what)


def _or_unknown(value: object) -> str:
    return "?" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
