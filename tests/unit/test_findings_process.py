"""Findings about a process: what it may not open, its limits, and settings left over from another machine."""

from dataclasses import replace

import pytest

from fabricd.findings.environment import environment_findings
from fabricd.findings.process import name_findings, process_findings
from fabricd.localview import LocalView, ViewHca
from fabricd.model.finding import Finding, Severity
from tests.support.nodes import hgx, whole_view

INTERFACES = ("lo", "eth0", "ens1f0", "docker0")
ADAPTERS = ("mlx5_1", "mlx5_2", "mlx5_10")


def whole() -> LocalView:
    host = hgx()
    return replace(
        whole_view(host, 0), gpu_uuids=tuple(gpu.uuid for gpu in host.gpus), shm_bytes=1 << 40, memlock_bytes=None
    )


def codes(view: LocalView) -> list[str]:
    return [one.code for one in process_findings(view, hgx())]


def test_a_process_that_sees_its_whole_host_lacks_nothing() -> None:
    assert codes(whole()) == []


@pytest.mark.parametrize(
    ("code", "fields"),
    [
        ("adapters-denied", {"hcas": tuple(replace(one, usable=False) for one in whole().hcas)}),
        ("adapters-hidden", {"hcas": whole().hcas[:4]}),
        ("gpus-hidden", {"gpu_uuids": whole().gpu_uuids[:2]}),
        ("memlock-low", {"memlock_bytes": 64 << 20}),
        ("shm-small", {"shm_bytes": 64 << 20}),
    ],
)
def test_what_a_container_takes_away_is_told(code: str, fields: dict[str, object]) -> None:
    assert codes(replace(whole(), **fields)) == [code]  # type: ignore[arg-type] # fields of LocalView


@pytest.mark.parametrize(
    ("cpus", "gpus", "far"),
    [
        ((0, 1), (0,), False),
        ((2, 3), (0,), True),  # the second socket's, and a GPU of the first
        ((2, 3), (0, 5), False),  # one of the two is near
        ((0, 1, 2, 3), (7,), False),
        ((), (7,), False),
        ((2, 3), (), False),
    ],
)
def test_a_rank_that_is_bound_away_from_its_gpu(cpus: tuple[int, ...], gpus: tuple[int, ...], far: bool) -> None:
    view = replace(whole(), cpus=cpus, gpu_uuids=tuple(f"GPU-a-{index}" for index in gpus))
    found = [one for one in process_findings(view, hgx()) if one.code == "cpus-far"]
    assert [(one.subject, one.evidence) for one in found] == [("gpu0", ("CPUs 2-3; gpu0 is near 0-1",))] * far
    unknown = replace(hgx(), gpus=tuple(replace(gpu, numa_node=None) for gpu in hgx().gpus), numa=())
    assert [one for one in process_findings(view, unknown) if one.code == "cpus-far"] == []


def test_a_small_limit_does_not_matter_without_adapters() -> None:
    assert [one.code for one in process_findings(replace(whole(), memlock_bytes=1 << 16, hcas=()), None)] == []


def test_an_adapter_under_another_name_is_not_hidden() -> None:
    host = replace(hgx(gpus=1), hcas=(replace(hgx().hcas[0], node_guid="0001"),))
    view = replace(whole(), hcas=(ViewHca(name="ibp1s0", node_guid="0001", usable=True),))
    assert [one.code for one in process_findings(view, host) if one.code == "adapters-hidden"] == []


@pytest.mark.parametrize(
    ("addresses", "found"),
    [
        (["10.0.0.7"], False),
        (["fe80::1%eth0", "127.0.1.1"], False),
        (["127.0.1.1"], True),
        (["::1", "10.0.0.7"], True),
        ([], True),
    ],
)
def test_a_name_that_stands_for_the_loopback_or_nothing(addresses: list[str], found: bool) -> None:
    assert [one.code for one in name_findings("gpu7", addresses)] == ["name-loopback"] * found


def told(**settings: str) -> list[Finding]:
    return list(environment_findings(settings, interfaces=INTERFACES, adapters=ADAPTERS, source="the environment"))


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"NCCL_SOCKET_IFNAME": "eth"},
        {"NCCL_SOCKET_IFNAME": "=eth0"},
        {"NCCL_SOCKET_IFNAME": "^docker,lo"},
        {"NCCL_SOCKET_IFNAME": "eth1,ens1"},
        {"GLOO_SOCKET_IFNAME": "eth0,ens1f0"},
        {"NCCL_IB_HCA": "mlx5"},
        {"NCCL_IB_HCA": "=mlx5_1:1,mlx5_2:1"},
        {"NCCL_IB_HCA": "^=mlx5_1"},
        {"NCCL_IB_HCA": "mlx5_2"},
        {"UCX_NET_DEVICES": "mlx5_1:1,eth0"},
        {"UCX_NET_DEVICES": "all"},
        {"NCCL_IB_HCA": "^mlx4", "NCCL_NVLS_ENABLE": "2", "NCCL_NET": "IB"},
        {"NCCL_P2P_DISABLE": "0", "NCCL_IB_GID_INDEX": "-1", "NCCL_DEBUG": "INFO"},
    ],
)
def test_settings_that_fit_are_not_told(settings: dict[str, str]) -> None:
    assert told(**settings) == []


