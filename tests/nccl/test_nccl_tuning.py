"""NCCL's model of time, fed with NCCL's own search results: tables and choices must be NCCL's."""

from dataclasses import replace

import pytest

from fabricd.paths.nccl.build import build_system
from fabricd.paths.nccl.environment import parse_environment
from fabricd.plan.nccl.graphs import Pattern, SearchGraph
from fabricd.plan.nccl.job import Collective, Job
from fabricd.plan.nccl.tuning import choose, tuning_lines
from tests.support.nccl_golden import Golden, corpus, own

TUNED = [golden for golden in own("*") if "tuning" in golden.answers]


def job_of(golden: Golden) -> Job:
    system = build_system(golden.topology())
    graphs = {name: golden.graph(name) for name in ("ring", "tree", "nvls")}
    ranks = len(system.gpus) * golden.nodes
    return Job.of([system], nodes=golden.nodes, ranks=ranks, channels=golden.answers["channels"]["nChannels"], **graphs)


def differences(golden: Golden) -> list[str]:
    job = job_of(golden)
    found = []
    for collective in Collective:
        lines = tuning_lines(job, collective)
        wanted = golden.answers["tuning"].get(collective, {})
        ours = {
            "/".join(key): {
                "lat_us": pytest.approx(line.latency, rel=1e-3, abs=0.06),
                "bw_GBps": pytest.approx(line.bandwidth, rel=1e-3, abs=6e-4),
            }
            for key, line in lines.items()
        }
        if wanted != ours:
            found.append(f"{collective}: {wanted} != {ours}")
        for choice in golden.answers["choices"][collective]:
            our = choose(job, lines, collective, choice["bytes"])
            right = pytest.approx(choice["time_us"], rel=1e-3, abs=1e-3)
            if (our.algorithm, our.protocol, our.time) != (choice["algo"], choice["proto"], right):
                found.append(f"{collective}: {our} != {choice}")
    return found


@pytest.mark.parametrize("golden", TUNED, ids=str)
def test_own_machine(golden: Golden) -> None:
    assert differences(golden) == []


@pytest.mark.corpus
def test_corpus() -> None:
    goldens = [golden for golden in corpus("*") if "tuning" in golden.answers]
    assert len(goldens) >= 150
    assert {str(golden): found for golden in goldens if (found := differences(golden))} == {}


def a_job() -> Job:
    return job_of(next(golden for golden in TUNED if str(golden) == "nvswitch-sm90.1node"))


def test_settings_leave_only_what_they_name() -> None:
    job = a_job()
    everything = tuning_lines(job, Collective.ALL_REDUCE)
    assert {algorithm for algorithm, _ in everything} == {"Tree", "Ring", "NVLS"}
    only = tuning_lines(job, Collective.ALL_REDUCE, parse_environment({"NCCL_ALGO": "ring", "NCCL_PROTO": "Simple"}))
    assert set(only) == {("Ring", "Simple")}
    assert only["Ring", "Simple"] == everything["Ring", "Simple"]
    nothing = tuning_lines(job, Collective.BROADCAST, parse_environment({"NCCL_ALGO": "Tree"}))
    assert choose(job, nothing, Collective.BROADCAST, 1024) is None


def test_named_ll128_overrides_nccls_caution() -> None:
    job = a_job()
    far = replace(job, ring=replace(job.ring, type_intra=job.ring.type_intra.SYS))
    assert ("Ring", "LL128") not in tuning_lines(far, Collective.ALL_REDUCE)
    assert ("Ring", "LL128") in tuning_lines(far, Collective.ALL_REDUCE, parse_environment({"NCCL_PROTO": "LL128"}))


def test_network_overhead_counts_between_machines_only() -> None:
    slow = parse_environment({"NCCL_NET_OVERHEAD": "100000"})
    job = a_job()
    assert tuning_lines(job, Collective.ALL_REDUCE, slow) == tuning_lines(job, Collective.ALL_REDUCE)
    two = job_of(next(golden for golden in TUNED if str(golden) == "nvswitch-sm90.2node"))
    assert (
        tuning_lines(two, Collective.ALL_GATHER, slow)["Ring", "LL"].latency
        > tuning_lines(two, Collective.ALL_GATHER)["Ring", "LL"].latency
    )


def test_a_single_rank_takes_no_time() -> None:
    job = replace(a_job(), ranks=1)
    assert tuning_lines(job, Collective.ALL_REDUCE) == {}
    choice = choose(job, {}, Collective.ALL_REDUCE, 1 << 20)
    assert (choice.algorithm, choice.protocol, choice.time) == ("Ring", "Simple", 0.0)


def test_a_search_without_channels_has_no_lines() -> None:
    nothing = SearchGraph(pattern=Pattern.RING)
    job = replace(a_job(), ring=nothing, tree=nothing, nvls=replace(nothing, pattern=Pattern.NVLS))
    assert tuning_lines(job, Collective.ALL_REDUCE) == {}


@pytest.mark.parametrize("size", [0, 1, 63, 64, 1 << 50])
def test_any_size(size: int) -> None:
    job = a_job()
    lines = tuning_lines(job, Collective.ALL_REDUCE)
    assert choose(job, lines, Collective.ALL_REDUCE, size).time >= min(line.latency for line in lines.values())
