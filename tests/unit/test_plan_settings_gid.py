"""Which of an adapter's GIDs engines take, and what they must be told so that it is the right one."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fabricd.model.device import Gid, HcaPort, IpAddress
from fabricd.model.routing import Route
from fabricd.plan.settings.gid import Scan, nccl_index, ucx_index
from tests.support.nodes import hca, nic, node
from tests.support.settings_told import nccl, told, with_nics


def roce(name, host, gids):
    """A node whose one adapter has a GID table of (index, type, address)."""
    table = tuple(Gid(index=index, gid=gid(address), type=kind, interface="eth1") for index, kind, address in gids)
    port = HcaPort(port=1, state="active", link_layer="ethernet", rate_bytes_per_second=50 * 10**9, gids=table)
    family = 6 if ":" in host else 4
    data = nic(
        "eth1",
        "",
        rdma_device="mlx5_0",
        addresses=(IpAddress(address=host, prefix_length=24 if family == 4 else 64, family=family),),
        speed_bytes_per_second=50 * 10**9,
    )
    return replace(with_nics(node(name), data), hcas=(hca("mlx5_0", port, kind="roce"),))


def gid(address):
    if ":" in address:
        return ":".join(f"{int(group or '0', 16):04x}" for group in expanded(address))
    a, b, c, d = map(int, address.split("."))
    return f"0000:0000:0000:0000:0000:ffff:{a:02x}{b:02x}:{c:02x}{d:02x}"


def expanded(address):
    head, _, tail = address.partition("::")
    left, right = head.split(":") if head else [], tail.split(":") if tail else []
    return [*left, *["0"] * (8 - len(left) - len(right)), *right]


def usual(address):
    return [(0, "roce-v1", "fe80::1"), (1, "roce-v2", "fe80::1"), (2, "roce-v1", address), (3, "roce-v2", address)]


@pytest.mark.parametrize("told_by", ["prefix", "gateway", ""])
def test_roce_behind_routers_is_not_given_up_for_management(told_by):
    """Every link to a leaf is a subnet of its own, and only management joins the hosts by subnet."""

    def routed(name, host):
        made = roce(name, f"10.{host}.0.1", usual(f"10.{host}.0.1"))
        length = 31 if told_by == "prefix" else 24
        data = replace(
            made.interfaces[0], addresses=(IpAddress(address=f"10.{host}.0.1", prefix_length=length, family=4),)
        )
        routes = (Route(destination="10.0.0.0/8", family=4, interface="eth1", gateway=f"10.{host}.0.254"),)
        made = with_nics(made, data, nic("mgmt", f"192.168.0.{host}/24", speed_bytes_per_second=125_000_000))
        return replace(made, routes=routes if told_by == "gateway" else ())

    found = nccl(routed("a", 1), routed("b", 2))
    assert found.get("NCCL_NET") == ("IB" if told_by else None), "what is not known is left to NCCL"
    assert found["NCCL_SOCKET_IFNAME"] == "=mgmt"
    assert "NCCL_CROSS_NIC" not in found


def test_the_usual_gid_table_needs_no_setting():
    found = nccl(roce("a", "10.0.0.1", usual("10.0.0.1")), roce("b", "10.0.0.2", usual("10.0.0.2")))
    assert found == {"NCCL_NET": "IB"}


def test_ipv6_alone_needs_the_family():
    found = nccl(roce("a", "fd00::1", usual("fd00::1")), roce("b", "fd00::2", usual("fd00::2")))
    assert found["NCCL_IB_ADDR_FAMILY"] == "AF_INET6"
    assert "NCCL_IB_GID_INDEX" not in found


def test_a_second_address_before_the_right_one_needs_the_range():
    """A container's leftover at an earlier index: the range tells, where an index would be another on each node."""
    a = roce("a", "10.0.0.1", [(3, "roce-v2", "192.168.7.1"), (5, "roce-v2", "10.0.0.1")])
    b = roce("b", "10.0.0.2", [(3, "roce-v2", "10.0.0.2")])
    found = nccl(a, b)
    assert found["NCCL_IB_ADDR_RANGE"] == "10.0.0.0/30"
    assert "NCCL_IB_GID_INDEX" not in found


def test_a_fixed_index_is_the_last_resort_and_only_where_it_is_one():
    """Version 1 before version 2 of one address in a table without entry 0: NCCL keeps the first of the family."""
    one = [(1, "roce-v1", "10.0.0.1"), (2, "roce-v2", "10.0.0.1")]
    assert (
        nccl_index([Gid(index=1, gid=gid("10.0.0.1"), type=""), Gid(index=2, gid=gid("10.0.0.1"), type="")], Scan())
        == 1
    )
    assert "NCCL_IB_GID_INDEX" not in nccl(roce("a", "10.0.0.1", one), roce("b", "10.0.0.2", usual("10.0.0.2")))


def test_ucx_is_told_an_index_where_it_is_one_on_all_ports_of_a_node():
    a = roce("a", "10.0.0.1", [(3, "roce-v2", "192.168.7.1"), (5, "roce-v2", "10.0.0.1")])
    b = roce("b", "10.0.0.2", [(3, "roce-v2", "10.0.0.2")])
    assert told(a, b, engines=["ucx"])["UCX_IB_GID_INDEX"] == {"a": "5", "b": "3"}


GIDS = st.lists(
    st.tuples(
        st.integers(0, 12),
        st.sampled_from(["roce-v1", "roce-v2"]),
        st.sampled_from(["10.0.0.1", "10.0.1.1", "fd00::1", "fe80::1"]),
    ),
    unique_by=lambda entry: entry[0],
)


@given(GIDS)
def test_the_index_that_nccl_takes_has_the_wanted_family_if_any_valid_entry_has(entries):
    table = [Gid(index=index, gid=gid(address), type=kind) for index, kind, address in entries]
    taken = nccl_index(table, Scan())
    wanted = [index for index, kind, address in entries if kind == "roce-v2" and "." in address and index > 0]
    if wanted:
        chosen = next(entry for entry in entries if entry[0] == taken)
        assert chosen[1] == "roce-v2"
        assert "." in chosen[2]


@given(GIDS)
def test_the_index_that_ucx_takes_is_of_the_best_version_and_family(entries):
    table = [Gid(index=index, gid=gid(address), type=kind) for index, kind, address in entries]
    taken = ucx_index(table)
    best = sorted((kind != "roce-v2", "." not in address, index) for index, kind, address in entries)
    assert taken == (best[0][2] if best else None)
