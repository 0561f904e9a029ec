"""The model of time: never nonsense, on machines whose plans are NCCL's own; what it takes a machine for."""

import functools
import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fabricd.errors import InputError
from fabricd.graph.nccl_xml_read import read
from fabricd.model.path import Transport
from fabricd.plan.nccl.emulate import plan
from fabricd.plan.nccl.job import Collective
from fabricd.plan.predict import Conditions, conditions_of, merge_ports, predict, virtual_of
from fabricd.plan.predict.model import bus_factor, curve_of, time_of
from fabricd.plan.predict.parameters import BANDS, CALIBRATED, DOMAIN, FAR, NEAR, parameters
from fabricd.plan.predict.terms import terms_of
from tests.support.nccl_golden import own
from tests.support.nodes import hgx

MACHINES = [(golden, nodes) for golden in own("1") for nodes in (1, 2)]
MACHINES += [(golden, 5) for golden in own("1") if str(golden).startswith(("nvswitch", "two-gpus"))]
TRANSPORTS = st.sampled_from(
    [Transport.INFINIBAND, Transport.EFA, Transport.GPUDIRECT_TCP, Transport.SLINGSHOT, Transport.ETHERNET]
)
SIZES = st.integers(0, 36).flatmap(lambda power: st.integers(1 << power, (2 << power) - 1))


@functools.cache
def planned(index):
    golden, nodes = MACHINES[index]
    topology = merge_ports(golden.topology())
    try:
        return plan(topology, nodes=nodes)
    except InputError:  # a machine without ports has no second one
        return plan(topology, nodes=1)


@given(
    index=st.integers(0, len(MACHINES) - 1),
    collective=st.sampled_from(list(Collective)),
    sizes=st.lists(SIZES, min_size=2, max_size=4).map(sorted),
    transport=TRANSPORTS,
    virtual=st.booleans(),
)
def test_time_rises_and_bandwidth_is_what_the_search_found(index, collective, sizes, transport, virtual):
    nccl = planned(index)
    conditions = Conditions(transport=transport, virtual=virtual)
    found = [predict(nccl, conditions, collective, size) for size in sizes]
    if found[0] is None:
        assert nccl.job.ranks == 1
        return
    times = [one.time_seconds for one in found]
    assert times == sorted(times)
    assert all(0 < time < math.inf for time in times)
    most = max(entry.bandwidth for entry in nccl.lines[collective].values()) * 1.02  # LL128 carries more than NCCL says
    for size, one in zip(sizes, found, strict=True):
        factor = bus_factor(collective, nccl.job.ranks)
        assert one.busbw_bytes_per_second == pytest.approx(factor * size / one.time_seconds)
        assert size / one.time_seconds <= most * 1e9
        assert one.busbw_low_bytes_per_second <= one.busbw_bytes_per_second <= one.busbw_high_bytes_per_second


@pytest.mark.parametrize("index", range(len(MACHINES)), ids=lambda index: f"{MACHINES[index][0]}-{MACHINES[index][1]}")
def test_terms_are_nccls_own_model_taken_apart(index):
    """Put together with NCCL's figures, they give NCCL's times at powers of two."""
    nccl = planned(index)
    for collective, lines in nccl.lines.items():
        for way, entry in lines.items():
            terms = terms_of(nccl.job, collective, way, entry, 1 << 20)
            reported = nccl.job.graph(way[0]).latency_inter * (2 if way[1] == "Simple" else 1)
            step = terms.network_step + (0 if collective in (Collective.BROADCAST, Collective.REDUCE) else reported)
            nvls = 25.0 if way[0] == "NVLS" else 0.0
            latency = terms.fixed + terms.network_steps * step + nvls
            assert latency == pytest.approx(entry.latency, rel=1e-5)
            only = curve_of(nccl, Conditions(), collective)
            choice = nccl.choose(collective, 1 << 20)
            if only is not None and (choice.algorithm, choice.protocol) == way:
                wire = terms.wire * (120 / 128 / 0.92 if way[1] == "LL128" and nccl.job.nodes > 1 else 1)
                assert (1 + terms.surcharge) * latency + wire == pytest.approx(choice.time, rel=1e-5)


def test_scale_is_of_bandwidth():
    nccl, conditions, figures = (
        planned(MACHINES.index(next(one for one in MACHINES if one[1] == 2))),
        Conditions(),
        parameters().figures,
    )
    curve = curve_of(nccl, conditions, Collective.ALL_REDUCE)
    way = curve.way(1 << 30)
    terms = terms_of(nccl.job, Collective.ALL_REDUCE, way, curve.lines[way], 1 << 30)
    slower = time_of(terms, conditions, figures, scale=0.5)
    assert slower / time_of(terms, conditions, figures) == pytest.approx(2.0, rel=0.1)


def test_other_rings():
    nccl = planned(MACHINES.index(next(one for one in MACHINES if "nvlink-mesh" in str(one[0]) and one[1] == 2)))
    size, conditions = 1 << 33, Conditions(transport=Transport.INFINIBAND)
    theirs = predict(nccl, conditions, Collective.ALL_GATHER, size)
    ours = predict(nccl, conditions, Collective.ALL_GATHER, size, bandwidth=nccl.ring_bandwidth * 2e9)
    assert theirs.algorithm == ours.algorithm == "Ring"
    assert ours.busbw_bytes_per_second == pytest.approx(2 * theirs.busbw_bytes_per_second, rel=0.05)


