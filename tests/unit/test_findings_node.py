"""Findings on one node: each kind is found where a fact shows it, and only there, with that fact as evidence."""

import time
from collections.abc import Callable
from dataclasses import replace

import pytest

from fabricd.findings.find import findings_of
from fabricd.model.device import (
    Gid,
    Gpu,
    GpuPeer,
    InterfaceKind,
    IpAddress,
    MigInstance,
    NumaNode,
    NvLink,
    NvlinkFabric,
    PciDevice,
    PcieLink,
)
from fabricd.model.finding import Severity
from fabricd.model.observation import Outcome, ProbeReport
from fabricd.model.routing import RoutingRule
from fabricd.model.snapshot import Snapshot
from tests.support.nodes import GEN5, hca, hgx, ib_port, nic, node, nvl_tray, nvlinks, pci

NARROW = PcieLink(speed_gts=32.0, width=8, max_speed_gts=32.0, max_width=16)
SLOW = PcieLink(speed_gts=16.0, width=16, max_speed_gts=32.0, max_width=16)


def with_gpu(index: int, **fields: object) -> Snapshot:
    """An HGX machine one of whose GPUs is otherwise."""
    base = hgx()
    return replace(base, gpus=tuple(replace(one, **fields) if one.index == index else one for one in base.gpus))


def with_pci(address: str, base: Snapshot | None = None, **fields: object) -> Snapshot:
    base = base or hgx()
    return replace(base, pci=tuple(replace(one, **fields) if one.address == address else one for one in base.pci))


def with_hca(index: int, **fields: object) -> Snapshot:
    """An HGX machine with eight adapters of one model, one of them otherwise."""
    base = hgx()
    hcas = tuple(replace(one, **fields) if place == index else one for place, one in enumerate(base.hcas))
    return replace(base, hcas=hcas)


def with_port(index: int, **fields: object) -> Snapshot:
    return with_hca(index, ports=(replace(hgx().hcas[index].ports[0], **fields),))


def unlisted(driver: str = "nvidia") -> PciDevice:
    """A GPU on the PCI bus alone."""
    return pci("0009:03:00.0", vendor_id=0x10DE, class_code=0x030200, driver=driver)


def listed(more: PciDevice) -> Snapshot:
    """An HGX machine whose GPUs NVML has listed, and one more device."""
    base = hgx()
    return replace(base, pci=(*base.pci, more), probes=(ProbeReport(name="nvml", outcome=Outcome.OK),))


def storage(**fields: object) -> Snapshot:
    """A machine with an adapter of the model of those beside its GPUs, under a root port of its own."""
    base = hgx()
    port = replace(ib_port(lid=99), **fields)
    device = pci("00ff:01:00.0", parent="00ff:00:01.0", root="pci00ff:00", numa_node=0, link=GEN5)
    root = pci("00ff:00:01.0", root="pci00ff:00", class_code=0x060400, numa_node=0, link=GEN5)
    return replace(
        base, pci=(*base.pci, root, device), hcas=(*base.hcas, hca("mlx5_8", port, pci_address="00ff:01:00.0"))
    )


def mesh() -> Snapshot:
    """Four V100s of eight, as a virtual machine has them: links to the others are not there."""
    ways = {0: {1: 1, 2: 1, 3: 2}, 1: {0: 1, 2: 2, 3: 1}, 2: {0: 1, 1: 2, 3: 2}, 3: {0: 2, 1: 1, 2: 2}}
    gpus = []
    for index, to in ways.items():
        ends = [f"0000:0{other}:00.0" for other, count in to.items() for _ in range(count)]
        up = (NvLink(index=at, active=True, remote_type="gpu", remote_pci_address=end) for at, end in enumerate(ends))
        down = (NvLink(index=at, active=False) for at in range(len(ends), 6))
        gpus.append(Gpu(index=index, name="V100", pci_address=f"0000:0{index}:00.0", links=(*up, *down)))
    return node(gpus=tuple(gpus))


