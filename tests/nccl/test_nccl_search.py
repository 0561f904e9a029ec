"""NCCL's search and what follows it, against the answers of NCCL's own code: every channel, speed, type and port."""

import time
from dataclasses import fields, replace

import pytest

from fabricd.errors import InputError
from fabricd.graph.nccl_xml_read import read
from fabricd.paths.nccl.domain import searched_paths
from fabricd.paths.nccl.environment import NcclEnvironment, parse_environment
from fabricd.paths.nccl.system import HOST_SHIFT
from fabricd.plan.nccl.channels import MAX_CHANNELS, Node, connect, copies
from fabricd.plan.nccl.emulate import plan
from fabricd.plan.nccl.graphs import Channel, Pattern, SearchGraph
from fabricd.plan.nccl.job import Collective
from fabricd.plan.nccl.machine import Machine
from fabricd.plan.nccl.search import search, search_all
from tests.support.nccl_golden import OWN, Golden, corpus, own

CONNECTED = [golden for golden in own("*") if "channels" in golden.answers]


def machine_of(golden: Golden, **variables: str) -> Machine:
    wanted = golden.answers["search"]
    table = searched_paths(golden.topology(), parse_environment(variables), rank=wanted["rank"])
    return Machine(table, between_nodes=bool(wanted["inter"]))


def by_index(graph: SearchGraph) -> SearchGraph:
    """Name ports by their index alone, as the golden files do."""
    mask = (1 << HOST_SHIFT) - 1
    return replace(
        graph,
        channels=tuple(replace(one, nets=one.nets and tuple(net & mask for net in one.nets)) for one in graph.channels),
    )


def search_differences(golden: Golden) -> list[str]:
    found = search_all(machine_of(golden))
    differences = []
    for name in ("ring", "tree", "nvls"):
        ours, theirs = by_index(getattr(found, name)), golden.graph(name)
        for field in fields(SearchGraph):
            our, their = getattr(ours, field.name), getattr(theirs, field.name)
            if isinstance(our, float):
                their = pytest.approx(their, rel=1e-3)
            if our != their:
                differences.append(f"{name}.{field.name}: {our} != {their}")
    return differences


def bandwidth_differences(golden: Golden) -> list[str]:
    machine, wanted = machine_of(golden), golden.answers["search"]
    ours = (machine.max_bandwidth, machine.total_bandwidth)
    theirs = pytest.approx((wanted["maxBw"], wanted["totalBw"]), rel=1e-3)
    return [] if ours == theirs else [f"{ours} != {theirs}"]


def channel_differences(golden: Golden) -> list[str]:
    """Connect NCCL's own search results."""
    nodes = [node for node in golden.answers["nodes"] if node["type"] == "GPU"]
    first = [Node(ring=golden.graph("ring"), tree=golden.graph("tree"))]
    ours = connect(copies(first, ranks=len(nodes), count=golden.nodes), sm=min(node["sm"] for node in nodes))
    theirs = golden.answers["channels"]
    rings = [list(ring[ring.index(0) :] + ring[: ring.index(0)]) for ring in ours.rings]
    trees = [{"up": list(tree.up), "down": [list(below) for below in tree.down]} for tree in ours.trees]
    wanted = [ring[ring.index(0) :] + ring[: ring.index(0)] for ring in theirs["rings"]]
    same = (len(ours.rings), rings, trees) == (theirs["nChannels"], wanted, theirs["trees"])
    return [] if same else ["channels differ"]


@pytest.mark.parametrize("golden", own("*"), ids=str)
@pytest.mark.parametrize("differences", [bandwidth_differences, search_differences])
def test_own_machine(golden: Golden, differences) -> None:
    assert differences(golden) == []


@pytest.mark.parametrize("golden", CONNECTED, ids=str)
def test_own_machine_is_connected_as_nccl_does(golden: Golden) -> None:
    assert channel_differences(golden) == []


@pytest.mark.corpus
@pytest.mark.parametrize("part", range(4))
def test_corpus(part: int) -> None:
    goldens = corpus("*")
    assert len(goldens) >= 160
    assert {str(golden): found for golden in goldens[part::4] if (found := search_differences(golden))} == {}


@pytest.mark.corpus
def test_corpus_has_nccls_bandwidths() -> None:
    assert {str(golden): found for golden in corpus("*") if (found := bandwidth_differences(golden))} == {}


@pytest.mark.corpus
def test_corpus_is_connected_as_nccl_does() -> None:
    goldens = [golden for golden in corpus("*") if "channels" in golden.answers]
    assert {str(golden): found for golden in goldens if (found := channel_differences(golden))} == {}


