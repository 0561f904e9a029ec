"""Ports are dealt to GPUs by their paths, evenly, and always in the same way."""

from collections import Counter
from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from fabricd.graph.graph import VertexKind
from fabricd.graph.snapshot import graph_of
from fabricd.model.device import Gpu
from fabricd.model.path import PathType
from fabricd.paths.affinity import _deal, _semi_matching, affinity
from tests.support.nodes import BRIDGE, GEN4, hca, hgx, ib_port, node, pci


def of(snapshot):
    graph = graph_of(snapshot, node="")
    ports = [vertex.name for vertex in graph.of_kind(VertexKind.HCA_PORT)]
    return affinity(graph, ports)


def test_a_gpu_and_the_port_under_its_switch():
    found = of(hgx())
    assert [(one.gpu, one.type, one.assigned) for one in found.gpus] == [
        (f"gpu{number}", PathType.PIX, (f"mlx5_{number}:1",)) for number in range(8)
    ]
    assert [(one.gpus, one.rail) for one in found.ports] == [((f"gpu{number}",), number) for number in range(8)]


def behind_one_switch(gpus, ports):
    """Some GPUs and some ports, all under one switch."""
    devices = [
        pci("0000:00:01.0", class_code=BRIDGE, link=GEN4, numa_node=0),
        pci("0000:01:00.0", parent="0000:00:01.0", class_code=BRIDGE, link=GEN4, numa_node=0),
    ]
    for number in range(gpus + ports):
        port = f"0000:02:{number:02x}.0"
        devices.append(pci(port, parent="0000:01:00.0", class_code=BRIDGE, link=GEN4, numa_node=0))
        devices.append(pci(f"0000:{number + 3:02x}:00.0", parent=port, link=GEN4, numa_node=0))
    cards = tuple(Gpu(index=number, pci_address=f"0000:{number + 3:02x}:00.0") for number in range(gpus))
    hcas = tuple(
        hca(f"mlx5_{number}", ib_port(lid=number + 1), pci_address=f"0000:{gpus + number + 3:02x}:00.0")
        for number in range(ports)
    )
    return of(node(pci=tuple(devices), gpus=cards, hcas=hcas))


def test_ties_are_shared_out_evenly():
    for gpus, ports in product((1, 2, 3, 4, 6), (1, 2, 3, 4, 8)):
        found = behind_one_switch(gpus, ports)
        assert all(len(one.best) == ports for one in found.gpus)
        if gpus >= ports:
            assert all(len(one.assigned) == 1 for one in found.gpus)
            loads = [len(one.gpus) for one in found.ports]
        else:
            assert all(len(one.gpus) == 1 for one in found.ports)
            loads = [len(one.assigned) for one in found.gpus]
        assert max(loads) - min(loads) <= 1


def test_without_ports_or_without_gpus_there_is_nothing_to_deal():
    assert [one.assigned for one in behind_one_switch(2, 0).gpus] == [(), ()]
    assert behind_one_switch(2, 0).gpus[0].type is PathType.DIS
    assert [one.rail for one in behind_one_switch(0, 2).ports] == [None, None]


def test_a_gpu_whose_only_port_others_like_too_still_gets_one():
    dealt = _deal({"a": ["p1"], "b": ["p1"], "c": ["p1", "p2", "p3", "p4"]})
    assert dealt == {"a": ["p1"], "b": ["p1"], "c": ["p2", "p3", "p4"]}


OPTIONS = st.dictionaries(
    st.sampled_from("abcde"), st.lists(st.sampled_from("wxyz"), min_size=1, max_size=4, unique=True), min_size=1
)


@given(OPTIONS)
def test_no_other_choice_is_more_even(options):
    taken = _semi_matching(options)
    assert taken.keys() == options.keys()
    assert all(taken[item] in options[item] for item in options)

    def unevenness(choice):
        return sum(load**2 for load in Counter(choice).values())

    assert unevenness(taken.values()) == min(unevenness(choice) for choice in product(*options.values()))


@given(OPTIONS)
def test_every_item_gets_something_and_only_what_is_best_for_it(options):
    dealt = _deal(options)
    assert all(dealt[item] and set(dealt[item]) <= set(options[item]) for item in options)
