"""Probes of where a node stands: files that the configuration names, and the provider's metadata service."""

import json
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from fabricd.model.network import NetworkRule
from fabricd.model.observation import Outcome
from fabricd.model.placement import Position
from fabricd.probe import instance
from fabricd.probe.base import ProbeAbsent, ProbeContext, ProbeDenied, ProbeFailed, ProbeNotRun, Roots
from fabricd.probe.instance import InstanceProbe
from fabricd.probe.placement import PlacementProbe
from fabricd.probe.registry import PROBES, configured_probes
from fabricd.probe.runner import take_snapshot
from tests.support.tree import Tree

CONF = "SwitchName=top Switches=leaf1\nSwitchName=leaf1 Nodes=gpu[1-4]\n"
HOST = {"proc/sys/kernel": {"hostname": "gpu3.cluster\n"}}


def machine(root, files: Mapping[str, Mapping[str, str]]) -> ProbeContext:
    tree = Tree()
    for folder, content in files.items():
        tree.update(folder, dict(content))
    return ProbeContext(roots=Roots.under(tree.write(root)), this_host=False)


def test_a_node_is_looked_up_in_the_files_by_its_names(tmp_path):
    block = (
        '{"items": [{"kind": "Node", "metadata": {"name": "gpu3", "labels": {"topology.kubernetes.io/zone": "z"}}}]}'
    )
    ctx = machine(tmp_path, HOST | {"etc/slurm": {"topology.conf": CONF}, "srv": {"nodes.json": block}})
    probe = PlacementProbe(("/etc/slurm/topology.conf", "/srv/nodes.json", "/nowhere"))
    result = probe.run(ctx)
    assert result.facts["positions"] == (
        Position(source="slurm", origin="/etc/slurm/topology.conf", switches=("leaf1", "top")),
        Position(source="kubernetes", origin="/srv/nodes.json", zone="z"),
    )
    assert result.notes == ("/nowhere: is not there",)
    (tmp_path / "etc/slurm/topology.conf").write_text("SwitchName=leaf9 Nodes=gpu[1-9]")
    assert probe.run(ctx).facts["positions"][0].switches == ("leaf9",)


def test_names_of_the_configuration_and_of_ec2_serve_too(tmp_path):
    ctx = machine(
        tmp_path,
        HOST
        | {
            "etc": {"t.conf": "SwitchName=a Nodes=called\nSwitchName=b Nodes=i-0123456789abcdef0"},
            "sys/class/dmi/id": {"board_asset_tag": "i-0123456789abcdef0\n"},
        },
    )
    assert PlacementProbe(("/etc/t.conf",), ("called",)).run(ctx).facts["positions"][0].switches == ("a",)
    assert PlacementProbe(("/etc/t.conf",)).run(ctx).facts["positions"][0].switches == ("b",)


def test_each_way_to_find_nothing_is_told_apart(tmp_path, monkeypatch):
    ctx = machine(
        tmp_path, HOST | {"etc": {"good.conf": "SwitchName=a Nodes=other", "bad.conf": "SwitchName=a Nods=b"}}
    )
    with pytest.raises(ProbeAbsent, match="not there: /etc/none"):
        PlacementProbe(("/etc/none",)).run(ctx)
    with pytest.raises(ProbeAbsent, match=r"no file knows a node called gpu3.cluster"):
        PlacementProbe(("/etc/good.conf",)).run(ctx)
    with pytest.raises(ProbeFailed, match=r"/etc/bad.conf, line 1: nods does not"):
        PlacementProbe(("/etc/bad.conf", "/etc/good.conf")).run(ctx)

    def denied(*_args):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("fabricd.probe.placement.status_of", denied)
    with pytest.raises(ProbeDenied, match=r"/etc/good.conf: Permission denied"):
        PlacementProbe(("/etc/good.conf",)).run(ctx)


Answers = Mapping[tuple[str, str], tuple[int, str]]


