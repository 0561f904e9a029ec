"""What is wrong by a job's log: alone, and held against the map of its hosts."""

from dataclasses import replace

import pytest

from fabricd.findings.joblog.judge import CODES, log_findings
from fabricd.findings.joblog.read import JobLog, read_log
from fabricd.model.device import InterfaceKind
from fabricd.model.finding import Finding, Severity
from tests.support.nodes import hgx, nic, nvlinks

MAP = {name: hgx(name, lid=1 + 10 * place) for place, name in enumerate(("h0", "h1"))}


def log_of(*hosts: list[str]) -> JobLog:
    """A log in which host number i prints some lines of NCCL's."""
    return read_log(
        f"h{place}:{place + 1}:1 [0] NCCL INFO {text}" for place, texts in enumerate(hosts) for text in texts
    )


def told(log: JobLog, nodes: object = None) -> dict[tuple[str, str], Finding]:
    found = log_findings(log, nodes)  # type: ignore[arg-type] # a map or none
    assert {one.code for one in found if one.code.startswith("log-")} <= CODES.keys()
    assert all(one.fix and one.evidence for one in found)
    return {(one.code, one.node): one for one in found}


def using(network: str, address: str = "10.0.0.1", interface: str = "eno1") -> list[str]:
    return [f"Bootstrap : Using {interface}:{address}<0>", f"Using network {network}"]


TCP = [using("Socket"), using("Socket", "10.0.0.2")]


def test_tcp_is_an_error_where_the_map_has_rdma():
    found = told(log_of([*TCP[0], "NET/IB : No device found."], TCP[1]), MAP)
    one = found["log-tcp", "h0"]
    assert one.severity is Severity.ERROR
    assert "NCCL: NET/IB : No device found" in one.evidence
    assert any("8 ports are active there: mlx5_0:1" in fact for fact in one.evidence)
    assert ("log-tcp", "h1") in found


def test_tcp_is_a_warning_where_nobody_knows_and_nothing_where_there_is_no_other():
    assert told(log_of(*TCP))["log-tcp", "h0"].severity is Severity.WARNING
    plain = {name: replace(one, hcas=()) for name, one in MAP.items()}
    assert not told(log_of(*TCP), plain)
    assert told(log_of(*TCP), {"h0": MAP["h0"]})["log-tcp", "h0"].severity is Severity.WARNING
    assert not told(log_of(TCP[0]), MAP)  # one host alone


def test_a_host_that_fell_back_alone_is_told_by_name():
    found = told(log_of(using("IB"), [*TCP[1], "NCCL_IB_DISABLE set by environment to 1."]), MAP)
    assert ("log-networks-differ", "h0") not in found
    one = found["log-networks-differ", "h1"]
    assert "NCCL_IB_DISABLE=1" in one.evidence
    assert "elsewhere IB" in one.evidence[0]
    assert ("setting-hinders", "h1") in found


@pytest.mark.parametrize(
    ("interface", "address"),
    [("lo", "127.0.0.1"), ("docker0", "172.17.0.1"), ("br-0123456789ab", "172.18.0.1"), ("eth1", "169.254.3.4")],
)
def test_interfaces_that_lead_nowhere(interface, address):
    found = told(log_of(using("IB"), using("IB", address, interface)))
    assert found.keys() == {("log-interface", "h1")}
    assert interface in found["log-interface", "h1"].what


def test_the_map_knows_better_than_a_name():
    named = replace(MAP["h1"], interfaces=(nic("docker9", "10.0.0.2/24"),))
    assert not told(log_of(using("IB"), using("IB", "10.0.0.2", "docker9")), {"h1": named})
    bridge = replace(MAP["h1"], interfaces=(nic("data", "10.0.0.2/24", kind=InterfaceKind.BRIDGE),))
    assert ("log-interface", "h1") in told(log_of(using("IB"), using("IB", "10.0.0.2", "data")), {"h1": bridge})


def test_bridges_that_a_card_is_in_lead_to_other_hosts():
    bridge = nic("br-ex", "10.0.0.2/24", kind=InterfaceKind.BRIDGE, members=("eth0",))
    card = replace(MAP["h1"], interfaces=(bridge, nic("eth0", controller="br-ex")))
    log = log_of(using("IB"), using("IB", "10.0.0.2", "br-ex"))
    assert not told(log, {"h1": card})
    assert not told(log)


