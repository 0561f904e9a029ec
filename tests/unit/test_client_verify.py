"""What the counters say of a plan."""

import pytest

from fabric_client.counters import Carried, between, read_counters, stacked_on
from fabric_client.verification import HostTraffic, Verdict, judge
from fabricd.localview import LocalView, ViewHca, collect

MIB = 1 << 20
N = 32 * MIB


def traffic(sent, received=None, **more):
    return Carried(sent=sent * MIB, received=(sent if received is None else received) * MIB, **more)


def host(name, planned, *, ranks=1, same_bytes=None, rails=None, **carried):
    devices = {device.replace("_p", ":"): one for device, one in carried.items()}
    return HostTraffic(
        node=name, ranks=ranks, planned=tuple(planned), carried=devices, same_bytes=same_bytes or {}, rails=rails or {}
    )


def verdict(*hosts, **more):
    return judge(hosts, N, planned=True, **more).verdict


def test_the_planned_interface_on_every_host_is_confirmed_with_figures():
    found = judge(
        [host("a", ["eth1"], eth1=traffic(33), eth0=traffic(1)), host("b", ["eth1"], eth1=traffic(33, 32))],
        N,
        planned=True,
    )
    assert (found.verdict, found.confirmed) == (Verdict.CONFIRMED, True)
    assert str(found).splitlines() == [
        "CONFIRMED (all_reduce of 32.0 MiB over 2 hosts)",
        "a: eth1 (planned) sent 33.0 MiB and received 33.0 MiB",
        "b: eth1 (planned) sent 33.0 MiB and received 32.0 MiB",
    ]


def test_another_interface_is_named():
    good = host("a", ["eth1"], eth1=traffic(33))
    assert verdict(good, host("b", ["eth1"], eth0=traffic(33), eth1=traffic(0))) is Verdict.WRONG_INTERFACE
    striped = host("b", ["eth1"], eth0=traffic(16), eth1=traffic(17))
    found = judge([good, striped], N, planned=True)
    assert found.verdict is Verdict.WRONG_INTERFACE
    assert "b: eth0 sent 16.0 MiB and received 16.0 MiB; eth1 (planned) sent 17.0 MiB" in str(found)


def test_a_bond_and_its_members_count_the_same_bytes():
    bond = host("a", ["bond0"], bond0=traffic(33), eth0=traffic(33), same_bytes={"bond0": ("eth0", "eth1")})
    assert verdict(bond, bond) is Verdict.CONFIRMED


def test_rdma_that_went_through_sockets():
    ports = host("a", ["mlx5_0:1"], mlx5_0_p1=traffic(33))
    assert verdict(ports, ports) is Verdict.CONFIRMED
    assert (
        verdict(ports, host("b", ["mlx5_0:1"], mlx5_0_p1=traffic(0), eth0=traffic(33))) is Verdict.FELL_BACK_TO_SOCKET
    )
    assert verdict(ports, host("b", ["mlx5_0:1"], eth0=traffic(33))) is Verdict.FELL_BACK_TO_SOCKET
    other = host("b", ["mlx5_0:1"], mlx5_0_p1=traffic(0), mlx5_1_p1=traffic(33))
    assert verdict(ports, other) is Verdict.WRONG_INTERFACE
    # Soft-RoCE's interface counts what its port sends, too.
    soft = host("a", ["rxe0:1"], rxe0_p1=traffic(40, estimated=True), eth0=traffic(34))
    assert verdict(soft, soft) is Verdict.CONFIRMED
    assert "rxe0:1 (planned) sent about 40.0 MiB" in judge([soft, soft], N, planned=True).because[0]


def test_ranks_of_one_host_talk_by_memory():
    quiet = host("a", [], ranks=2, lo=traffic(1, loopback=True), eth0=traffic(20))
    assert verdict(quiet) is Verdict.CONFIRMED
    assert verdict(host("a", [], ranks=2, lo=traffic(33, loopback=True))) is Verdict.FELL_BACK_TO_SOCKET
    assert verdict(host("a", [], ranks=1, lo=traffic(33, loopback=True))) is Verdict.CONFIRMED  # alone: not its own
    across = host("a", ["eth1"], ranks=2, eth1=traffic(33), lo=traffic(33, loopback=True))
    assert verdict(across, host("b", ["eth1"], eth1=traffic(33))) is Verdict.FELL_BACK_TO_SOCKET


