"""Machines on which NCCL's search goes on for long before it finds anything."""

from typing import Any

import pytest

from fabricd.graph.nccl_xml_read import read
from fabricd.plan.nccl import search
from fabricd.plan.nccl.emulate import plan_cluster
from fabricd.plan.nccl.explorer import Explorer
from fabricd.plan.predict import merge_ports
from tests.support.random_machine import random_machine


def test_a_search_that_finds_nothing_for_long_is_cut_short_and_finds_as_much(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[int] = []
    run = Explorer.run

    def counted(*arguments: Any, **named: Any) -> int:
        taken.append(run(*arguments, **named))
        return taken[-1]

    monkeypatch.setattr(Explorer, "run", counted)
    monkeypatch.setattr(search, "_STEPS_WITHOUT_ANY", 1 << 13)
    found = plan_cluster([merge_ports(read(random_machine(61)))], [0, 0]).found[0]
    assert sum(taken) < 1 << 18  # of 2.4 million
    for graph in (found.ring, found.tree):  # with all steps there are three of each at 3 GB/s
        assert len(graph.channels) * graph.bandwidth_inter >= 9