@pytest.mark.parametrize("interface", ["lo", "lom1"])  # BGP on hosts gives a loopback an address that all reach
def test_a_name_that_begins_like_a_loopback_says_nothing(interface):
    assert not told(log_of(using("IB"), using("IB", "10.0.0.2", interface)))


def test_one_address_on_two_hosts():
    found = told(log_of(using("IB", "172.18.0.1", "br0"), using("IB", "172.18.0.1", "br0")))
    assert "h1 has the same address" in found["log-interface", "h0"].evidence


def rdma(direct: bool, network: str = "IB") -> str:
    return f"Channel 00/0 : 0[0] -> 1[1] [send] via NET/{network}/0{'/GDRDMA' if direct else ''}"


def test_memory_of_gpus_that_adapters_do_not_reach():
    reason = "GPU Direct RDMA Disabled for GPU 0 / HCA 0 (distance 7 > 4)"
    found = told(log_of([*using("IB"), rdma(True)], [*using("IB", "10.0.0.2"), reason, rdma(False), rdma(True)]))
    assert found.keys() == {("log-indirect", "h1")}
    assert found["log-indirect", "h1"].evidence == ("1 of 2 connections without /GDRDMA", reason)
    assert "elsewhere in this job directly" in found["log-indirect", "h1"].what
    both = told(log_of([*using("IB"), rdma(False)], [*using("IB", "10.0.0.2"), rdma(False)]))
    assert both.keys() == {("log-indirect", "h0"), ("log-indirect", "h1")}
    other = [[*using("FasTrak", f"10.0.0.{place}"), rdma(False, "FasTrak")] for place in (1, 2)]
    assert not told(log_of(*other))  # a plugin that marks nothing


def adapters(*names: str) -> str:
    listed = " ".join(f"[{place}]{name}" for place, name in enumerate(names))
    return f"NET/IB : Using {listed} [RO]; OOB eno1:10.0.0.1<0>"


def test_adapters_that_are_fewer_mixed_or_left_out():
    few = [*using("IB"), adapters("mlx5_0:1/IB")]
    mixed = [*using("IB", "10.0.0.2"), adapters("mlx5_0:1/IB", "mlx5_1:1/RoCE")]
    found = told(log_of(few, mixed))
    assert found.keys() == {("log-adapters-differ", "h0"), ("log-adapters-mixed", "h1")}
    left = told(log_of(few), MAP)["log-adapters-unused", "h0"]
    assert "mlx5_1:1, mlx5_2:1" in left.evidence[1]
    assert "mlx5_0:1" not in left.evidence[1]
    assert not told(log_of([*using("IB"), adapters("rocep3s0:1/IB")]), MAP)  # a container's own names


SHM = ["Channel 00 : 0[0] -> 1[1] via SHM/direct/direct"]


def test_memory_of_the_host_where_nvlink_joins_the_gpus():
    log = log_of([*SHM, "NCCL_P2P_DISABLE set by environment to 1."])
    assert told(log)["log-shared-memory", "h0"].severity is Severity.NOTE
    one = told(log, MAP)["log-shared-memory", "h0"]
    assert one.severity is Severity.ERROR
    assert "NCCL_P2P_DISABLE=1" in one.evidence
    pairs = [replace(gpu, links=nvlinks(2, to=MAP["h0"].gpus[gpu.index ^ 1].pci_address)) for gpu in MAP["h0"].gpus]
    by_pairs = {"h0": replace(MAP["h0"], gpus=tuple(pairs))}
    assert told(log_of(SHM), by_pairs)["log-shared-memory", "h0"].severity is Severity.NOTE


def test_hosts_are_known_by_their_names_without_a_domain():
    log = read_log(["h0.cluster.local:1:1 [0] NCCL INFO " + SHM[0]])
    assert told(log, MAP)["log-shared-memory", "h0.cluster.local"].severity is Severity.ERROR


def test_messages_are_told_once_a_host_and_the_worst_first():
    lines = ["h0:1:1 [0] NCCL INFO NET/IB : No device found.", "Duplicate GPU detected : rank 1 and rank 0"] * 3
    found = log_findings(read_log(lines))
    assert [(one.code, one.node) for one in found] == [("nccl-gpu-twice", ""), ("nccl-no-adapter", "h0")]
    assert found[0].evidence == ("line 2, 3 times: Duplicate GPU detected : rank 1 and rank 0",)