@pytest.mark.parametrize(
    ("name", "value", "code", "word"),
    [
        ("NCCL_SOCKET_IFNAME", "eno1", "setting-names-nothing", "no interface that is up here is called so"),
        ("NCCL_SOCKET_IFNAME", "=eth", "setting-names-nothing", "no interface that is up here is called so"),
        ("NCCL_SOCKET_IFNAME", "^eth,ens,docker", "setting-names-nothing", "no interface but the loopback"),
        ("NCCL_SOCKET_IFNAME", "lo", "setting-names-nothing", "no interface but the loopback"),
        ("NCCL_SOCKET_IFNAME", "10.1.0.1", "setting-syntax", "names of interfaces are expected"),
        ("GLOO_SOCKET_IFNAME", "^docker0", "setting-syntax", "without ^ and ="),
        ("GLOO_SOCKET_IFNAME", "fd00::1", "setting-syntax", "no addresses"),
        ("GLOO_SOCKET_IFNAME", "eth", "setting-names-nothing", "no interface that is up here is called eth"),
        ("NCCL_IB_HCA", "bnxt_re", "setting-names-nothing", "no adapter here is called so"),
        ("NCCL_IB_HCA", "^mlx5", "setting-names-nothing", "it leaves no adapter"),
        ("NCCL_IB_HCA", "mlx5_1:1", "setting-prefix", "fit mlx5_10 too"),
        ("UCX_NET_DEVICES", "mlx5_1:1,ib9", "setting-names-nothing", "nothing here is called ib9"),
        ("NCCL_IB_DISABLE", "1", "setting-hinders", "do without InfiniBand"),
        ("NCCL_P2P_DISABLE", "1", "setting-hinders", "NVLink too"),
        ("NCCL_NVLS_ENABLE", "0", "setting-hinders", "reductions in NVSwitches"),
        ("NCCL_NET", "Socket", "setting-hinders", "RDMA"),
        ("NCCL_IB_GID_INDEX", "3", "setting-fixed-gid", "differ between hosts"),
    ],
)
def test_settings_of_another_machine_are_told(name: str, value: str, code: str, word: str) -> None:
    found = told(**{name: value})
    assert [(one.code, one.subject) for one in found] == [(code, name)]
    assert word in found[0].what
    assert found[0].evidence == ("it stands in the environment",)


def test_the_next_step_names_what_there_is() -> None:
    assert "there are docker0, ens1f0, eth0, lo" in told(NCCL_SOCKET_IFNAME="eno1")[0].fix
    assert "mlx5_1" in told(NCCL_IB_HCA="mlx4_1")[0].fix


def test_a_setting_for_adapters_on_a_machine_without_is_told() -> None:
    settings = {"NCCL_IB_HCA": "mlx5"}
    found = list(environment_findings(settings, interfaces=INTERFACES, adapters=(), source="/etc/nccl.conf"))
    assert [(one.code, one.subject) for one in found] == [("setting-names-nothing", "NCCL_IB_HCA")]
    assert "there are none" in found[0].fix


def test_what_nccl_reaches_by_a_plugin_does_not_read_its_settings_for_infiniband() -> None:
    settings = {"NCCL_IB_HCA": "mlx5", "NCCL_IB_DISABLE": "1", "NCCL_IB_GID_INDEX": "3", "UCX_NET_DEVICES": "rdmap0:1"}
    efa = ("rdmap0", "rdmap1")
    assert list(environment_findings(settings, interfaces=(), adapters=efa, by_plugin=efa, source="x")) == []


def test_of_some_adapters_that_may_be_opened_the_others_are_a_note() -> None:
    some = (*whole().hcas[:4], *(replace(one, usable=False) for one in whole().hcas[4:]))
    for hcas in (some, some[:4]):
        assert [one.severity for one in process_findings(replace(whole(), hcas=hcas), hgx())] == [Severity.NOTE]
    none = [one.severity for one in process_findings(replace(whole(), hcas=()), hgx())]
    assert none == [Severity.WARNING]


def test_infiniband_switched_off_on_a_machine_without_hinders_nobody() -> None:
    assert list(environment_findings({"NCCL_IB_DISABLE": "1"}, interfaces=INTERFACES, adapters=(), source="x")) == []
