"""NCCL's graph and paths, against the answers of NCCL's own code."""

import itertools
import os
import time
from pathlib import Path

import pytest

from fabricd.errors import InputError
from fabricd.graph.nccl_xml_read import read
from fabricd.paths.nccl.build import build_system
from fabricd.paths.nccl.domain import domains, searched_paths
from fabricd.paths.nccl.environment import parse_environment
from fabricd.paths.nccl.gdr import check_gdr, proxy
from fabricd.paths.nccl.kinds import NodeType, PathKind
from fabricd.paths.nccl.paths import PathTable, Rule
from fabricd.paths.nccl.rules import compute_paths
from fabricd.paths.nccl.system import Gpu, Net
from fabricd.paths.nccl.view import NcclView
from tests.support.nccl_golden import OWN, Golden, corpus, own


def label(node) -> str:
    """Return a node's name as the golden files print it: theirs of GIN nodes are hexadecimal."""
    if node.type is not NodeType.GIN:
        return node.name
    return f"GIN:{node.key & 0xFFFF:x}" + (f"@{node.host}" if node.host else "")


def graph_differences(golden: Golden) -> list[str]:
    system = build_system(golden.topology())
    nodes = [(label(node), hex(node.key)) for node in system.nodes()]
    theirs = [(node["label"], node["id"]) for node in golden.answers["nodes"]]
    links = [
        (label(link.source), label(link.target), link.type.name, float(f"{link.bandwidth:.6g}"))
        for node in system.nodes()
        for link in node.links
    ]
    wanted = [(link["src"], link["dst"], link["type"], link["bw"]) for link in golden.answers["links"]]
    found = [] if nodes == theirs else [f"nodes {nodes} != {theirs}"]
    if [link[:3] for link in links] != [link[:3] for link in wanted]:
        found.append("links differ, or their order")
    else:
        found += [
            f"{ours} != {right}"
            for ours, right in zip(links, wanted, strict=True)
            if ours[3] != pytest.approx(right[3], rel=1e-3)
        ]
    return found


def path_differences(golden: Golden) -> list[str]:
    """Compare all pairs by position: labels repeat where a file repeats itself."""
    system = build_system(golden.topology())
    table = compute_paths(system)
    ends: list[Gpu | Net] = [*system.gpus, *system.nets]
    pairs = [
        (src, dst) for src in ends for dst in ends if src is not dst and (isinstance(src, Gpu) or isinstance(dst, Gpu))
    ]
    found = []
    for (src, dst), wanted in zip(pairs, golden.answers["paths"], strict=True):
        assert (src.name, dst.name) == (wanted["src"], wanted["dst"])
        route = table.get(src, dst)
        ours = {"type": PathKind(route.kind).name, "hops": route.hops, "bw": pytest.approx(route.bandwidth, rel=1e-3)}
        if "gdrRead" in wanted:
            ours["gdrRead"] = check_gdr(table, src, dst, read=True).mode
            ours["gdrWrite"] = check_gdr(table, src, dst, read=False).mode
            ours["proxyRank"] = proxy(table, src, dst).rank
        if any(wanted[name] != value for name, value in ours.items()):
            found.append(f"{wanted} but {ours}")
    return found + local_differences(golden, table)


def local_differences(golden: Golden, table: PathTable) -> list[str]:
    ours = [
        {"rank": gpu.rank, "cpu": table.local_cpu(gpu).name, "nets": [net.dev for net in table.preferred_nets(gpu)]}
        for gpu in table.system.gpus
    ]
    found = [] if ours == golden.answers["gpu_local"] else [f"{ours} != {golden.answers['gpu_local']}"]
    wanted = [node["localGpuRank"] for node in golden.answers["nodes"] if node["type"] == "NET"]
    near = [table.local_gpu(net) for net in table.system.nets]
    ranks = [-1 if gpu is None else gpu.rank for gpu in near]
    return found if ranks == wanted else [*found, f"local GPUs of ports {ranks} != {wanted}"]


