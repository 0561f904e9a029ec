"""A machine as it would be, and what changes from one plan to another."""

from dataclasses import replace

import pytest

from fabricd.errors import InputError, UnknownNameError
from fabricd.graph.nccl_xml_merge import topology_of
from fabricd.model.collective import Channel, CollectivePlan, Prediction
from fabricd.model.path import Hop
from fabricd.model.plan import Setting
from fabricd.paths.nccl.view import NcclView
from fabricd.plan.plan_diff import plan_diff
from fabricd.plan.what_if import WhatIf, changed, parse_link, parse_speed
from tests.support.nodes import hgx, nvlinks


def machine(*, bridged=False):
    made = hgx(gpus=4, nvswitch=not bridged)
    gpus = [replace(gpu, compute_capability=(9, 0)) for gpu in made.gpus]
    if bridged:  # pairs of GPUs, by a bridge of four links each
        gpus = [replace(gpu, links=nvlinks(4, to=gpus[gpu.index ^ 1].pci_address)) for gpu in gpus]
    return topology_of(replace(made, gpus=tuple(gpus)))


def speed(topology, src, dst):
    view = NcclView(topology)
    return view.path(view.find(src), view.find(dst)).bandwidth_bytes_per_second


def test_nothing_changed_is_the_same():
    assert changed(machine(), WhatIf()) == machine()


def test_a_port_and_a_gpu_may_be_gone():
    names = NcclView(changed(machine(), WhatIf(without=["mlx5_1", "net2", "gpu3"]))).names()
    assert names == ["gpu0", "gpu1", "gpu2", "net0", "net3"]
    assert NcclView(changed(machine(), WhatIf(without=["mlx5_1:1"]))).names()[4:] == ["net0", "net2", "net3"]


def test_links_may_be_down_one_or_all_at_both_ends():
    healthy, one, all_down = (
        changed(machine(bridged=True), WhatIf(links_down=links))
        for links in ([], [("gpu0", "gpu1", 1)], [("gpu1", "gpu0", None)])
    )
    assert [speed(topology, "gpu0", "gpu1") for topology in (healthy, one)] == [4 * 20.6e9, 3 * 20.6e9]
    assert [speed(topology, "gpu1", "gpu0") for topology in (healthy, one)] == [4 * 20.6e9, 3 * 20.6e9]
    view = NcclView(all_down)
    assert view.path(view.find("gpu0"), view.find("gpu1")).type == "PHB"
    assert speed(all_down, "gpu2", "gpu3") == 4 * 20.6e9, "the other pair is as it was"


@pytest.mark.parametrize("link", ["gpu0-nvswitch:1", "nvswitch-gpu0:1"])
def test_links_to_the_nvswitch_may_be_down(link):
    weak = changed(machine(), WhatIf(links_down=[parse_link(link)]))
    assert speed(machine(), "gpu0", "gpu1") == pytest.approx(18 * 20.6e9, rel=1e-6)
    assert speed(weak, "gpu0", "gpu1") == pytest.approx(17 * 20.6e9, rel=1e-6)
    assert speed(weak, "gpu2", "gpu1") == pytest.approx(18 * 20.6e9, rel=1e-6)


def test_a_port_may_have_the_speed_that_was_measured():
    slow = changed(machine(), WhatIf(port_speeds=dict([parse_speed("mlx5_0=12.5")])))
    assert speed(slow, "gpu0", "net0") == 12.5e9
    assert speed(slow, "gpu1", "net1") == speed(machine(), "gpu1", "net1")


def test_changes_may_be_to_one_node_of_several():
    what_if = WhatIf(without=["b/mlx5_0", "gpu1"], links_down=[("a/gpu0", "a/gpu2", 1)], port_speeds={"b/net1": 1e9})
    what_if.check_nodes(["a", "b"])
    assert what_if.of_node("a") == WhatIf(without=("gpu1",), links_down=(("gpu0", "gpu2", 1),))
    assert what_if.of_node("b") == WhatIf(without=("mlx5_0", "gpu1"), port_speeds={"net1": 1e9})
    with pytest.raises(UnknownNameError, match="no node called 'b'"):
        what_if.check_nodes(["a"])


