"""Paths between two real hosts: before a measurement all networks look alike, after it the fast one leads."""

import httpx
import pytest

from fabricd.model.codec import from_json, to_json
from fabricd.model.measurement import MeasureRequest
from fabricd.model.observation import Evidence
from fabricd.model.path import PathAnswer
from tests.net.test_measure_hosts import cluster

pytestmark = pytest.mark.root


def test_what_was_measured_decides(tmp_path):
    with cluster(tmp_path) as made:
        here, there = made.hosts

        def ask(src="h0", dst="h1"):
            def get():
                query = {"src": src, "dst": dst}
                return httpx.get("http://127.0.0.1:7470/v1/paths", params=query, timeout=10, trust_env=False)

            return from_json(here.namespaces.inside(get).raise_for_status().content, PathAnswer)

        before = ask()
        networks = [path.hops[1].src for path in before.paths]
        assert len(networks) == 3
        assert all(path.virtual and path.bandwidth_bytes_per_second is None for path in before.paths)

        for network in ("slow", "fast"):
            body = MeasureRequest(
                dst_node="h1", src_address=here.link(network).address, dst_address=there.link(network).address
            )
            assert made.post("/v1/measure", body).status_code == 200, to_json(body)
        best, second, third = ask().paths
        subnets = [next(hop.dst for hop in path.hops if "network:" in hop.dst) for path in (best, second, third)]
        assert subnets == ["network:10.61.0.0/24", "network:10.62.0.0/24", "network:10.63.0.0/24"]
        assert (best.evidence, second.evidence, third.evidence) == (
            Evidence.MEASURED,
            Evidence.MEASURED,
            Evidence.ASSUMED,
        )
        assert best.bandwidth_bytes_per_second > 4 * second.bandwidth_bytes_per_second
        assert "narrower" in second.because[-1]
        assert "not known" in third.because[-1]
        assert ask("fast", "h1/slow").paths == ()