def domain_differences(golden: Golden) -> list[str]:
    search = golden.answers["search"]
    table = searched_paths(golden.topology(), rank=search["rank"])
    count = len(table.system.gpus)
    split = count < len(build_system(golden.topology()).gpus)
    ours = (count, int(golden.nodes > 1 or split))
    wanted = (search["gpus_after_trim"], search["inter"])
    return [] if ours == wanted else [f"domain {ours} != {wanted}"]


@pytest.mark.parametrize("golden", own(), ids=str)
@pytest.mark.parametrize("differences", [graph_differences, path_differences])
def test_own_machine(golden: Golden, differences) -> None:
    assert differences(golden) == []


@pytest.mark.parametrize("golden", own("*"), ids=str)
def test_own_machine_is_split_as_nccl_does(golden: Golden) -> None:
    assert domain_differences(golden) == []


@pytest.mark.corpus
@pytest.mark.parametrize("differences", [graph_differences, path_differences])
def test_corpus(differences) -> None:
    goldens = corpus()
    assert len(goldens) >= 100
    assert {str(golden): found for golden in goldens if (found := differences(golden))} == {}


@pytest.mark.corpus
def test_corpus_is_split_as_nccl_does() -> None:
    assert {str(golden): found for golden in corpus("*") if (found := domain_differences(golden))} == {}


@pytest.mark.corpus
def test_amd_files_load_and_their_pci_part_is_right() -> None:
    folder = Path(os.environ["FABRICD_CORPUS"]) / "topologies/public/rccl_xml"
    for path in sorted(folder.glob("*.xml")):
        topology = read(path.read_text(), source=path.name)
        view = NcclView(topology)
        system = view.table.system
        assert len(system.gpus) == sum(
            gpu.rank is not None for cpu in topology.cpus for d in cpu.devices() for gpu in d.gpus
        )
        assert not system.nvswitches
        for path_ in view.paths():
            if path_.type.value != "DIS":
                assert path_.type.value in ("PIX", "PXB", "PHB", "SYS", "NET"), (path.name, path_)
                assert path_.bandwidth_bytes_per_second > 0


def test_split_files_have_two_domains() -> None:
    table = compute_paths(build_system(read((OWN / "split-by-network.xml").read_text())))
    assert [len(group) for group in domains(table)] == [4, 4]


def test_a_rank_that_is_not_there() -> None:
    topology = read((OWN / "skylake-pair.xml").read_text())
    with pytest.raises(InputError, match="no GPU of rank 7"):
        searched_paths(topology, rank=7)


def table_of(name: str, **variables: str) -> PathTable:
    return compute_paths(build_system(read((OWN / f"{name}.xml").read_text())), parse_environment(variables))


def kinds(table: PathTable, src: NodeType, dst: NodeType) -> set[str]:
    groups = {NodeType.GPU: table.system.gpus, NodeType.NET: table.system.nets}
    return {PathKind(table.get(a, b).kind).name for a in groups[src] for b in groups[dst] if a is not b}


def test_p2p_level_and_disable() -> None:
    gpus = (NodeType.GPU, NodeType.GPU)
    name = "nvlink-mesh-sm100"
    assert "NVL" in kinds(table_of(name), *gpus)
    assert kinds(table_of(name, NCCL_P2P_DISABLE="1"), *gpus) <= {"PHB", "SYS"}
    assert kinds(table_of(name, NCCL_P2P_LEVEL="LOC"), *gpus) == kinds(table_of(name, NCCL_P2P_DISABLE="1"), *gpus)
    pair = table_of("skylake-pair", NCCL_P2P_LEVEL="SYS")
    assert not pair.reasons
    assert table_of("skylake-pair").reasons


def test_no_relays_without_nvb() -> None:
    assert "NVB" in kinds(table_of("nvlink-mesh-sm100"), NodeType.GPU, NodeType.GPU)
    assert "NVB" not in kinds(table_of("nvlink-mesh-sm100", NCCL_NVB_DISABLE="1"), NodeType.GPU, NodeType.GPU)


