"""Networks and places as a real daemon serves them, with what its configuration says."""

import pytest

from fabricd.model.cluster import ClusterStatus
from fabricd.model.codec import from_json
from fabricd.model.network import NetworkRule
from fabricd.model.placement import Position
from fabricd.model.snapshot import Snapshot
from tests.support.daemon import daemon

CONFIG = """
[placement]
files = ["{file}"]
[[network]]
interface = "*"
role = "storage"
"""


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    folder = tmp_path_factory.mktemp("networks")
    topology = folder / "topology.conf"
    topology.write_text("SwitchName=top Switches=leaf7\nSwitchName=leaf7 Nodes=near\nBlockName=su1 Nodes=near\n")
    config = folder / "c.toml"
    config.write_text(CONFIG.format(file=topology))
    with daemon(folder, "--config", str(config), name="near") as one:
        yield one, str(topology)


def test_the_node_publishes_what_is_configured_for_it(running):
    near, file = running
    snapshot = from_json(near.get("/v1/node").content, Snapshot)
    assert snapshot.site_networks == (NetworkRule(role="storage", interface="*"),)
    assert snapshot.positions == (Position(source="slurm", origin=file, switches=("leaf7", "top"), block="su1"),)
    assert {"site", "placement"} <= {report.name for report in snapshot.probes}


def test_the_cluster_is_served_with_networks_and_places_when_asked(running):
    near, _ = running
    plain = near.get("/v1/cluster?summary=1")
    assert from_json(plain.content, ClusterStatus).networks is None
    asked = near.get("/v1/cluster?summary=1&networks=1")
    told = from_json(asked.content, ClusterStatus)
    assert told.networks is not None
    assert told.no_network is not None
    assert {network.role for network in told.networks} <= {"storage"}
    (place,) = told.places
    assert (place.node, place.leaf, place.spine, place.block) == ("near", "leaf7", "top", "su1")
    assert asked.headers["ETag"] != plain.headers["ETag"]
    again = near.get("/v1/cluster?summary=1&networks=1", headers={"If-None-Match": asked.headers["ETag"]})
    assert (again.status_code, again.content) == (304, b"")
