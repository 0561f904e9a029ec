"""The physical view against NCCL's: never narrower, and where it is wider it says why.

On machines drawn at random, and on those whose paths NCCL's own code computed.
"""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fabricd.errors import InputError
from fabricd.graph.from_nccl import graph_from_nccl
from fabricd.graph.nccl_xml_types import (
    NcclC2c,
    NcclCpu,
    NcclGpu,
    NcclNet,
    NcclNic,
    NcclNvLink,
    NcclPci,
    NcclTopology,
)
from fabricd.model.path import PathType
from fabricd.paths.describe import describe
from fabricd.paths.explain_nccl import given_away
from fabricd.paths.nccl.view import NcclView
from fabricd.paths.query import paths_in
from fabricd.paths.rank import figures_of, rank_key
from fabricd.paths.search import PathSearch
from tests.support.nccl_golden import corpus, own

SPEEDS = ("2.5 GT/s PCIe", "8.0 GT/s PCIe", "16.0 GT/s PCIe", "32.0 GT/s PCIe", "64.0 GT/s PCIe", "Unknown", "")
PROCESSORS = (
    {"arch": "x86_64", "vendor": "GenuineIntel", "familyid": 6, "modelid": 85},
    {"arch": "x86_64", "vendor": "AuthenticAMD", "familyid": 143, "modelid": 1},
    {"arch": "x86_64", "vendor": "CentaurHauls", "familyid": 7, "modelid": 0x5B},
    {"arch": "x86_64", "vendor": "unheard of"},
    {"arch": "arm64", "vendor": "ARM"},
    {"arch": "ppc64", "vendor": "IBM"},
)
BROADCOM = {"vendor": 0x1000, "device": 0xC030, "subsystem_vendor": 0x1000}


@st.composite
def topologies(draw):
    """Sockets, switches in several levels, cards, and NVLink of every layout."""
    cpus = draw(st.integers(1, 3))
    sm = draw(st.sampled_from((70, 75, 80, 86, 90, 100)))
    gpus = draw(st.integers(1, 5))
    ports = draw(st.integers(0, 4))
    processor = draw(st.sampled_from(PROCESSORS))
    switched = draw(st.booleans())
    links = {
        pair: draw(st.integers(0, 4)) for pair in ((a, b) for a in range(gpus) for b in range(a))
    } if not switched else {}  # fmt: skip

    def busid(kind, number):
        return f"0000:{kind}{number}:00.0"

    def pcie():
        return {"link_speed": draw(st.sampled_from(SPEEDS)), "link_width": draw(st.sampled_from((0, 1, 8, 16)))}

    def gpu(number):
        nvlinks = [NcclNvLink(target="0000:c0:00.0", count=6, target_class="0x068000")] if switched else []
        for (a, b), count in links.items():
            if count and number in (a, b):
                far = busid("a", b if number == a else a)
                nvlinks.append(NcclNvLink(target=far, count=count, target_class="0x030200"))
        c2c = NcclC2c(count=4, megabytes_per_second=25000) if draw(st.integers(0, 3)) == 0 else None
        card = NcclGpu(dev=number, sm=sm, rank=number, gdr=draw(st.booleans()), nvlinks=tuple(nvlinks), c2c=c2c)
        return NcclPci(busid=busid("a", number), device_class="0x030200", gpus=(card,), **pcie())

    def port(number):
        speed = draw(st.sampled_from((0, 10_000, 100_000, 400_000)))
        net = NcclNet(name=f"m{number}", dev=number, megabits_per_second=speed, gdr=draw(st.booleans()))
        if draw(st.integers(0, 5)) == 0:
            return NcclNic(nets=(net,))
        nic = NcclNic(nets=(net,))
        return NcclPci(busid=busid("b", number), device_class="0x020000", nics=(nic,), **pcie())

    children = [[] for _ in range(cpus)]
    switches = []
    for number in range(draw(st.integers(0, 4))):
        ids = {**BROADCOM, "subsystem_device": draw(st.sampled_from((0x100, 0x1100)))} if draw(st.booleans()) else {}
        switches.append((number, draw(st.integers(-cpus, number - 1)), ids, []))
    for device in [*map(gpu, range(gpus)), *map(port, range(ports))]:
        place = draw(st.integers(-cpus, len(switches) - 1))
        if place < 0 or isinstance(device, NcclNic):
            children[place % cpus].append(device)
        else:
            switches[place][3].append(device)
    for number, parent, ids, below in reversed(switches):
        if below:
            made = NcclPci(busid=busid("d", number), device_class="0x060400", children=tuple(below), **pcie(), **ids)
            (switches[parent][3] if parent >= 0 else children[parent % cpus]).append(made)
    return NcclTopology(
        version=1,
        cpus=tuple(NcclCpu(numaid=number, children=tuple(below), **processor) for number, below in enumerate(children)),
    )


def vertex(graph, name):
    """Find a vertex by NCCL's name for it: several ranks may share a GPU."""
    node, _, local = name.rpartition("/")
    return name if name in graph else graph.find(local, node=node).name


def compare(topology):
    """Fail unless every physical path is as wide as NCCL's, and every wider one explained."""
    view = NcclView(topology)
    graph = graph_from_nccl(topology)
    search = PathSearch(graph)
    wider = 0
    for theirs in view.paths():
        src, dst = vertex(graph, theirs.src), vertex(graph, theirs.dst)
        hops = search.best(src, dst)
        if hops is None:
            assert theirs.type is PathType.DIS, (theirs.src, theirs.dst)
            continue
        ours = describe(graph, src, dst, hops)
        figure = float("inf") if ours.bandwidth_bytes_per_second is None else ours.bandwidth_bytes_per_second
        bandwidth = theirs.bandwidth_bytes_per_second
        # NCCL counts in single precision.
        assert figure >= bandwidth * (1 - 1e-6), (theirs.src, theirs.dst, theirs.type, bandwidth, ours)
        why = given_away(ours, theirs)
        assert bool(why) == (figure > bandwidth * 1.001 or theirs.type is PathType.DIS)
        wider += bool(why)
    return wider


@given(topologies())
@settings(max_examples=150, deadline=None)
def test_never_narrower_than_nccl_on_random_machines(topology):
    try:
        NcclView(topology)
    except InputError:
        return  # NCCL itself fails on such a machine
    compare(topology)


@given(topologies())
@settings(max_examples=60, deadline=None)
def test_candidates_of_random_machines_are_ranked_different_and_explained(topology):
    graph = graph_from_nccl(topology)
    for dst in [vertex.name for vertex in graph][-3:]:
        answer = paths_in(graph, "gpu0", dst)
        if dst == "gpu0" or not answer.paths:
            continue
        assert [path.rank for path in answer.paths] == list(range(1, len(answer.paths) + 1))
        best = describe(graph, "gpu0", dst, PathSearch(graph).best("gpu0", dst))
        # As wide and as quick; of those the order of types decides, which the search does not know.
        assert rank_key(figures_of(answer.paths[0]))[:4] == pytest.approx(rank_key(figures_of(best))[:4])
        assert all(path.because for path in answer.paths)


@pytest.mark.parametrize("golden", own(), ids=str)
def test_never_narrower_than_nccl_on_our_machines(golden):
    compare(golden.topology())


@pytest.mark.corpus
def test_never_narrower_than_nccl_on_the_machines_of_others():
    machines = corpus()
    assert machines
    assert sum(compare(golden.topology()) for golden in machines) > 0
