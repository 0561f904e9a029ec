"""Ports that count more than their like: links that go down, and errors."""

from dataclasses import replace

from fabricd.findings.counters import counter_findings
from fabricd.findings.find import findings_of
from fabricd.model.codec import without_counters
from fabricd.model.device import InterfaceKind
from fabricd.model.finding import Finding
from fabricd.model.snapshot import Snapshot
from tests.support.nodes import hgx, nic, node, pci


def with_counters(counts: dict[str, dict[str, int]], *, hw: bool = False) -> Snapshot:
    """Eight adapters alike, some of which have counted; the others stand at 1."""
    base = hgx()
    names = {counter for told in counts.values() for counter in told}
    hcas = []
    for hca in base.hcas:
        told = tuple({name: counts.get(hca.name, {}).get(name, 1) for name in names}.items())
        field = {"hw_counters": told} if hw else {"counters": told}
        hcas.append(replace(hca, ports=(replace(hca.ports[0], **field),)))  # type: ignore[arg-type] # one of two fields
    return replace(base, hcas=tuple(hcas))


def told(snapshot: Snapshot) -> list[tuple[str, str]]:
    return [(one.code, one.subject) for one in counter_findings(snapshot)]


def test_a_link_that_goes_down_again_and_again():
    snapshot = with_counters({"mlx5_3": {"link_downed": 40}, "mlx5_4": {"link_downed": 4}})
    found: list[Finding] = list(counter_findings(snapshot))
    assert [(one.code, one.subject) for one in found] == [("port-flaps", "mlx5_3:1")]
    assert found[0].evidence == ("link_downed 40; 7 alike: 1 (median), 4 at most",)
    assert found[0] in [replace(one, node="") for one in findings_of(snapshot)]


def test_a_switch_that_was_started_again_is_no_flapping_port():
    assert told(with_counters({f"mlx5_{place}": {"link_downed": 12} for place in range(8)})) == []


def test_ports_that_never_had_a_link_are_no_measure_of_those_that_have():
    used = with_counters({f"mlx5_{place}": {"link_downed": 20 if place < 2 else 0} for place in range(8)})
    cables = [replace(hca, ports=(replace(hca.ports[0], state="down"),)) for hca in used.hcas[2:]]
    assert told(used) != []
    assert told(replace(used, hcas=(*used.hcas[:2], *cables))) == []
    cards = [
        nic(f"eth{place}", pci_address=f"0000:0{place}:00.0", carrier_down_count=downs, carrier=downs > 0)
        for place, downs in enumerate((30, 0, 0))
    ]
    devices = tuple(pci(one.pci_address, class_code=0x020000, vendor_id=1, device_id=2) for one in cards)
    assert told(node(interfaces=tuple(cards), pci=devices)) == []
    down = (replace(cards[0], carrier=False), replace(cards[1], carrier=True))
    assert told(node(interfaces=down, pci=devices)) == [("port-flaps", "eth0")]


def test_errors_are_told_once_a_port_with_their_names():
    snapshot = with_counters({"mlx5_0": {"symbol_error": 90_000, "port_rcv_errors": 5_000, "port_xmit_data": 10**12}})
    found = list(counter_findings(snapshot))
    assert [(one.code, one.subject) for one in found] == [("port-errors", "mlx5_0:1")]
    assert [fact.split(";")[0] for fact in found[0].evidence] == ["symbol_error 90000", "port_rcv_errors 5000"]
    assert told(with_counters({"mlx5_1": {"out_of_sequence": 2_000}}, hw=True)) == [("port-errors", "mlx5_1:1")]


def test_what_all_count_and_little_is_no_finding():
    assert told(with_counters({f"mlx5_{place}": {"out_of_sequence": 90_000} for place in range(8)}, hw=True)) == []
    assert told(with_counters({"mlx5_0": {"symbol_error": 999}})) == []


def test_ports_of_other_nodes_come_without_counters_and_one_port_has_no_like():
    snapshot = with_counters({"mlx5_3": {"link_downed": 40}})
    assert told(without_counters(snapshot)) == []
    alone = replace(snapshot, hcas=(snapshot.hcas[3],))
    assert told(alone) == []


def test_a_roce_port_is_told_once_by_its_interface():
    ports = with_counters({"mlx5_2": {"link_downed": 40}})
    hcas = tuple(replace(hca, kind="roce", ports=(replace(hca.ports[0], link_layer="ethernet"),)) for hca in ports.hcas)
    cards = tuple(
        nic(
            f"eth{place}",
            kind=InterfaceKind.PHYSICAL,
            pci_address=hca.pci_address,
            carrier_down_count=1 + 39 * (place == 2),
        )
        for place, hca in enumerate(hcas)
    )
    assert told(replace(ports, hcas=hcas, interfaces=cards)) == [("port-flaps", "eth2")]


def test_network_cards_count_by_carrier():
    cards = [
        nic(f"eth{place}", kind=InterfaceKind.PHYSICAL, pci_address=f"0000:0{place}:00.0", carrier_down_count=downs)
        for place, downs in enumerate((1, 60, 2))
    ]
    devices = tuple(pci(one.pci_address, class_code=0x020000, vendor_id=1, device_id=2) for one in cards)
    assert told(node(interfaces=tuple(cards), pci=devices)) == [("port-flaps", "eth1")]
    unknown = tuple(replace(one, carrier_down_count=None) for one in cards)
    assert told(node(interfaces=unknown, pci=devices)) == []


def test_a_pcie_link_that_sends_again_and_again():
    base = hgx()
    ports = {device.address: device.parent for device in base.pci}
    quiet = tuple((device.address, 3) for device in base.pci)
    assert told(replace(base, pcie_errors=quiet)) == []
    riser = ports[base.gpus[5].pci_address]  # errors are seen at the other end of the link
    noisy = tuple((address, 90_000 if address == riser else count) for address, count in quiet)
    (one,) = counter_findings(replace(base, pcie_errors=noisy))
    assert (one.code, one.subject) == ("pcie-errors", "gpu5")
    assert one.evidence == ("90003 correctable errors at its two ends; 7 alike: 6 (median), 6 at most",)
    assert told(without_counters(replace(base, pcie_errors=noisy))) == []