def links_of(index: int, *down: int) -> tuple[object, ...]:
    return tuple(replace(link, active=link.index not in down) for link in hgx().gpus[index].links)


def cards(*names_and_fields: tuple[str, str, dict[str, object]]) -> Snapshot:
    """A machine with Ethernet cards of one model."""
    devices = tuple(
        pci(f"0000:{bus:02x}:00.0", vendor_id=0x15B3, device_id=0x1021, link=GEN5)
        for bus in range(len(names_and_fields))
    )
    interfaces = tuple(
        nic(name, address, **{"pci_address": f"0000:{bus:02x}:00.0", "carrier": True, **fields})
        for bus, (name, address, fields) in enumerate(names_and_fields)
    )
    return node(pci=devices, interfaces=interfaces)


FABRIC = NvlinkFabric(cluster_uuid="d0", clique_id=1, state="completed", status="success")
TRAY = nvl_tray(0)
ROCE_GID = Gid(index=1, gid="0000:0000:0000:0000:0000:ffff:0a01:0001", type="roce-v1", interface="ens1")
BOND = nic("bond0", "10.1.0.1/24", kind=InterfaceKind.BOND, members=("ens1", "ens2"), bond_mode="802.3ad")

#: What makes each kind of finding, its subject, and a fact that it has to name.
CASES: dict[str, tuple[Callable[[], Snapshot], str, str]] = {
    "gpu-lost": (lambda: with_gpu(3, outcome=Outcome.FAILED, reason="GPU is lost"), "gpu3", "GPU is lost"),
    "gpu-missing": (lambda: listed(unlisted()), "0009:03:00.0", "NVML lists 8 GPUs"),
    "gpu-ecc": (lambda: with_gpu(2, ecc_uncorrected=4), "gpu2", "4 uncorrected ECC errors"),
    "gpu-divided": (lambda: with_gpu(1, mig_mode="enabled", mig=(MigInstance(uuid="M"),)), "gpu1", "1 instance"),
    "fabric-not-ready": (
        lambda: with_gpu(0, fabric=replace(FABRIC, state="in-progress", status="")), "gpu0", "in-progress",
    ),
    "fabric-failed": (lambda: with_gpu(0, fabric=replace(FABRIC, status="no-partition")), "gpu0", "no-partition"),
    "fabric-unhealthy": (
        lambda: with_gpu(0, fabric=replace(FABRIC, health="unhealthy", health_mask=0xAA)), "gpu0", "0xaa",
    ),
    "fabric-split": (
        lambda: replace(TRAY, gpus=(replace(TRAY.gpus[0], fabric=replace(FABRIC, clique_id=2)), *TRAY.gpus[1:])),
        "", "gpu1-3: d0 clique 1",
    ),
    "nvlink-down": (lambda: with_gpu(5, links=links_of(5, 7)), "gpu5", "17 of 18 are active"),
    "nvlink-slow": (
        lambda: with_gpu(5, links=(replace(hgx().gpus[5].links[0], speed_bytes_per_second=12_500_000_000),
                                   *hgx().gpus[5].links[1:])),
        "gpu5", "link 0: 12.5 GB/s",
    ),
    "nvlink-errors": (
        lambda: with_gpu(5, links=(replace(hgx().gpus[5].links[3], errors=(("replay", 9), ("recovery", 2))),)),
        "gpu5", "link 3: recovery 2",
    ),
    "nvlink-p2p": (
        lambda: with_gpu(0, peers=(GpuPeer(gpu=1, read="not-supported", nvlink="ok"),)),
        "gpu0", "to gpu1: read not-supported",
    ),
    "p2p-disabled": (
        lambda: replace(hgx(nvswitch=False), gpus=(
            replace(hgx(nvswitch=False).gpus[0], peers=(GpuPeer(gpu=1, read="disabled-by-regkey"),)),
            *hgx(nvswitch=False).gpus[1:],
        )),
        "gpu0", "to gpu1: disabled-by-regkey",
    ),
    "pcie-narrow": (lambda: with_pci("0003:03:00.0", link=NARROW), "gpu3", "32 GT/s x8"),
    "pcie-slow": (lambda: with_pci("0003:04:00.0", link=SLOW), "mlx5_3", "16 GT/s x16"),
    "acs-redirects": (lambda: with_pci("0001:02:00.0", acs=Outcome.OK, acs_redirects=True), "", "0001:02:00.0"),
    "acs-unknown": (lambda: with_pci("0001:02:00.0", acs=Outcome.DENIED), "", "1 bridges: denied"),
    "iommu-translates": (lambda: with_pci("0001:03:00.0", iommu_mode="DMA-FQ"), "", "gpu1 (0001:03:00.0): DMA-FQ"),
    "numa-unknown": (lambda: with_pci("0001:03:00.0", numa_node=None), "", "gpu1 (0001:03:00.0): NUMA node -1"),
    "port-down": (lambda: with_port(4, state="down", physical_state="polling"), "mlx5_4:1", "polling"),
    "port-slow": (lambda: with_port(4, rate_bytes_per_second=25 * 10**9), "mlx5_4:1", "25 GB/s"),
    "no-subnet-manager": (lambda: with_port(4, state="init", physical_state="linkup"), "mlx5_4:1", "state init"),
    "pkey-limited": (lambda: with_port(4, pkeys=(0x7FFF,)), "mlx5_4:1", "0x7fff"),
    "gpudirect-off": (lambda: with_hca(4, dmabuf=False, peer_memory=False), "mlx5_4", "nvidia_peermem"),
    "gid-missing": (
        lambda: replace(
            cards(("ens1", "10.1.0.1/24", {})),
            hcas=(hca("mlx5_0", replace(ib_port(), link_layer="ethernet", gids=(ROCE_GID,)), kind="roce",
                      pci_address="0000:00:00.0"),),
        ),
        "mlx5_0:1", "/sys/class/infiniband/mlx5_0/ports",
    ),
    "half-duplex": (lambda: cards(("ens1", "10.1.0.1/24", {"duplex": "half"})), "ens1", "half duplex"),
    "bond-degraded": (
        lambda: replace(base := cards(("ens1", "", {}), ("ens2", "", {"carrier": False})),
                        interfaces=(*base.interfaces, BOND)),
        "bond0", "no carrier on ens2",
    ),
    "one-subnet": (
        lambda: cards(("ens1", "10.1.0.1/16", {}), ("ens2", "10.1.0.2/16", {})), "10.1.0.0/16", "10.1.0.1, 10.1.0.2",
    ),
    "probe-failed": (lambda: probed(Outcome.FAILED), "nvml", "it hung"),
    "probe-stale": (lambda: probed(Outcome.STALE), "nvml", "it hung"),
    "probe-denied": (lambda: probed(Outcome.DENIED), "nvml", "it hung"),
    "probe-not-run": (lambda: probed(Outcome.NOT_RUN), "nvml", "it hung"),
    "facts-conflict": (
        lambda: replace(base := hgx(), hcas=(replace(base.hcas[0], numa_node=1), *base.hcas[1:])),
        "0000:04:00.0", "taken: PCI's",
    ),
}  # fmt: skip


