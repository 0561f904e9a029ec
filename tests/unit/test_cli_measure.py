"""fabricctl measure where there is nothing to measure."""

from fabricd.model.codec import to_json
from tests.support.daemon import daemon
from tests.support.nodes import hgx


def test_a_file_cannot_be_measured(fabricctl, tmp_path):
    file = tmp_path / "node.json"
    file.write_bytes(to_json(hgx()))
    status, _, err = fabricctl("measure", "--from", file)
    assert (status, "nobody can measure" in err, "--from takes a daemon" in err) == (2, True, True)


def test_a_node_alone_has_nobody_to_be_measured_with(fabricctl, tmp_path):
    with daemon(tmp_path) as one:
        status, _, err = fabricctl("measure", "--from", one.url)
        assert (status, "is there, and a way has two ends" in err, "--peer" in err) == (2, True, True)
        status, _, err = fabricctl("measure", "--from", one.url, "--network", "10.255.0.0/24")
        assert (status, "10.255.0.0/24" in err) == (2, True)