@pytest.mark.parametrize(
    ("what_if", "told"),
    [
        (WhatIf(without=["mlx5_9"]), "known: gpu0, gpu1, gpu2, gpu3, mlx5_0"),
        (WhatIf(without=["gpu9"]), "no GPU called 'gpu9'"),
        (WhatIf(links_down=[("gpu0", "gpu1", None)]), "0 NVLinks between gpu0 and gpu1"),
        (WhatIf(links_down=[("gpu0", "nvswitch", 19)]), "18 NVLinks between gpu0 and nvswitch, 19 cannot be down"),
        (WhatIf(links_down=[("gpu0", "x", 1)]), "no GPU called 'x'"),
        (WhatIf(port_speeds={"net0": -1.0}), "cannot be"),
    ],
)
def test_what_a_machine_has_not_cannot_change(what_if, told):
    with pytest.raises(InputError, match=told):
        changed(machine(), what_if)


@pytest.mark.parametrize("text", ["gpu0", "-gpu1", "gpu0-", "gpu0-gpu1:", "gpu0-gpu1:x", "gpu0-gpu1:0"])
def test_links_are_named_by_both_ends(text):
    with pytest.raises(InputError, match="names no link"):
        parse_link(text)


@pytest.mark.parametrize("text", ["net0", "net0=", "=5", "net0=fast", "net0=-1", "net0=inf"])
def test_speeds_are_named_with_their_port(text):
    with pytest.raises(InputError, match="no port with its speed"):
        parse_speed(text)


def plan(**fields):
    base = CollectivePlan(
        collective="all_reduce", bytes=1 << 30, ranks=("gpu0", "gpu1"), bandwidth_bytes_per_second=1e11
    )
    return replace(base, **fields)


def test_equal_plans_do_not_differ_wherever_their_rings_begin():
    a, b = (plan(channels=(Channel(ring=ring),)) for ring in ((0, 1, 2), (1, 2, 0)))
    assert plan_diff(a, b) == ()


def test_differences_are_figures_with_their_ratio_and_what_came_and_went():
    before = plan(
        channels=(Channel(ring=(0, 1), nics=((0, 0),)), Channel(ring=(0, 1), nics=((1, 1),))),
        bottleneck=(Hop(src="gpu0", dst="nvswitch", link="nvlink"),),
        predicted=Prediction(time_seconds=1e-3, busbw_bytes_per_second=1e11, algorithm="Ring", protocol="Simple"),
        settings=(Setting(name="NCCL_NET", value="IB"),),
    )
    after = plan(
        bytes=1 << 20,
        bandwidth_bytes_per_second=5e10,
        channels=(Channel(ring=(0, 1), nics=((0, 0),)),),
        predicted=Prediction(time_seconds=2e-3, busbw_bytes_per_second=5e10, algorithm="Tree", protocol="LL"),
        settings=(Setting(name="NCCL_NET", value="IB", scope="node", node="b"),),
    )
    told = [(one.what, one.before, one.after, one.ratio) for one in plan_diff(before, after)]
    assert told == [
        ("bytes", "1G", "1M", None),
        ("bandwidth", "100 GB/s", "50 GB/s", 0.5),
        ("time", "1 ms", "2 ms", 2.0),
        ("algorithm", "Ring Simple", "Tree LL", None),
        ("channels", "2", "1", None),
        ("ring", "2 x 0 1", "0 1", None),
        ("port", "net1", "", None),
        ("bottleneck", "gpu0 - nvswitch", "", None),
        ("setting", "NCCL_NET=IB", "", None),
        ("setting", "", "NCCL_NET=IB (b)", None),
    ]