def probed(outcome: Outcome) -> Snapshot:
    return node(probes=(ProbeReport(name="nvml", outcome=outcome, reason="it hung"),))


def test_nothing_is_wrong_where_no_fact_says_so() -> None:
    assert findings_of(hgx()) == ()
    assert findings_of(TRAY) == ()
    assert findings_of(cards(("ens1", "10.1.0.1/24", {}), ("ens2", "10.2.0.1/24", {}))) == ()


@pytest.mark.parametrize("code", CASES)
def test_each_kind_is_found_where_a_fact_shows_it(code: str) -> None:
    make, subject, fact = CASES[code]
    found = [one for one in findings_of(make()) if one.code == code]
    assert len(found) == 1
    one = found[0]
    assert subject == one.subject or one.subject.endswith(f"/{subject}")
    assert fact in "; ".join(one.evidence)
    assert one.node == "a" or one.node.startswith("tray")
    assert one.what
    assert one.fix
    assert "{" not in one.fix


@pytest.mark.parametrize(
    "made",
    [
        pytest.param(lambda: with_pci("0003:03:00.0", link=SLOW), id="a GPU's link sleeps at a lower speed"),
        pytest.param(lambda: with_port(4, state="down", physical_state="disabled"), id="a port that somebody disabled"),
        pytest.param(lambda: with_hca(4, dmabuf=False, peer_memory=True), id="peer memory instead of dma-buf"),
        pytest.param(lambda: with_hca(4, dmabuf=None, peer_memory=None), id="nobody knows whether GPUDirect works"),
        pytest.param(lambda: with_gpu(5, links=()), id="links that could not be read"),
        pytest.param(lambda: with_port(4, pkeys=(0x7FFF, 0xFFFF)), id="a full member of one of its partitions"),
        pytest.param(
            lambda: replace(
                cards(("ens1", "10.1.0.1/16", {}), ("ens2", "10.1.0.2/16", {})),
                routing_rules=(RoutingRule(source="10.1.0.2/32", family=4, priority=1, table=2),),
            ),
            id="one subnet, and a rule for the second address",
        ),
        pytest.param(
            lambda: cards(("ens1", "", {"carrier": False}), ("ens2", "", {"carrier": False})), id="no card has a cable"
        ),
        pytest.param(
            lambda: cards(("ens1", "", {"carrier": False, "admin_up": False}), ("ens2", "", {})), id="switched off"
        ),
        pytest.param(
            lambda: replace(
                with_pci("0001:03:00.0", numa_node=None), numa=(NumaNode(index=0, cpus=(0,)), NumaNode(index=1))
            ),
            id="one NUMA node has processors, the other is a GPU's memory",
        ),
        pytest.param(
            lambda: with_gpu(5, links=links_of(5, *range(18)), mig_mode="enabled", mig=(MigInstance(uuid="M"),)),
            id="links of a GPU that is divided",
        ),
        pytest.param(mesh, id="a part of a mesh of GPUs"),
        pytest.param(lambda: listed(unlisted("vfio-pci")), id="a GPU that is given to a virtual machine"),
        pytest.param(
            lambda: replace(base := listed(unlisted()), node=replace(base.node, container="docker")),
            id="a GPU that this container does not have",
        ),
        pytest.param(
            lambda: replace(
                base := with_pci("0003:03:00.0", link=NARROW),
                gpus=tuple(replace(one, c2c_links=5) for one in base.gpus),
            ),
            id="a GPU by C2C has little PCIe",
        ),
        pytest.param(lambda: with_pci("0001:00:01.0", acs=Outcome.OK, acs_redirects=True), id="ACS at a root port"),
        pytest.param(
            lambda: replace(base := with_pci("0001:02:00.0", acs=Outcome.OK, acs_redirects=True), hcas=base.hcas[2:]),
            id="ACS above a GPU alone",
        ),
        pytest.param(lambda: storage(rate_bytes_per_second=25 * 10**9), id="an adapter for storage is slower"),
        pytest.param(lambda: storage(state="down", physical_state="polling"), id="an adapter for storage has no cable"),
        pytest.param(
            lambda: with_hca(4, virtual_function=True, ports=(replace(ib_port(state="init"), pkeys=(0x7FFF,)),)),
            id="a virtual function that nobody uses yet",
        ),
        pytest.param(
            lambda: replace(
                base := cards(("usb0", "", {"duplex": "half"})), pci=(replace(base.pci[0], class_code=0x0C0330),)
            ),
            id="USB does not know its duplex",
        ),
        pytest.param(
            lambda: cards(
                ("ib0", "172.16.1.1/16", {"kind": InterfaceKind.IPOIB}),
                ("ib1", "172.16.1.2/16", {"kind": InterfaceKind.IPOIB}),
            ),
            id="InfiniBand with all addresses in one subnet",
        ),
        pytest.param(
            lambda: replace(
                base := cards(("hsn0", "10.1.0.1/16", {}), ("hsn1", "10.1.0.2/16", {})),
                hcas=tuple(
                    hca(
                        f"cxi{at}", replace(ib_port(), link_layer="ethernet"), kind="slingshot", pci_address=one.address
                    )
                    for at, one in enumerate(base.pci)
                ),
            ),
            id="Slingshot with all addresses in one subnet",
        ),
        pytest.param(
            lambda: cards(("ens1", "10.1.0.1/16", {"controller": "vrf1"}), ("ens2", "10.1.0.2/16", {})),
            id="one subnet in two routing domains",
        ),
    ],
)
def test_no_alarm_where_facts_have_another_reason(made: Callable[[], Snapshot]) -> None:
    assert [one for one in findings_of(made()) if one.severity is not Severity.NOTE] == []


