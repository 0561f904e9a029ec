"""A node's hardware for Prometheus: ports, ways between devices, findings."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

from fabricd.findings.find import KnownFindings
from fabricd.metrics_hardware import HardwareCollector
from fabricd.model.device import InterfaceKind
from fabricd.model.snapshot import Snapshot
from tests.support.nodes import hgx, nic


def samples(local: Snapshot) -> dict[tuple[str, ...], float]:
    nodes = SimpleNamespace(ready=True, local=local)
    found = HardwareCollector(nodes, KnownFindings()).collect()  # type: ignore[arg-type] # as much of a map as it takes
    return {(one.name, *one.labels.values()): one.value for family in found for one in family.samples}


def test_ports_that_are_active_and_how_fast():
    base = hgx()
    down = replace(base.hcas[7], ports=(replace(base.hcas[7].ports[0], state="down"),))
    cards = (
        nic("eth0", carrier=True, speed_bytes_per_second=125_000_000),
        nic("eth1", carrier=False),
        nic("veth0", kind=InterfaceKind.VETH, carrier=True),
        nic("eth2", carrier=None),
    )
    told = samples(replace(base, hcas=(*base.hcas[:7], down), interfaces=cards))
    assert {key[1]: value for key, value in told.items() if key[0] == "fabricd_port_up"} == {
        **{f"mlx5_{place}:1": 1.0 for place in range(7)}, "mlx5_7:1": 0.0, "eth0": 1.0, "eth1": 0.0,
    }  # fmt: skip
    assert told["fabricd_port_bytes_per_second", "mlx5_0:1"] == 50e9
    assert told["fabricd_port_bytes_per_second", "eth0"] == 125e6
    assert ("fabricd_port_bytes_per_second", "mlx5_7:1") not in told


def test_how_gpus_reach_each_other_and_the_adapters():
    told = {key[1:] for key in samples(hgx()) if key[0] == "fabricd_way"}
    assert len(told) == 8 * 7 / 2 + 8 * 8
    assert {("gpu0", "gpu7", "NV18"), ("gpu0", "mlx5_0", "PIX"), ("gpu0", "mlx5_7", "SYS")} <= told


def test_a_host_with_hundreds_of_virtual_functions_is_told_by_its_cards():
    base = hgx()
    functions = tuple(replace(base.hcas[0], name=f"mlx5_{100 + place}", virtual_function=True) for place in range(300))
    told = samples(replace(base, hcas=(*functions, *base.hcas)))
    assert len([key for key in told if key[0] == "fabricd_way"]) == 8 * 7 / 2 + 8 * 8
    assert len([key for key in told if key[0] == "fabricd_port_up"]) == 8


def test_each_finding_and_nothing_of_a_node_that_is_not_yet_known():
    base = hgx()
    broken = replace(base.gpus[3], links=tuple(replace(link, active=link.index != 2) for link in base.gpus[3].links))
    told = samples(replace(base, gpus=(*base.gpus[:3], broken, *base.gpus[4:])))
    assert ("fabricd_finding", "nvlink-down", "error", "gpu3") in told
    nodes = SimpleNamespace(ready=False)
    assert list(HardwareCollector(nodes, KnownFindings()).collect()) == []  # type: ignore[arg-type] # as above


def test_it_is_worked_out_when_the_node_was_looked_at_anew():
    nodes = SimpleNamespace(ready=True, local=hgx())
    collector = HardwareCollector(nodes, KnownFindings())  # type: ignore[arg-type] # as above
    first, again = list(collector.collect()), list(collector.collect())
    assert all(a is b for a, b in zip(first, again, strict=True))
    nodes.local = hgx("b")
    assert next(collector.collect()) is not first[0]


def test_the_page_names_all_with_their_labels():
    page = (Path(__file__).parents[2] / "docs/operations.md").read_text()
    nodes = SimpleNamespace(ready=True, local=hgx())
    for family in HardwareCollector(nodes, KnownFindings()).collect():  # type: ignore[arg-type] # as above
        assert f"`{family.name}{{{','.join(family._labelnames)}}}`" in page  # type: ignore[attr-defined] # of each kind
