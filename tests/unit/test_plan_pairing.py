"""Who is measured with whom: each with another partner in each round, and with all of them in the end."""

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from fabricd.model.network import Network, NetworkPort
from fabricd.model.path import Transport
from fabricd.plan.pairing import matching, steps


@given(st.integers(0, 40), st.integers(0, 50))
def test_in_a_round_nobody_has_two_partners_and_at_most_one_has_none(count, number):
    met = matching(range(count), number)
    members = [one for pair in met for one in pair]
    assert len(set(members)) == len(members)
    over = number >= count - 1 + count % 2
    assert len(met) == (0 if over or count < 2 else count // 2)


@given(st.integers(2, 24))
def test_all_rounds_together_are_all_pairs_once(count):
    met = [tuple(sorted(pair)) for number in range(count) for pair in matching(range(count), number)]
    assert sorted(met) == list(combinations(range(count), 2))


def network(name: str, *ports: tuple[str, str, str]) -> Network:
    found = (NetworkPort(node=node, interface=interface, address=address) for node, interface, address in ports)
    return Network(name=name, transport=Transport.ETHERNET, ports=tuple(found))


def test_ports_of_one_place_meet_and_each_round_has_seen_all_networks():
    rails = network("10.0.0.0/16", *((node, f"eth{place}", f"10.0.{place}.{node[1]}") for node in ("n1", "n2", "n3")
                                     for place in (0, 1)))  # fmt: skip
    other = network("10.1.0.0/24", ("n1", "ens", "10.1.0.1"), ("n3", "ens", "10.1.0.3"), ("n9", "ens", "10.1.0.9"))
    found = list(steps([rails, other], ["n1", "n2", "n3"], rounds=8))
    told = [(step.round, step.network, [(one.src_address, one.dst_address) for one in step.pairs]) for step in found]
    assert told[:3] == [
        (0, "10.0.0.0/16", [("10.0.0.2", "10.0.0.3")]),
        (0, "10.0.0.0/16", [("10.0.1.2", "10.0.1.3")]),
        (0, "10.1.0.0/24", [("10.1.0.1", "10.1.0.3")]),
    ]
    assert len(told) == 3 + 2 + 2  # two nodes have met after one round, three after three
    assert {one.src_interface == one.dst_interface for step in found for one in step.pairs} == {True}


def test_what_has_no_address_or_partner_is_not_measured():
    assert not list(steps([network("ib", ("n1", "mlx5_0:1", ""), ("n2", "mlx5_0:1", ""))], ["n1", "n2"], 1))
    assert not list(steps([network("net", ("n1", "eth0", "10.0.0.1"))], ["n1", "n2"], 1))