def test_gpus_beside_a_bridge_that_joins_two_others_have_no_links_down() -> None:
    def card(index: int, to: int | None) -> Gpu:
        links = nvlinks(4, to=f"0000:0{to}:00.0") if to is not None else (NvLink(index=0, active=False),)
        return Gpu(index=index, name="RTX", pci_address=f"0000:0{index}:00.0", links=links)

    assert findings_of(node(gpus=(card(0, 1), card(1, 0), card(2, None), card(3, None)))) == ()


def test_a_bridge_that_has_come_loose_is_found() -> None:
    def card(index: int, to: int, links: int) -> Gpu:
        up = nvlinks(links, to=f"0000:0{to}:00.0")
        return Gpu(index=index, name="A100", pci_address=f"0000:0{index}:00.0", links=up)

    found = findings_of(node(gpus=(card(0, 1, 12), card(1, 0, 12), card(2, 3, 8), card(3, 2, 8))))
    assert [(one.code, one.subject) for one in found] == [("nvlink-down", "gpu2"), ("nvlink-down", "gpu3")]


def test_nothing_that_another_node_may_tell_stops_the_rules() -> None:
    base = cards(("ens1", "10.1.0.1/24", {}), ("ens2", "10.1.0.2/24", {}))
    odd = (("not an address", 24), ("10.1.0.1", -5), ("10.1.0.1", 10**9))
    addresses = tuple(IpAddress(address=address, prefix_length=length, family=4) for address, length in odd)
    assert (
        findings_of(replace(base, interfaces=tuple(replace(one, addresses=addresses) for one in base.interfaces))) == ()
    )
    chain = tuple(pci(f"{at:04x}:aa:00.0", parent=f"{(at + 1) % 10_000:04x}:aa:00.0") for at in range(10_000))
    gpus = tuple(Gpu(index=at, name="G", pci_address=f"{at:04x}:aa:00.0") for at in range(8))
    begun = time.process_time()
    assert {one.code for one in findings_of(node(pci=chain, gpus=gpus))} == {"facts-conflict"}
    assert time.process_time() - begun < 10.0  # a chain of bridges looked at for each bridge again took minutes


def test_the_worst_comes_first() -> None:
    base = with_gpu(3, outcome=Outcome.FAILED, reason="GPU is lost")
    found = findings_of(replace(base, probes=(ProbeReport(name="pci", outcome=Outcome.DENIED),)))
    assert [one.severity for one in found] == [Severity.ERROR, Severity.NOTE]