@pytest.mark.parametrize("golden", CONNECTED, ids=str)
def test_from_file_to_choice(golden: Golden) -> None:
    """The whole way, with nothing of NCCL's put in between."""
    found = plan(golden.topology(), nodes=golden.nodes)
    assert len(found.channels.rings) == golden.answers["channels"]["nChannels"]
    for collective in Collective:
        for wanted in golden.answers["choices"][collective]:
            ours = found.choose(collective, wanted["bytes"])
            right = pytest.approx(wanted["time_us"], rel=1e-2, abs=1e-3)
            assert (ours.algorithm, ours.protocol, ours.time) == (wanted["algo"], wanted["proto"], right)


def test_a_machine_that_nccl_splits_counts_as_two() -> None:
    found = plan(read((OWN / "split-by-network.xml").read_text()))
    assert len(found.nodes) == 2
    assert (found.job.nodes, found.job.ranks, found.job.ranks_per_node) == (2, 8, 4)
    for number, ring in enumerate(found.channels.rings):
        assert sorted(ring) == list(range(8))
        assert all(nets is not None for nets in found.ring_nets(number))


def test_ranks_of_a_part_of_a_job_are_counted_from_zero() -> None:
    text = (OWN / "nvswitch-sm90.xml").read_text()
    whole = plan(read(text), nodes=2)
    part = plan(read(text.replace('rank="', 'rank="10')), nodes=2)
    assert part.channels == whole.channels
    assert part.lines == whole.lines


@pytest.mark.parametrize("nodes", range(1, 20))
@pytest.mark.parametrize("pattern", [Pattern.BALANCED_TREE, Pattern.SPLIT_TREE, Pattern.TREE])
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_rings_and_trees_reach_every_rank_once(nodes: int, pattern: Pattern, ranks: int) -> None:
    chain = tuple(range(ranks))[::-1]
    ring = SearchGraph(pattern=Pattern.RING, channels=(Channel(ranks=chain),) * 3, bandwidth_intra=10)
    tree = replace(ring, pattern=pattern)
    channels = connect(copies([Node(ring=ring, tree=tree)], ranks=ranks, count=nodes), sm=80)
    everyone = set(range(ranks * nodes))
    assert len(channels.rings) == len(channels.trees) == 6
    for sequence in channels.rings:
        assert len(sequence) == len(everyone)
        assert set(sequence) == everyone
    for one in channels.trees:
        roots = [rank for rank, up in enumerate(one.up) if up < 0]
        assert len(roots) == 1
        reached, waiting = set(), roots
        while waiting:
            rank = waiting.pop()
            reached.add(rank)
            assert all(one.up[below] == rank for below in one.down[rank])
            assert len(one.down[rank]) <= 3
            waiting.extend(one.down[rank])
        assert reached == everyone


def test_limits_on_channels() -> None:
    ring = SearchGraph(pattern=Pattern.RING, channels=(Channel(ranks=(0, 1)),) * 4, bandwidth_intra=10)
    nodes = [Node(ring=ring, tree=replace(ring, pattern=Pattern.BALANCED_TREE))]

    def count(**limits: int) -> int:
        return len(connect(nodes, sm=80, environment=NcclEnvironment(**limits)).rings)

    assert (count(), count(max_nchannels=3), count(max_ctas=2), count(min_nchannels=20)) == (8, 3, 2, 20)
    assert count(min_nchannels=1000) == MAX_CHANNELS


def test_no_nvls_without_nvswitch_or_on_old_gpus() -> None:
    for name in ("nvlink-mesh-sm100", "skylake-pair", "partitions-shared-c2c"):
        golden = Golden(OWN / f"{name}.1node.json")
        assert search(machine_of(golden), Pattern.NVLS).channels == ()


def test_a_search_does_not_touch_its_machine() -> None:
    machine = machine_of(Golden(OWN / "nvlink-mesh-sm100.2node.json"))
    assert search_all(machine) == search_all(machine)


def test_settings_reach_the_search() -> None:
    golden = Golden(OWN / "nvlink-mesh-sm100.1node.json")
    assert search(machine_of(golden, NCCL_P2P_DISABLE="1"), Pattern.RING) != search(machine_of(golden), Pattern.RING)


def test_faults() -> None:
    topology = read((OWN / "skylake-pair.xml").read_text())
    with pytest.raises(InputError, match="0 machines"):
        plan(topology, nodes=0)
    with pytest.raises(InputError, match="ranks in all"):
        plan(topology, nodes=1 << 40)
    with pytest.raises(InputError, match="no GPU of the file has a rank"):
        plan(read('<system version="1"><cpu numaid="0" arch="x86_64"/></system>'))


def test_many_machines_in_time() -> None:
    began = time.perf_counter()
    found = plan(read((OWN / "nvswitch-sm90.xml").read_text()), nodes=256)
    assert len(found.channels.rings[0]) == found.job.ranks
    assert time.perf_counter() - began < 20  # measured 0.3 s; a bound against growth, not a benchmark
