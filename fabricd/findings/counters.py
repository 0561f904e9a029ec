"""Ports and PCIe links that go down or count errors more often than their like.

Counters begin when a driver is loaded or somebody sets them to zero, and nobody knows how much has passed since. But
ports of one kind on one node have had the same time, and much the same traffic, so they are compared with each other,
or rather with those that work: a port without a cable counts nothing. Only a node's own daemon has those of adapters:
they do not travel with the map.

Source: kernel Documentation/ABI/stable/sysfs-class-infiniband, testing/sysfs-bus-pci-devices-aer_stats, and NVIDIA's
description of the counters of mlx5.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from statistics import median

from fabricd.findings.kinds import Kinds, alike
from fabricd.graph.networks_rails import RDMA_KINDS
from fabricd.model.device import InterfaceKind
from fabricd.model.finding import Finding, Severity
from fabricd.model.snapshot import Snapshot

#: So many more than their like's median, and no fewer than so many: links are taken down by people, too.
_TIMES, _DOWNS, _ERRORS = 5, 10, 1000
#: What is wrong with a cable, a port or what lies behind it; the kernel's names, of InfiniBand and of RoCE.
_OF_ERRORS = (
    "symbol_error",
    "link_error_recovery",
    "local_link_integrity_errors",
    "port_rcv_errors",
    "port_rcv_remote_physical_errors",
    "excessive_buffer_overrun_errors",
    "packet_seq_err",
    "out_of_sequence",
    "local_ack_timeout_err",
    "rx_icrc_encapsulated",
)
_SHOWN = 4

#: Name of a port, and how often something happened to it.
_Counts = Sequence[tuple[str, int]]


def counter_findings(snapshot: Snapshot) -> Iterator[Finding]:
    """Yield the ports and links of a node that count more than their like."""
    yield from _pcie(snapshot)
    kinds = Kinds(snapshot)
    ports = [one for one in snapshot.hca_ports() if one[1].kind in RDMA_KINDS]
    for group in alike(ports, lambda one: kinds.of_port(*one[1:])):
        counters = {name: dict(port.counters + port.hw_counters) for name, _, port in group}
        working = {name for name, _, port in group if port.state == "active"}
        if group[0][2].link_layer == "infiniband":  # of RoCE the interface's own carrier is counted, below
            yield from _flaps("link_downed", _counts(counters, "link_downed"), working)
        yield from _errors(counters, working)
    cards = [one for one in snapshot.interfaces if one.kind is InterfaceKind.PHYSICAL and one.admin_up]
    for cards_alike in alike(cards, lambda one: kinds.of(one.pci_address)):
        downs = [(one.name, one.carrier_down_count) for one in cards_alike if one.carrier_down_count is not None]
        working = {one.name for one in cards_alike if one.carrier is not False}
        yield from _flaps("carrier_down_count", downs, working)


def _counts(counters: Mapping[str, Mapping[str, int]], counter: str) -> _Counts:
    return [(name, told[counter]) for name, told in counters.items() if counter in told]


def _outstanding(counts: _Counts, working: Collection[str], least: int) -> Iterator[tuple[str, int, str]]:
    """Yield those that count much more than the others that work, and what these do."""
    for name, count in counts:
        if count < least:
            continue
        others = [other for one, other in counts if one != name and one in working]
        if others and count > _TIMES * median(others):
            yield name, count, f"{len(others)} alike: {median(others):.0f} (median), {max(others)} at most"


def _flaps(counter: str, counts: _Counts, working: Collection[str]) -> Iterator[Finding]:
    for name, count, others in _outstanding(counts, working, _DOWNS):
        yield Finding(
            code="port-flaps",
            severity=Severity.WARNING,
            subject=name,
            what=f"the link of {name} went down more often than its like",
            evidence=(f"{counter} {count}; {others}",),
            fix="fabricctl watch --past says when; see the cable and its switch port: ethtool -m, mlxlink",
        )


def _errors(counters: Mapping[str, Mapping[str, int]], working: Collection[str]) -> Iterator[Finding]:
    found: dict[str, list[str]] = {}
    for counter in _OF_ERRORS:
        for name, count, others in _outstanding(_counts(counters, counter), working, _ERRORS):
            found.setdefault(name, []).append(f"{counter} {count}; {others}")
    for name, told in found.items():
        yield Finding(
            code="port-errors",
            severity=Severity.WARNING,
            subject=name,
            what=f"{name} counts more errors than its like",
            evidence=tuple(told[:_SHOWN]),
            fix="see the cable and its switch port (mlxlink -c, ibqueryerrors), then whether the figures still rise: "
            "fabricd probe --json has them; sequence errors alone are lost packets: PFC and ECN of the switches",
        )


def _pcie(snapshot: Snapshot) -> Iterator[Finding]:
    """Each end of a link counts what it has seen, so both are taken together; cards of one model are alike."""
    errors = dict(snapshot.pcie_errors)
    names = {hca.pci_address: hca.name for hca in snapshot.hcas}
    names |= {gpu.pci_address: f"gpu{gpu.index}" for gpu in snapshot.gpus}
    cards = [one for one in snapshot.pci if one.address in names and not one.physical_function]
    for group in alike(cards, lambda one: (one.class_code, one.vendor_id, one.device_id)):
        counts = [
            (names[one.address], errors.get(one.address, 0) + errors.get(one.parent, 0))
            for one in group
            if one.address in errors or one.parent in errors
        ]
        for name, count, others in _outstanding(counts, names.values(), _ERRORS):
            yield Finding(
                code="pcie-errors",
                severity=Severity.WARNING,
                subject=name,
                what=f"the PCIe link of {name} sees more errors than those of its like: it sends again, or trains anew",
                evidence=(f"{count} correctable errors at its two ends; {others}",),
                fix="dmesg | grep AER; reseat the card or its riser, then whether the figure still rises: "
                "/sys/bus/pci/devices/*/aer_dev_correctable",
            )
