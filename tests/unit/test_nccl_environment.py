"""NCCL's environment variables, read strictly."""

import pytest

from fabricd.errors import InputError, UnknownNameError
from fabricd.paths.nccl.environment import ALGORITHMS, NcclEnvironment, NetPolicy, parse_environment
from fabricd.paths.nccl.kinds import PathKind


@pytest.mark.parametrize(
    ("name", "value", "field", "meaning"),
    [
        ("NCCL_P2P_LEVEL", "SYS", "p2p_level", PathKind.SYS),
        ("NCCL_P2P_LEVEL", "nvl", "p2p_level", PathKind.NVL),
        ("NCCL_P2P_LEVEL", "2", "p2p_level", PathKind.PXB),
        ("NCCL_P2P_LEVEL", "9", "p2p_level", PathKind.SYS),
        ("NCCL_NET_GDR_LEVEL", "PHB", "net_gdr_level", PathKind.PHB),
        ("NCCL_P2P_DISABLE", "1", "p2p_disable", True),
        ("NCCL_NET_GDR_READ", "-2", "net_gdr_read", None),
        ("NCCL_NET_GDR_READ", "0", "net_gdr_read", False),
        ("NCCL_CROSS_NIC", "1", "cross_nic", 1),
        ("NCCL_NETDEVS_POLICY", "ALL", "netdevs_policy", NetPolicy(auto=False)),
        ("NCCL_NETDEVS_POLICY", "max:2", "netdevs_policy", NetPolicy(auto=False, limit=2)),
        ("NCCL_NETDEVS_POLICY", "AUTO", "netdevs_policy", NetPolicy()),
        ("NCCL_ALGO", "ring, tree", "algo", frozenset({"Ring", "Tree"})),
        ("NCCL_ALGO", "^NVLS", "algo", frozenset(ALGORITHMS) - {"NVLS"}),
        ("NCCL_PROTO", "^LL128", "proto", frozenset({"LL", "Simple"})),
        ("NCCL_MAX_NCHANNELS", " 4 ", "max_nchannels", 4),
    ],
)
def test_values(name: str, value: str, field: str, meaning: object) -> None:
    assert getattr(parse_environment({name: value}), field) == meaning


def test_nothing_given_is_nccls_default() -> None:
    assert parse_environment({}) == NcclEnvironment()


@pytest.mark.parametrize(
    ("name", "value", "hint"),
    [
        ("NCCL_P2P_LEVEL", "NEAR", "LOC, NVL, NVB, C2C, PIX"),
        ("NCCL_P2P_LEVEL", "NET", "or 0 to 5"),
        ("NCCL_P2P_LEVEL", "-1", "or 0 to 5"),
        ("NCCL_P2P_DISABLE", "yes", "0, 1"),
        ("NCCL_CROSS_NIC", "3", "0, 1, 2"),
        ("NCCL_NETDEVS_POLICY", "MAX:0", "AUTO, ALL, MAX:<number>"),
        ("NCCL_ALGO", "rings", "Tree, Ring"),
        ("NCCL_PROTO", "", "LL, LL128, Simple"),
        ("NCCL_MIN_NCHANNELS", "9" * 30, "a number"),
    ],
)
def test_a_value_that_means_nothing_lists_those_that_do(name: str, value: str, hint: str) -> None:
    with pytest.raises(InputError, match=name) as caught:
        parse_environment({name: value})
    assert hint in caught.value.hint


def test_a_variable_without_bearing_lists_those_that_have() -> None:
    with pytest.raises(UnknownNameError, match="NCCL_DEBUG") as caught:
        parse_environment({"NCCL_DEBUG": "INFO"})
    assert "NCCL_P2P_LEVEL" in caught.value.details["known"]
