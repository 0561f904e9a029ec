"""Settings as a shell and NCCL read them: whatever a device is called, it comes out as it is."""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fabric_client.cli.env import EnvFormat, env
from fabric_client.cli.env_format import nccl_conf_text, shell_text, slurm_text
from fabricd.errors import InputError
from fabricd.model.cluster import ClusterStatus, NodeState, NodeStatus
from fabricd.model.codec import to_json
from fabricd.model.plan import Setting
from tests.support.machine_run import probed
from tests.support.nodes import hgx, nic

SHELLS = [path for name in ("dash", "bash", "busybox", "zsh") if (path := shutil.which(name))]
#: Anything that an environment can hold.
VALUES = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=30)


@given(st.lists(st.tuples(VALUES, VALUES), min_size=1, max_size=8))
@example([("$(touch /tmp/x)", "a\nrm -rf b"), ("'\"\\", "`id`"), ("==mlx5_0", "~"), ("a b", "# c\r\nd"), ("-n", "!!")])
@settings(max_examples=40, deadline=None)
def test_shells_read_back_every_value_whatever_the_reasons_say(values):
    told = [Setting(name=f"V{at}", value=value, because=why) for at, (value, why) in enumerate(values)]
    text = shell_text(told)
    assert text.count("export ") >= len(told)
    names = " ".join(f'"${one.name}"' for one in told)
    for shell in SHELLS:
        command = [shell, "sh"] if shell.endswith("busybox") else [shell]
        out = subprocess.run(
            [*command, "-c", f"{text}printf '%s\\0' {names}"],
            env={"LC_ALL": "C.UTF-8"},
            capture_output=True,
            timeout=20,
        )
        assert not out.stderr
        assert out.stdout.decode().split("\0")[:-1] == [value for value, _ in values]


def test_what_no_environment_holds_is_refused():
    with pytest.raises(InputError, match="no variable"):
        shell_text([Setting(name="A B", value="x")])
    with pytest.raises(InputError, match="no variable"):
        shell_text([Setting(name="A", value="x\0y")])


def test_nccls_own_file_holds_nccls_settings_only_unquoted():
    told = [
        Setting(name="NCCL_NET", value="AWS Libfabric", because="it\njoins"),
        Setting(name="UCX_TLS", value="tcp"),
    ]
    assert nccl_conf_text(told) == "# it\\njoins\nNCCL_NET=AWS Libfabric\n"
    with pytest.raises(InputError, match="cannot be written"):
        nccl_conf_text([Setting(name="NCCL_NET", value="a\nNCCL_DEBUG=INFO")])


def test_slurm_gets_values_as_they_stand_and_none_that_it_would_shorten():
    told = [Setting(name="NCCL_IB_HCA", value="=mlx5_0:1,$x 'y'", because="it joins"), Setting(name="E", value="")]
    assert slurm_text(told) == "export NCCL_IB_HCA==mlx5_0:1,$x 'y'\nexport E=\n"
    for value in ("a\nexport LD_PRELOAD=x", "a ", "\ta"):
        with pytest.raises(InputError, match="TaskProlog"):
            slurm_text([Setting(name="A", value=value)])


@pytest.fixture
def cluster(tmp_path):
    """Two machines on InfiniBand with an interface of another name each, as a file."""
    made = []
    for name, interface, host in (("a", "eth0", 1), ("b", "enp1s0", 2)):
        snapshot = hgx(name, lid=host * 100)
        snapshot = replace(snapshot, interfaces=(nic(interface, f"10.0.0.{host}/24"),))
        made.append(
            NodeStatus(node_id=snapshot.node.node_id, name=name, state=NodeState.OK, schema=1, snapshot=snapshot)
        )
    file = tmp_path / "cluster.json"
    file.write_bytes(to_json(ClusterStatus(instance="x", generation=1, nodes=tuple(made))))
    return file


def fabricctl(*arguments, environ=None):
    code = "import sys; from fabric_client.cli import main; sys.exit(main())"
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, **(environ or {})},
    )


def test_the_command_tells_each_node_its_own_names(cluster):
    found = fabricctl("env", "--from", cluster, "--engine", "gloo,nccl")
    assert found.returncode == 0, found.stderr
    assert found.stdout.startswith("# for a, in a job on a, b\nexport NCCL_NET='IB'  # ")
    assert "export GLOO_SOCKET_IFNAME='eth0'" in found.stdout


def test_a_rank_is_told_what_its_node_needs(cluster, capsys):
    env(origin=str(cluster), rank=8, output=EnvFormat.JSON, engine="gloo")
    told = json.loads(capsys.readouterr().out)
    assert (told["node"], told["rank"]) == ("b", 8)
    assert [(one["name"], one["value"], one["scope"]) for one in told["settings"]] == [
        ("GLOO_SOCKET_IFNAME", "enp1s0", "node")
    ]


def test_where_nothing_needs_to_be_set_that_is_said(tmp_path, capsys):
    file = tmp_path / "node.json"
    file.write_bytes(to_json(hgx("a", lid=100)))
    for form in (EnvFormat.SHELL, EnvFormat.NCCL_CONF):
        env(origin=str(file), engine="gloo", output=form)
        heading, why = capsys.readouterr().out.splitlines()
        assert heading == "# for a, in a job on a"
        assert why.startswith("# nothing to set: ")


def test_links_that_nccl_would_take_for_better_are_told(tmp_path, capsys):
    file = tmp_path / "node.json"
    file.write_bytes(to_json(probed("l40s-8x")[0]))
    env(origin=str(file))
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].startswith("# the PCIe link of 0000:9c:00.0 runs at 16 GT/s x8")
    assert lines[2].endswith("--topo-file FILE")
    env(origin=str(file), topo_file="/etc/topo.xml")
    assert "export NCCL_TOPO_FILE='/etc/topo.xml'" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"rank": 16}, "no rank 16: the job has 16"),
        ({"nodes": "a,c"}, "no node called 'c'"),
        ({"node": "z"}, "no node of this job called 'z'"),
        ({"engine": "rdma"}, "no engine called 'rdma'"),
        ({"topo_file": "topo.xml"}, "--topo-file 'topo.xml' is no absolute path"),
    ],
)
def test_questions_that_cannot_be_answered_say_why(cluster, asked, told):
    with pytest.raises(InputError, match=told):
        env(origin=str(cluster), **asked)
