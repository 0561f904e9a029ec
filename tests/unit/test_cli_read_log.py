"""fabricctl read-log on files: what people see, what programs get, and the exit status."""

import gzip
import json

import pytest

from fabricd.model.codec import to_json
from tests.support.daemon import daemon
from tests.support.nodes import hgx

GOOD = """NCCL version 2.27.5+cuda12.9
h0:1:1 [0] NCCL INFO Bootstrap: Using eno1:10.0.0.1<0>
h0:1:1 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [RO]; OOB eno1:10.0.0.1<0>
h0:1:1 [0] NCCL INFO Using network IB
h0:1:1 [0] NCCL INFO comm 0x1 rank 0 nranks 2 cudaDev 0 busId 1000 - Init COMPLETE
h0:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/IB/0/GDRDMA
h1:1:1 [0] NCCL INFO Bootstrap: Using eno1:10.0.0.2<0>
h1:1:1 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [RO]; OOB eno1:10.0.0.2<0>
h1:1:1 [0] NCCL INFO Using network IB
h1:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [receive] via NET/IB/0/GDRDMA
"""


@pytest.fixture
def good(tmp_path):
    file = tmp_path / "good.log"
    file.write_text(GOOD)
    return file


@pytest.fixture(autouse=True)
def no_daemon(monkeypatch, tmp_path):
    monkeypatch.setenv("FABRICD_SOCKET", str(tmp_path / "none"))


def test_a_job_on_rdma_is_told_and_fine(fabricctl, good):
    status, out, _ = fabricctl("read-log", good)
    assert status == 0
    assert out.splitlines() == [
        "NCCL 2.27.5+cuda12.9: 2 ranks on 2 hosts",
        "  networks       IB",
        "  adapters       1 (IB)",
        "  ranks meet on  eno1",
        "  between hosts  2 ends by RDMA, 2 of them with GPUDirect; 0 by TCP",
        "no map: no daemon answers here, so this is by the log alone; --from names a map",
        "0 errors, 0 warnings, 0 notes on 2 nodes",
    ]


def test_several_files_are_one_job_and_hosts_that_differ_are_named(fabricctl, good, tmp_path):
    other = tmp_path / "rank2.log"
    other.write_bytes(
        b"h2:1:1 [0] NCCL INFO NET/IB : No device found.\nh2:1:1 [0] NCCL INFO Using network Socket\n\xff\n"
    )
    status, out, _ = fabricctl("read-log", good, other)
    assert status == 1
    assert "  networks       IB: h0, h1; Socket (TCP): h2" in out
    assert "error    log-networks-differ  h2" in out
    assert f"because: {other} line 1, once: h2:1:1 [0] NCCL INFO NET/IB : No device found." in out


def test_the_map_says_what_the_log_leaves_out(fabricctl, good, tmp_path):
    machine = tmp_path / "h0.json"
    machine.write_bytes(to_json(hgx("h0")))
    status, out, _ = fabricctl("read-log", good, "--from", machine)
    assert (status, f"held against the map of {machine}: 1 of 2 hosts known to it" in out) == (1, True)
    assert "warning  log-adapters-unused  h0" in out


def test_programs_get_json(fabricctl, good):
    status, out, _ = fabricctl("read-log", good, "--json")
    answer = json.loads(out)
    assert (status, answer["ranks"], answer["findings"]) == (0, 2, [])
    assert answer["hosts"]["h0"]["direct"] == 1


def test_messages_alone_are_enough(fabricctl, tmp_path):
    file = tmp_path / "gloo.log"
    file.write_text("RuntimeError: ... ifa != nullptr. Unable to find address for: ^docker0\n")
    status, out, _ = fabricctl("read-log", file)
    assert (status, "error    gloo-interface" in out, "NCCL" in out.splitlines()[0]) == (1, True, False)


def test_wrong_input_is_told(fabricctl, tmp_path, good):
    file = tmp_path / "other.log"
    file.write_text("epoch 1\nepoch 2\n")
    status, _, err = fabricctl("read-log", file)
    assert (status, "2 lines, none of NCCL" in err, "NCCL_DEBUG=INFO" in err) == (2, True, True)
    packed = tmp_path / "good.log.gz"
    packed.write_bytes(gzip.compress(good.read_bytes()))
    status, _, err = fabricctl("read-log", packed)
    assert (status, f"{packed} is compressed" in err, "zcat" in err) == (2, True, True)
    status, _, err = fabricctl("read-log", tmp_path / "none.log")
    assert (status, "none.log" in err) == (2, True)
    assert fabricctl("read-log", good, "--from", f"unix:{tmp_path}/nobody")[0] == 3
    topology = tmp_path / "topo.xml"
    topology.write_text('<system version="1"><cpu numaid="0" affinity="ff" arch="x86_64" vendor="x"/></system>')
    assert fabricctl("read-log", good, "--from", topology)[0] == 2


def test_a_log_without_connections_says_how_to_get_them(fabricctl, tmp_path):
    file = tmp_path / "short.log"
    file.write_text("h0:1:1 [0] NCCL INFO Using network IB\n")
    status, out, _ = fabricctl("read-log", file)
    assert (status, "  connections    ? NCCL tells them with NCCL_DEBUG=INFO" in out) == (0, True)


def test_long_lines_are_cut_and_too_much_is_refused(fabricctl, tmp_path, monkeypatch, good):
    long = tmp_path / "long.log"
    long.write_text("x" * 10_000 + "Using network IB\n" + GOOD)
    assert fabricctl("read-log", long)[0] == 0
    monkeypatch.setattr("fabric_client.cli.read_log._MAX_BYTES", 5000)
    status, _, err = fabricctl("read-log", long)
    assert (status, "more than 5000 bytes" in err) == (2, True)
    status, _, err = fabricctl("read-log", "/dev/zero")  # one line without an end
    assert (status, "more than 5000 bytes" in err) == (2, True)


def test_what_differs_between_few_hosts_is_told_of_each(fabricctl, tmp_path):
    file = tmp_path / "tcp.log"
    file.write_text(
        "h0:1:1 [0] NCCL INFO NET/IB : No device found.\nh0:1:1 [0] NCCL INFO Using network Socket\n"
        "h1:1:1 [0] NCCL INFO NCCL_IB_HCA set by environment to mlx5_99\nh1:1:1 [0] NCCL INFO Using network Socket\n"
    )
    _, out, _ = fabricctl("read-log", file)
    because = [line.strip() for line in out.splitlines() if "because: Using network" in line]
    assert [line.endswith(f"({host})") for line, host in zip(because, ("h0", "h1"), strict=True)] == [True, True]
    assert "NCCL: NET/IB : No device found" in because[0]
    assert "NCCL_IB_HCA=mlx5_99" in because[1]


def test_the_daemon_of_this_host_is_the_map_where_there_is_one(fabricctl, tmp_path, monkeypatch):
    file = tmp_path / "job.log"
    file.write_text(GOOD.replace("h1:", "n0:"))
    with daemon(tmp_path, name="n0") as n0:
        monkeypatch.setenv("FABRICD_URL", n0.url)
        status, out, _ = fabricctl("read-log", file)
    assert (status, f"held against the map of {n0.url}: 1 of 2 hosts known to it" in out) == (0, True)
