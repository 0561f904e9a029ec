"""Settings of a plan are checked before MPI sees them."""

import os

import pytest

from fabric_client.engine.settings import (
    check_devices,
    check_transports,
    choose_settings,
    may_use_rdma,
    scrub_process_manager,
    variables_set,
)
from fabricd.errors import EngineError
from fabricd.localview import LocalView, ViewHca, ViewInterface
from fabricd.model.plan import Setting

VIEW = LocalView(
    interfaces=(ViewInterface(name="lo"), ViewInterface(name="eth0"), ViewInterface(name="fast")),
    hcas=(ViewHca(name="mlx5_0", usable=True, ports=(1, 2)), ViewHca(name="mlx5_9", usable=False, ports=(1,))),
)
PLAIN = LocalView(interfaces=(ViewInterface(name="eth0"),))


def test_the_plans_settings_are_chosen_and_told():
    chosen, notes = choose_settings(
        [Setting(name="UCX_TLS", value="tcp,self", because="no RDMA"), Setting(name="UCX_NET_DEVICES", value="fast")],
        VIEW,
        {},
    )
    assert chosen == {"UCX_TLS": "tcp,self", "UCX_NET_DEVICES": "fast"}
    assert notes == ("UCX_TLS=tcp,self (no RDMA)", "UCX_NET_DEVICES=fast")


def test_what_the_user_has_set_stays_and_is_told():
    settings = [Setting(name="UCX_NET_DEVICES", value="fast")]
    chosen, notes = choose_settings(settings, VIEW, {"UCX_NET_DEVICES": "eth0"})
    assert chosen == {}
    assert notes == ("UCX_NET_DEVICES=eth0 from the environment, instead of the plan's fast",)
    with pytest.raises(EngineError, match="eth7"):
        choose_settings(settings, VIEW, {"UCX_NET_DEVICES": "eth7"})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("LD_PRELOAD", "/tmp/x.so"),
        ("UCX_MODULE_DIR", "/tmp"),
        ("UCX_LOG_FILE", "/etc/passwd"),
        ("PATH", "/tmp"),
        ("UCX_TLS", "tcp\nself"),
        ("UCX_TLS", ""),
        ("UCX_NET_DEVICES", "a" * 2000),
        ("UCX_NET_DEVICES", "$(reboot)"),
    ],
)
def test_a_plan_cannot_set_anything_else(name, value):
    with pytest.raises(EngineError, match="does not apply"):
        choose_settings([Setting(name=name, value=value)], VIEW, {})


@pytest.mark.parametrize("value", ["", "all", "eth0", "eth0,fast", "mlx5_0:1", "mlx5_0:2,eth0", "^eth0", "^mlx5_9:1"])
def test_devices_that_are_here(value):
    check_devices(value, VIEW)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("eth1", "names eth1.*devices here: eth0, fast, lo, mlx5_0:1"),
        ("eth0,ib0,ib1", "names ib0, ib1"),
        ("mlx5_0", "names mlx5_0"),
        ("mlx5_0:3", "names mlx5_0:3"),
        ("mlx5_9:1", "may not open mlx5_9"),
    ],
)
def test_devices_that_are_not(value, said):
    with pytest.raises(EngineError, match=said):
        check_devices(value, VIEW)


@pytest.mark.parametrize("value", ["", "all", "tcp,self", "sm,self", "^ib", "rc,ud,self", "rc_v,ud_v,self"])
def test_transports_that_work(value):
    check_transports(value, VIEW)


def test_transports_that_do_not():
    with pytest.raises(EngineError, match="no transport called bogus, tpc"):
        check_transports("bogus,tcp,tpc", VIEW)
    with pytest.raises(EngineError, match="needs an RDMA device"):
        check_transports("rc,self", PLAIN)
    check_transports("^rc", PLAIN)


def test_variables_of_an_outer_launcher_go_and_others_stay(monkeypatch):
    for name in ("PMI_RANK", "PMI_FD", "PMIX_NAMESPACE", "HYDI_CONTROL_FD", "MPI_LOCALNRANKS", "MPIR_CVAR_PMI_VERSION"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("PMI", "x")
    monkeypatch.setenv("MPIR_CVAR_OTHER", "x")
    assert len(scrub_process_manager()) == 6
    assert scrub_process_manager() == ()
    assert os.environ["PMI"] == os.environ["MPIR_CVAR_OTHER"] == "x"


def test_variables_are_put_back(monkeypatch):
    monkeypatch.setenv("UCX_TLS", "mine")
    monkeypatch.delenv("UCX_NET_DEVICES", raising=False)
    with variables_set({"UCX_TLS": "plan", "UCX_NET_DEVICES": "eth0"}):
        assert (os.environ["UCX_TLS"], os.environ["UCX_NET_DEVICES"]) == ("plan", "eth0")
    assert os.environ["UCX_TLS"] == "mine"
    assert "UCX_NET_DEVICES" not in os.environ


@pytest.mark.parametrize(
    ("tls", "may"),
    [("self,rc,ud", True), ("self,sm,rc_v", True), ("\\dc_x,self", True), ("self,sm,tcp", False), ("all", True),
     ("^tcp", True), (None, True)],
)  # fmt: skip
def test_whether_rdma_may_be_used(tls, may):
    variables = {} if tls is None else {"UCX_TLS": tls}
    assert may_use_rdma(variables, VIEW) is may
    assert not may_use_rdma(variables, PLAIN)
