"""``fabricctl order`` as it is typed: what it prints, what it takes, and what it refuses."""

import json

import pytest

from fabric_client.cli.export import ExportFormat, export
from fabric_client.cli.order import order
from fabric_client.cli.ranks_option import parse_ranks
from fabricd.errors import InputError
from fabricd.model.cluster import ClusterStatus, NodeState, NodeStatus
from fabricd.model.codec import to_json
from tests.support.nodes import hgx

SLURM = "SwitchName=l1 Nodes=n[1,3]\nSwitchName=l2 Nodes=n[2,4]\nSwitchName=s Switches=l[1-2]\n"


@pytest.fixture
def slurm(tmp_path):
    file = tmp_path / "topology.conf"
    file.write_text(SLURM)
    return [str(file)]


@pytest.fixture
def cluster(tmp_path):
    nodes = [
        NodeStatus(
            node_id=f"id-n{at}",
            name=f"n{at}",
            state=NodeState.OK,
            schema=1,
            snapshot=hgx(f"n{at}", gpus=2, lid=10 * at),
        )
        for at in range(1, 5)
    ]
    file = tmp_path / "cluster.json"
    file.write_bytes(to_json(ClusterStatus(instance="x", generation=1, nodes=tuple(nodes))))
    return str(file)


def test_nodes_by_name_are_put_below_their_leaves(slurm, capsys):
    order(hosts="n[1-4]", per_node=2, placement=slurm)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "8 ranks on 4 nodes, 4 get another number; no order is better (grouped)"
    assert lines[2].split() == ["leaf", "crossings", "4", "2", "at", "least", "2", "(2", "groups)"]
    assert [line.split() for line in lines[3:]] == [
        ["NODE", "RANKS", "WERE"],
        ["n1", "0-1", "0-1"],
        ["n3", "2-3", "4-5"],
        ["n2", "4-5", "2-3"],
        ["n4", "6-7", "6-7"],
    ]


def test_an_order_of_the_map_makes_the_hostfile(cluster, slurm, tmp_path, capsys):
    order(origin=cluster, placement=slurm, fix="6", as_json=True)
    text = capsys.readouterr().out
    assert json.loads(text)["order"][6] == 6
    file = tmp_path / "order.json"
    file.write_text(text)
    export(form=ExportFormat.HOSTFILE, origin=cluster, order=str(file))
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["n1", "n3", "n2", "n4"]
    export(form=ExportFormat.RANKFILE, origin=cluster, order=str(file))
    assert [line.split("=")[1].split()[0] for line in capsys.readouterr().out.splitlines()] == [
        *["n1"] * 2, *["n3"] * 2, *["n2"] * 2, *["n4"] * 2,
    ]  # fmt: skip


def test_a_mesh_is_read_and_shown(slurm, tmp_path, capsys):
    mesh = tmp_path / "mesh.json"
    axes = [{"name": "tp", "size": 2}, {"name": "dp", "size": 2, "bytes": 1 << 30}, {"name": "pp", "size": 2}]
    mesh.write_text(json.dumps({"axes": axes}))
    order(hosts="n[1-4]", per_node=2, placement=slurm, mesh=str(mesh))
    out = capsys.readouterr().out
    assert "times faster" in out.splitlines()[0]
    assert [line.split()[:3] for line in out.splitlines()[2:5]] == [
        ["tp", "2", "4"],
        ["dp", "2", "4"],
        ["pp", "2", "4"],
    ]


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"hosts": "n[1-2]", "move_ranks": True}, "--mesh only"),
        ({"hosts": "n[1-2]", "where": ["a=b"]}, "add --bandwidth"),
        ({"hosts": "n[1-2]", "fix": "99"}, "no rank 99"),
        ({"hosts": "n[1-2]", "fix": "x"}, "is no number or range"),
        ({"hosts": "n[1-"}, "bracket"),
        ({"hosts": "n[1-2]", "bandwidth": "/nowhere.csv"}, "cannot read"),
    ],
)
def test_questions_that_cannot_be_answered_say_why(asked, told):
    with pytest.raises(InputError, match=told):
        order(**asked)


@pytest.mark.parametrize(("text", "ranks"), [("", ()), ("3", (3,)), ("0-2,7", (0, 1, 2, 7)), (" 5 , 4", (5, 4))])
def test_lists_of_ranks(text, ranks):
    assert parse_ranks(text, "--fix") == ranks


@pytest.mark.parametrize("text", ["-1", "2-1", "a", "1,,2", "0-9999999", "1,1", "1-"])
def test_what_is_no_list_of_ranks(text):
    with pytest.raises(InputError, match="--fix"):
        parse_ranks(text, "--fix")