def test_pxn_and_gpudirect_switches() -> None:
    pairs = (NodeType.GPU, NodeType.NET)
    assert "PXN" in kinds(table_of("two-gpus-pxn"), *pairs)
    assert "PXN" not in kinds(table_of("two-gpus-pxn", NCCL_PXN_DISABLE="1"), *pairs)
    off = table_of("two-gpus-pxn", NCCL_NET_GDR_LEVEL="LOC")
    assert kinds(off, *pairs) <= {"PHB", "SYS"}
    assert any(reason.rule is Rule.GPUDIRECT for reasons in off.reasons.values() for reason in reasons)
    table = table_of("two-gpus-pxn", NCCL_NET_GDR_READ="0")
    assert not any(
        check_gdr(table, gpu, net, read=True).enabled for gpu in table.system.gpus for net in table.system.nets
    )


def test_network_instead_can_be_switched_off() -> None:
    gpus = (NodeType.GPU, NodeType.GPU)
    assert "NET" in kinds(table_of("split-by-network"), *gpus)
    assert "NET" not in kinds(table_of("split-by-network", NCCL_NET_DISABLE_INTRA="1"), *gpus)


def test_policy_of_ports() -> None:
    everything = table_of("gb200-two-hosts", NCCL_NETDEVS_POLICY="ALL")
    for gpu in everything.system.gpus:
        assert len(everything.preferred_nets(gpu)) == len(everything.local_nets(gpu))


def test_view_names_hops_and_reasons() -> None:
    view = NcclView(read((OWN / "two-gpus-pxn.xml").read_text()))
    assert view.names()[:2] == ["gpu0", "gpu1"]
    relayed = [path for path in view.paths() if path.type.value == "PXN"]
    assert relayed
    for path in relayed:
        assert path.hops[0].src == path.src
        assert path.hops[-1].dst == path.dst
        assert all(a.dst == b.src for a, b in zip(path.hops, path.hops[1:], strict=False))
        assert any(sentence.startswith("rule PXN: through GPU:") for sentence in path.because)
        assert path.gdr is True
    assert view.find("mlx5_0") is view.find("net0")


def test_every_path_is_a_chain_from_end_to_end_no_wider_than_its_links() -> None:
    for golden in own():
        table = compute_paths(build_system(golden.topology()))
        ends = [*table.system.gpus, *table.system.nets]
        for src in ends:
            for dst in ends:
                route = table.get(src, dst)
                links = list(route.links())
                assert len(links) == route.hops
                if links:
                    assert (links[0].source, links[-1].target) == (src, dst)
                    assert all(a.target is b.source for a, b in itertools.pairwise(links))
                    assert route.bandwidth == min(link.bandwidth for link in links)


def test_a_large_nvlink_domain_in_time() -> None:
    text = (OWN / "gb200-two-hosts.xml").read_text()
    hosts = text.split("\n", 1)[1].rsplit("</system>", 1)[0]
    lines = []
    for copy in range(9):
        part = hosts.replace('host_hash="0x1"', f'host_hash="{2 * copy + 1:#x}"').replace(
            'host_hash="0x2"', f'host_hash="{2 * copy + 2:#x}"'
        )
        for rank in range(7, -1, -1):
            part = part.replace(f'rank="{rank}"', f'rank="r{rank + 8 * copy}"')
        lines.append(part.replace('rank="r', 'rank="'))
    topology = read('<system version="1">\n' + "".join(lines) + "</system>")
    began = time.perf_counter()
    table = compute_paths(build_system(topology))
    assert len(table.system.gpus) == 72
    assert kinds(table, NodeType.GPU, NodeType.GPU) == {"NVL"}
    assert time.perf_counter() - began < 5  # measured 0.1 s; a bound against growth, not a benchmark