@contextmanager
def metadata_service(answers: Answers, needs: tuple[str, str] | None = None) -> Iterator[tuple[str, list[str]]]:
    """A metadata service on loopback: what it answers by method and path, and the header without which it refuses."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            asked.append(f"{self.command} {self.path}")
            status, text = answers.get((self.command, self.path), (404, ""))
            if needs is not None and self.command == "GET" and self.headers.get(needs[0]) != needs[1]:
                status, text = 401, ""
            data = text.encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_PUT = answer  # noqa: N815 - names that the library asks for

        def log_message(self, *_args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def cloud(root, **dmi: str) -> ProbeContext:
    tree = Tree()
    tree.update("sys/class/dmi/id", {name: text + "\n" for name, text in dmi.items()})
    return ProbeContext(roots=Roots.under(tree.write(root)))


AZURE = {"chassis_asset_tag": "7783-7084-3265-9085-8269-3286-77", "sys_vendor": "Microsoft Corporation"}
GCE = {"product_name": "Google Compute Engine"}
OCI = {"chassis_asset_tag": "OracleCloud.com"}
EC2 = {"sys_vendor": "Amazon EC2"}


def test_aws_is_asked_with_a_token(tmp_path):
    data = "/latest/meta-data/"
    answers = {
        ("PUT", "/latest/api/token"): (200, "the-token"),
        ("GET", data + "instance-id"): (200, "i-0abc"),
        ("GET", data + "placement/availability-zone"): (200, "us-west-2a"),
        ("GET", data + "placement/region"): (200, "us-west-2"),
        ("GET", data + "mac"): (200, "0e:49:61:0f:c3:11"),
        ("GET", data + "network/interfaces/macs/0e:49:61:0f:c3:11/vpc-id"): (200, "vpc-0def"),
    }
    with metadata_service(answers, ("X-aws-ec2-metadata-token", "the-token")) as (url, asked):
        result = InstanceProbe(url).run(cloud(tmp_path, **EC2))
    assert result.facts["positions"] == (
        Position(source="aws", origin=url, zone="us-west-2a", region="us-west-2", vpc="vpc-0def", instance_id="i-0abc"),
    )
    assert result.notes == ("/latest/meta-data/placement/group-name: not told",)
    assert asked[0] == "PUT /latest/api/token"


def test_azure_google_and_oracle(tmp_path):
    compute = '{"location": "eastus", "zone": "2", "placementGroupId": "g", "vmId": "v", "tags": [1]}'
    azure = {("GET", "/metadata/instance/compute?api-version=2021-02-01"): (200, compute)}
    with metadata_service(azure, ("Metadata", "true")) as (url, _):
        (found,) = InstanceProbe(url).run(cloud(tmp_path / "azure", **AZURE)).facts["positions"]
    assert found == Position(source="azure", origin=url, block="g", zone="2", region="eastus", instance_id="v")
    data = "/computeMetadata/v1/instance/"
    google = {
        ("GET", data + "attributes/physical_host_topology"): (
            200,
            '{"cluster": "c", "block": "b", "subblock": "s", "host": "h"}',
        ),
        ("GET", data + "zone"): (200, "projects/1/zones/us-central1-a"),
        ("GET", data + "id"): (200, "42"),
    }
    with metadata_service(google, ("Metadata-Flavor", "Google")) as (url, _):
        (found,) = InstanceProbe(url).run(cloud(tmp_path / "gce", **GCE)).facts["positions"]
    assert (found.switches, found.zone, found.region) == (("s", "b", "c"), "us-central1-a", "us-central1")
    host = {
        "networkBlockId": "nb",
        "rackId": "r",
        "rdmaTopologyData": {"customerLocalBlock": "l", "customerNetworkBlock": "n", "customerGpuMemoryFabric": "f"},
    }
    oracle = {
        ("GET", "/opc/v2/host/"): (200, json.dumps(host)),
        ("GET", "/opc/v2/instance/"): (200, '{"id": "ocid1", "canonicalRegionName": "us-ashburn-1"}'),
    }
    with metadata_service(oracle, ("Authorization", "Bearer Oracle")) as (url, _):
        (found,) = InstanceProbe(url).run(cloud(tmp_path / "oci", **OCI)).facts["positions"]
    assert (found.switches, found.rack, found.nvlink_domain) == (("l", "n"), "r", "f")
    assert (found.block, found.region) == ("nb", "us-ashburn-1")


def test_a_service_that_refuses_fails_or_tells_nonsense(tmp_path, monkeypatch):
    token = {("PUT", "/latest/api/token"): (403, "")}
    with metadata_service(token) as (url, _), pytest.raises(ProbeDenied, match="api/token refuses: 403"):
        InstanceProbe(url).run(cloud(tmp_path / "a", **EC2))
    path = ("GET", "/metadata/instance/compute?api-version=2021-02-01")
    for number, (answer, says) in enumerate(
        (((500, "x"), "answers 500"), ((200, "<html>"), "no JSON object"), ((200, "[" * 9999), "no JSON object"))
    ):
        with metadata_service({path: answer}) as (url, _), pytest.raises(ProbeFailed, match=says):
            InstanceProbe(url).run(cloud(tmp_path / f"b{number}", **AZURE))
    with metadata_service({path: (200, '{"location": 5, "zone": "a\\nb"}')}) as (url, _):
        (found,) = InstanceProbe(url).run(cloud(tmp_path / "c", **AZURE)).facts["positions"]
    assert found == Position(source="azure", origin=url)
    with metadata_service({}) as (gone, _):
        pass
    with pytest.raises(ProbeFailed, match="does not answer"):
        InstanceProbe(gone).run(cloud(tmp_path / "d", **AZURE))
    monkeypatch.setattr(instance, "_ALL_SECONDS", 0.0)
    with pytest.raises(ProbeFailed, match="within 0 s"):
        InstanceProbe(gone).run(cloud(tmp_path / "e", **AZURE))


def test_a_service_that_never_answers_is_left(tmp_path, monkeypatch):
    monkeypatch.setattr(instance, "_ASK_SECONDS", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(ProbeFailed, match=r"does not answer .*: timed out"):
            InstanceProbe(url).run(cloud(tmp_path, **GCE))


def test_nothing_is_asked_of_a_machine_that_is_no_instance_or_not_here(tmp_path):
    with metadata_service({}) as (url, asked):
        with pytest.raises(ProbeAbsent, match="names none of aws, azure, gcp, oci"):
            InstanceProbe(url).run(cloud(tmp_path, sys_vendor="Supermicro"))
        with pytest.raises(ProbeNotRun):
            InstanceProbe(url).run(ProbeContext(this_host=False))
    assert asked == []


def test_what_is_configured_decides_which_probes_there_are(tmp_path):
    assert configured_probes() == PROBES
    rule = NetworkRule(role="storage", interface="eth1")
    made = configured_probes(networks=[rule], placement_files=["/etc/t.conf"], instance_metadata=True, names=["gpu1"])
    assert [probe.name for probe in made[len(PROBES) :]] == ["site", "placement", "instance"]
    ctx = machine(tmp_path, HOST | {"etc": {"t.conf": CONF}})
    snapshot = take_snapshot(ctx, probes=made[len(PROBES) :])
    assert snapshot.site_networks == (rule,)
    assert [position.switches for position in snapshot.positions] == [("leaf1", "top")]
    assert [report.outcome for report in snapshot.probes] == [Outcome.OK, Outcome.OK, Outcome.NOT_RUN]