def test_rails_that_cross():
    rails = {"mlx5_0:1": "10.0.0.0/24", "mlx5_1:1": "10.0.1.0/24"}
    straight = [
        host(name, list(rails), rails=rails, mlx5_0_p1=traffic(20), mlx5_1_p1=traffic(20)) for name in ("a", "b")
    ]
    assert verdict(*straight) is Verdict.CONFIRMED
    crossed = [
        host("a", list(rails), rails=rails, mlx5_0_p1=traffic(40, 0), mlx5_1_p1=traffic(0, 40)),
        host("b", list(rails), rails=rails, mlx5_0_p1=traffic(40, 0), mlx5_1_p1=traffic(0, 40)),
    ]
    assert verdict(*crossed) is Verdict.CROSS_RAIL
    # Names say nothing of rails where subnets are known: the second host's ports are cabled the other way.
    swapped = {"mlx5_0:1": "10.0.1.0/24", "mlx5_1:1": "10.0.0.0/24"}
    cabled = host("b", list(rails), rails=swapped, mlx5_0_p1=traffic(0, 40), mlx5_1_p1=traffic(40, 0))
    sender = host("a", list(rails), rails=rails, mlx5_0_p1=traffic(0, 40), mlx5_1_p1=traffic(40, 0))
    assert verdict(sender, cabled) is Verdict.CONFIRMED
    returns = host("b", list(rails), rails=swapped, mlx5_0_p1=traffic(40, 0), mlx5_1_p1=traffic(0, 40))
    assert verdict(sender, returns) is Verdict.CROSS_RAIL


def test_what_an_engine_says_of_gpus_memory():
    ports = host("a", ["mlx5_0:1"], mlx5_0_p1=traffic(33))
    assert verdict(ports, ports, direct=False) is Verdict.GDR_NOT_USED
    assert verdict(ports, ports, direct=True) is Verdict.CONFIRMED
    assert verdict(ports, ports, direct=None) is Verdict.CONFIRMED
    alone = host("a", ["mlx5_0:1"], ranks=2)
    assert verdict(alone, direct=False) is Verdict.CONFIRMED  # nothing leaves the host
    socket = host("a", ["eth1"], eth1=traffic(33))
    assert verdict(socket, socket, direct=False) is Verdict.CONFIRMED  # there is no direct way by IP
    wrong = host("b", ["mlx5_0:1"], mlx5_0_p1=traffic(0), mlx5_1_p1=traffic(33))
    assert verdict(ports, wrong, direct=False) is Verdict.WRONG_INTERFACE  # says more
    told = judge([ports, ports], N, planned=True, direct=False)
    assert told.direct_memory is False
    assert told.because[-1] == "GPUs' memory: copied through the hosts"


def test_gloos_ranks_of_one_host_talk_over_the_loopback():
    loud, silent = (host("a", ["lo"], ranks=2, lo=traffic(size, loopback=True)) for size in (33, 0))
    assert verdict(loud, by_memory=False) is Verdict.CONFIRMED
    assert verdict(silent, by_memory=False) is Verdict.NOT_SEEN
    assert verdict(host("a", ["lo"], ranks=1), by_memory=False) is Verdict.CONFIRMED  # alone: nothing to move
    across = host("a", ["eth1"], ranks=2, eth1=traffic(33), lo=traffic(33, loopback=True))
    assert verdict(across, host("b", ["eth1"], eth1=traffic(33)), by_memory=False) is Verdict.CONFIRMED


def test_what_cannot_be_seen_is_neither():
    blind = host("a", ["hsn0"], eth0=traffic(1))
    found = judge([blind, blind], N, planned=True)
    assert found.verdict is Verdict.NOT_SEEN
    assert "hsn0 (planned) does not tell what it carries" in str(found)
    assert judge([blind], N, planned=False).verdict is Verdict.NO_PLAN


def test_counters_of_this_machine_and_of_ports(tmp_path):
    view = collect()
    assert read_counters(view)["lo"].loopback
    for path, text in {
        "mlx5_0/ports/1/counters/port_xmit_data": "1000", "mlx5_0/ports/1/counters/port_rcv_data": "2000",
        "rxe0/ports/1/hw_counters/sent_pkts": "3", "rxe0/ports/1/hw_counters/rcvd_pkts": "4",
        "old0/ports/1/counters/port_xmit_data": "N/A (no PMA)",
    }.items():  # fmt: skip
        file = tmp_path / "class/infiniband" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text + "\n")
    view = LocalView(hcas=tuple(ViewHca(name=name, ports=(1,)) for name in ("mlx5_0", "rxe0", "old0")))
    found = read_counters(view, sys_root=tmp_path)
    assert found["mlx5_0:1"] == Carried(sent=4000, received=8000)  # counted in words
    assert found["rxe0:1"] == Carried(sent=3 * 4096, received=4 * 4096, estimated=True)
    assert "old0:1" not in found


def test_between_two_looks():
    before = {"a": Carried(sent=5, received=7), "reset": Carried(sent=9, received=9)}
    after = {
        "a": Carried(sent=8, received=7, loopback=True), "new": Carried(sent=1, received=2),
        "reset": Carried(sent=1, received=1),
    }  # fmt: skip
    found = between(before, after)
    assert found["a"] == Carried(sent=3, received=0, loopback=True)
    assert found["new"] == Carried(sent=1, received=2)
    assert found["reset"] == Carried(sent=0, received=0)


@pytest.mark.parametrize(("entries", "found"), [(["lower_eth0", "upper_br0", "queues"], {"eth0", "br0"}), ([], set())])
def test_interfaces_on_one_another(tmp_path, entries, found):
    folder = tmp_path / "class/net/bond0"
    folder.mkdir(parents=True)
    for entry in entries:
        (folder / entry).mkdir()
    assert stacked_on("bond0", tmp_path) == found
    assert stacked_on("nothing", tmp_path) == frozenset()
