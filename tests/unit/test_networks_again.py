"""What is worked out again after a change: the same as from nothing, from the ports of what has changed alone."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from fabricd.cluster.placement_files import PlacementFiles
from fabricd.graph.networks import find_networks, find_networks_of
from fabricd.graph.networks_node import KnownPorts
from fabricd.graph.placement import placement
from tests.support.nodes import hgx, mapping, nic, node, nvl_tray

MACHINES = st.one_of(
    st.builds(lambda name, lid: hgx(name, gpus=2, lid=lid), st.sampled_from("abc"), st.integers(1, 3)),
    st.builds(
        lambda name, host, up: node(name, interfaces=(nic("eth0", f"10.0.{host}.{host}/16", admin_up=up),)),
        st.sampled_from("abc"),
        st.integers(1, 3),
        st.booleans(),
    ),
    st.builds(
        lambda number, cluster: nvl_tray(number, cluster=cluster), st.integers(0, 2), st.sampled_from(["d0", "d1"])
    ),
)


@given(st.lists(st.lists(MACHINES, max_size=4), min_size=1, max_size=4))
def test_answers_after_changes_are_those_from_nothing(history):
    known = KnownPorts()
    for machines in history:
        nodes = mapping(*machines)
        ports = known.of(nodes)
        assert find_networks_of(ports) == find_networks(nodes)
        assert placement(nodes, ports=ports) == placement(nodes)


def test_only_what_has_changed_is_worked_out_anew():
    a, b = hgx("a"), hgx("b", lid=20)
    known = KnownPorts()
    before = known.of(mapping(a, b))
    after = known.of(mapping(replace(a, generation=9), b))
    assert after["id-b"] is before["id-b"]
    assert after["id-a"] is not before["id-a"]
    assert list(known.of(mapping(b))) == ["id-b"]
    assert known.of(mapping(a, b))["id-a"] is not before["id-a"]


def test_nodes_that_files_place_stay_the_same_until_they_or_the_file_change(tmp_path):
    file = tmp_path / "topology.conf"
    file.write_text("SwitchName=leaf1 Nodes=a,b\n")
    files = PlacementFiles([str(file)])
    a, b = node("a"), node("b")
    before = files.applied(mapping(a, b))
    after = files.applied(mapping(replace(a, generation=9), b))
    assert after["id-b"] is before["id-b"]
    assert after["id-a"].generation == 9
    file.write_text("SwitchName=leaf-2 Nodes=a,b\n")
    assert [one.positions[0].switches for one in files.applied(mapping(a, b)).values()] == [("leaf-2",)] * 2