@pytest.mark.parametrize("size", [0, -1, (1 << 50) + 1])
def test_sizes_that_no_message_has(size):
    with pytest.raises(InputError, match="a message of"):
        predict(planned(0), Conditions(), Collective.ALL_REDUCE, size)


def test_what_comes_with_the_package():
    known = parameters()
    assert sorted(known.spread) == sorted([DOMAIN, NEAR, FAR, CALIBRATED])
    assert all(len(bands) == len(BANDS) + 1 for bands in known.spread.values())
    assert all(0 < one.low <= 1 <= one.high for bands in known.spread.values() for one in bands)


def machine(
    *, busid="0000:07:00.0", name="mlx5_0", latency="0", gdr="1", nets="", gpu='<gpu dev="0" sm="90" rank="0"/>'
):
    nets = nets or f'<net name="{name}" dev="0" latency="{latency}" speed="100000" gdr="{gdr}"/>'
    return read(
        f"""<system version="1"><cpu numaid="0" arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="143">
        <pci busid="{busid}" class="0x030200" link_speed="16.0 GT/s PCIe" link_width="16">
        {gpu}</pci>
        <pci busid="0000:08:00.0" class="0x020000" link_speed="16.0 GT/s PCIe" link_width="16"><nic>{nets}</nic></pci>
        <pci busid="0000:08:00.1" class="0x020000" link_speed="16.0 GT/s PCIe" link_width="16">
        <nic><net name="other" dev="7" latency="{latency}" speed="100000" gdr="{gdr}"/></nic></pci>
        </cpu></system>""",
        source="test",
    )


@pytest.mark.parametrize(
    ("name", "latency", "gdr", "transport"),
    [
        ("mlx5_0", "0", "1", Transport.INFINIBAND),
        ("mlx5_0", "0", "0", Transport.INFINIBAND),
        ("bnxt_re0", "0", "1", Transport.ROCE),
        ("net0", "75", "1", Transport.EFA),
        ("rdmap16s27", "0", "1", Transport.EFA),
        ("tcpxo0", "0", "1", Transport.GPUDIRECT_TCP),
        ("cxi0", "0", "1", Transport.SLINGSHOT),
        ("hsn0", "0", "0", Transport.ETHERNET),
        ("net0", "0", "1", Transport.INFINIBAND),
    ],
)
def test_transport(name, latency, gdr, transport):
    conditions = conditions_of(machine(name=name, latency=latency, gdr=gdr))
    assert (conditions.transport, conditions.direct) == (transport, gdr == "1")


@pytest.mark.parametrize(
    ("busid", "virtual"),
    [
        ("0000:07:00.0", False),
        ("0009:01:00.0", False),
        ("0001:00:00.0", True),
        ("0000:00:05.0", True),
        ("0000:10:1c.0", True),
    ],
)
def test_virtual_by_the_place_of_gpus(busid, virtual):
    assert conditions_of(machine(busid=busid)).virtual is virtual


def test_nothing_is_known_of_the_error_on_amds_gpus():
    topology = machine()
    text = '<gpu dev="0" sm="304" rank="0"><xgmi target="0000:09:00.0" count="1" tclass="0x120000"/></gpu>'
    assert not conditions_of(topology).amd
    assert conditions_of(machine(gpu=text)).amd
    found = predict(planned(1), Conditions(amd=True), Collective.ALL_REDUCE, 1 << 30)
    assert (found.busbw_low_bytes_per_second, found.busbw_high_bytes_per_second) == (None, None)
    assert found.basis.endswith("none of them AMD's")


def test_ports_of_a_card_are_one():
    nets = "".join(f'<net name="a{port}" dev="{port}" speed="180000" port="{port}" gdr="1"/>' for port in (1, 2))
    merged = merge_ports(machine(nets=nets))
    ports = [net for cpu in merged.cpus for nic, _ in cpu.nics() for net in nic.nets]
    # Both ports, and the card's second function.
    assert [(net.name, net.dev, net.megabits_per_second) for net in ports] == [("a1", 1, 460000)]
    assert merge_ports(merged) == merged


def test_ports_that_differ_stay_apart():
    nets = '<net name="a" dev="0" speed="180000" gdr="1"/><net name="b" dev="1" speed="0" gdr="1"/>'
    topology = machine(nets=nets)
    assert merge_ports(topology) == topology
    unlike = '<net name="a" dev="0" speed="180000" gdr="1"/><net name="b" dev="1" speed="180000" gdr="0"/>'
    assert merge_ports(machine(nets=unlike)) == machine(nets=unlike)


def test_a_snapshot_knows_better():
    topology, snapshot = machine(), hgx()
    for virtualization, virtual in (("none", False), ("kvm", True), ("", False)):
        node = replace(snapshot.node, virtualization=virtualization)
        assert conditions_of(topology, virtual=virtual_of(replace(snapshot, node=node))).virtual is virtual
    assert conditions_of(machine(busid="0000:00:05.0"), virtual=False).virtual is False
