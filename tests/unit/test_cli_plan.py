"""fabricctl plan on files: JSON as promised, tables, subsets, machines that differ, and errors that say what to do."""

import json
from dataclasses import replace

import numpy as np
import pytest

from fabricd.errors import InputError, NoNetworkError
from fabricd.graph.nccl_xml_read import read
from fabricd.model.observation import Outcome
from fabricd.model.plan_request import PlanRequest
from fabricd.plan.collective.machines import machines_of, ranks_of, with_ranks, without_identity
from fabricd.plan.collective.plan import ring_plan
from fabricd.plan.collective.planner import Planner, Request
from fabricd.plan.job_plan import plan_job, taking_part
from fabricd.plan.job_topologies import nvlink_domains, topologies_of
from tests.support.nccl_golden import OWN
from tests.support.nodes import hca, hgx, ib_port, nic, nvl_tray

SWITCHED = OWN / "nvswitch-sm90.xml"


def planner_of(*named, **request) -> Planner:
    machines = machines_of(named)
    return Planner(replace(Request.of(machines), **request))


def test_json_holds_the_whole_plan(fabricctl) -> None:
    status, out, _ = fabricctl("plan", "--from", SWITCHED, "--nodes", 2, "--bytes", "1GiB", "--json")
    answer = json.loads(out)
    assert status == 0
    assert (answer["collective"], answer["bytes"]) == ("all_reduce", 1 << 30)
    assert answer["ranks"] == [f"node{node}/gpu{gpu}" for node in range(2) for gpu in range(4)]
    for channel in answer["channels"]:
        assert sorted(channel["ring"]) == list(range(8))
        assert channel["nics"] == [[0, 0], [0, 0]]
    total = sum(channel["bandwidth_bytes_per_second"] for channel in answer["channels"])
    assert total == pytest.approx(answer["bandwidth_bytes_per_second"])
    assert total <= answer["bound_bytes_per_second"]
    assert answer["bottleneck"][0]["link"] in ("pcie", "port")
    assert answer["predicted"]["time_seconds"] > 0
    assert {"busbw_bytes_per_second", "algorithm", "protocol"} <= answer["predicted"].keys()
    assert [(one["name"], one["value"], one["rank"]) for one in answer["settings"]] == [("NCCL_NET", "IB", None)]
    assert "not to fall back to TCP" in answer["settings"][0]["because"]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ((), "NCCL by itself"),
        (("--routes", "free"), "no schedule exceeds"),
        (("--view", "nccl"), "ring: "),
        (("--view", "nccl", "--nodes", 2), "to the network over"),
        (("--kind", "trees", "--collective", "all_gather"), "spreads"),
        (("--kind", "trees"), "reduces"),
        (("--ranks", "1"), "1 rank on gpu1"),
        (("--bytes", "1"), "no settings: within one machine"),
    ],
)
def test_tables(fabricctl, options, told) -> None:
    status, out, _ = fabricctl("plan", "--from", SWITCHED, *options)
    assert (status, told in out) == (0, True)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--collective", "all_to_some"), "one of all_reduce"),
        (("--ranks", "0-9"), "ranks: 0 to 3"),
        (("--ranks", "x"), "expected e.g. 0-7,16"),
        (("--bytes", "many"), "not a size"),
        (("--view", "nccl", "--kind", "trees"), "NCCL's view"),
        (("--kind", "trees", "--nodes", 37), "at most 144"),
        (("--kind", "trees", "--ranks", "2"), "nobody to talk to"),
        (("--kind", "trees", "--nodes", 2, "--collective", "broadcast"), "within one machine"),
    ],
)
def test_what_cannot_be_planned_is_refused(fabricctl, options, told) -> None:
    status, out, err = fabricctl("plan", "--from", SWITCHED, *options)
    assert (status, out) == (2, "")
    assert told in err


@pytest.fixture
def three_nodes(fabricctl, tmp_path):
    """Three machines of 8 GPUs each, as a file."""
    file = tmp_path / "c.jsonl"
    assert fabricctl("simulate", "--template", "h100", "--nodes", 3, "--name", "n", "--out", file)[0] == 0
    return file


@pytest.mark.parametrize(
    ("options", "ranks"),
    [
        (("--nodes", "n-[0001-0002]"), [f"n-000{node}/gpu{gpu}" for node in (1, 2) for gpu in range(8)]),
        (("--nodes", "n-0002,n-0000", "--ranks", "1,9"), ["n-0002/gpu1", "n-0000/gpu1"]),
        (("--ranks", "9,10"), ["gpu1", "gpu2"]),
    ],
)
def test_nodes_of_a_map_are_named_by_a_hostlist(fabricctl, three_nodes, options, ranks) -> None:
    _, out, _ = fabricctl("plan", "--from", three_nodes, "--json", *options)
    assert json.loads(out)["ranks"] == ranks


@pytest.mark.parametrize(
    ("command", "told"),
    [
        (("plan", "--nodes", 2), "--nodes 2 makes copies of one machine, and"),
        (("order", "--nodes", 2), "--nodes 2 means copies of one machine, of which this command knows nothing"),
        (("env", "--nodes", 2), "'2' itself is [2]"),
        (("plan", "--nodes", 0), "expected 1 to"),
        (("plan", "--nodes", "9" * 30), "expected 1 to"),
        (("plan", "--nodes", " "), "--nodes is empty"),
        (("plan", "--nodes", "[2]"), "no node called '2'"),
        (("plan", "--nodes", "n-[0001"), "a bracket is not closed"),
        (("export", "--format", "nccl-graph", "--nodes", "n-0001,n-0002", "--node", "n-0001"), "leave one of the two"),
        (("export", "--format", "dot", "--ranks", "0-2"), "--ranks is of nccl-graph"),
    ],
)
def test_what_names_no_nodes_is_refused(fabricctl, three_nodes, command, told) -> None:
    status, out, err = fabricctl(command[0], "--from", three_nodes, *command[1:])
    assert (status, out) == (2, "")
    assert told in err


def test_a_topology_file_names_no_nodes(fabricctl) -> None:
    for command in ("plan", "order"):
        status, _, err = fabricctl(command, "--from", SWITCHED, "--nodes", "a,b")
        assert (status, "the topology of one machine, which names no nodes" in err) == (2, True)


def test_a_graph_file_may_be_of_some_ranks(fabricctl, three_nodes) -> None:
    options = ("export", "--format", "nccl-graph", "--from", three_nodes)
    for which in (("--node", "n-0001", "--nodes", 2), ("--nodes", "n-0000,n-0001")):
        status, out, err = fabricctl(*options, *which, "--ranks", "0-6,8-14")
        assert (status, 'dev="0x7"/>\n      <gpu' in out) == (0, False), "no ring goes over the GPU that is left out"
        assert err.startswith("fabricctl: for 14 ranks on 2 machines; NCCL_GRAPH_FILE binds")
        assert out.count("<gpu ") == 7 * out.count("<channel>")


def test_a_speed_beyond_what_a_port_reports_is_said(fabricctl) -> None:
    for speed, told in ((1, "carries 1 GB/s"), (100, "carries 100 GB/s, more than the 50 GB/s that it reports")):
        _, out, _ = fabricctl("plan", "--from", SWITCHED, "--nodes", 2, "--port-speed", f"net0={speed}")
        assert f"- assumed: net0 of every machine {told}\n" in out


def test_machines_without_ports_have_no_plan_between_them(fabricctl) -> None:
    status, _, err = fabricctl("plan", "--from", OWN / "skylake-pair.xml", "--nodes", 2)
    assert status == 2
    assert "no network port" in err


def test_a_subset_of_gpus_is_counted_anew(fabricctl) -> None:
    _, out, _ = fabricctl("plan", "--from", SWITCHED, "--ranks", "0,2-3", "--json")
    answer = json.loads(out)
    assert answer["ranks"] == ["gpu0", "gpu2", "gpu3"]
    assert all(sorted(channel["ring"]) == [0, 1, 2] for channel in answer["channels"])


def test_machines_that_differ_are_joined_by_what_the_weakest_carries() -> None:
    whole = read(SWITCHED.read_text())
    smaller = with_ranks(whole, ranks_of(whole)[:3])
    planner = planner_of(("a", whole), ("b", smaller), ("c", whole))
    answer = ring_plan(planner)
    assert answer.ranks == (
        *(f"a/gpu{n}" for n in range(4)),
        *(f"b/gpu{n}" for n in range(3)),
        *(f"c/gpu{n}" for n in range(4)),
    )
    assert all(sorted(channel.ring) == list(range(11)) for channel in answer.channels)
    alone = [ring_plan(planner_of(("a", one), ("b", one))).bandwidth_bytes_per_second for one in (whole, smaller)]
    assert answer.bandwidth_bytes_per_second == pytest.approx(min(alone))
    for part, lanes in zip(planner.parts, planner.lanes, strict=True):
        ranks = part.fabric.ranks
        load = sum(part.routes.usage(lane.even.steps(ranks)) * lane.width for lane in lanes)
        assert np.all(load <= part.fabric.capacity * 1.0001)


def test_equal_machines_are_one_kind_whatever_they_are_called() -> None:
    snapshots = {name: hgx(name, lid=10 * number) for number, name in enumerate(("a", "b", "c"))}
    found = machines_of(list(topologies_of(snapshots).items()))
    assert (len(found.topologies), found.order, found.names) == (1, (0, 0, 0), ("a", "b", "c"))


def test_identity_does_not_hide_a_slower_port() -> None:
    a, b = hgx("a"), hgx("b", lid=20)
    slow = replace(b.hcas[3], ports=(replace(b.hcas[3].ports[0], rate_bytes_per_second=25 * 10**9),))
    b = replace(b, hcas=(*b.hcas[:3], slow, *b.hcas[4:]))
    one, other = topologies_of({"a": a, "b": b}).values()
    assert without_identity(one) != without_identity(other)


def test_ports_that_do_not_carry_the_jobs_data_are_left_out() -> None:
    def with_storage(name: str, lid: int):
        snapshot = hgx(name, lid=lid)
        storage = ib_port(lid=lid + 8, sm_lid=77, prefix="fec0:0000:0000:0001", rate=12 * 10**9)
        more = hca("mlx5_8", storage, pci_address="0000:05:00.0", numa_node=0)
        return replace(snapshot, hcas=(more, *snapshot.hcas))

    snapshots = {"a": with_storage("a", 10), "b": with_storage("b", 30)}
    for topology in topologies_of(snapshots).values():
        nets = [net for cpu in topology.cpus for nic, _ in cpu.nics() for net in nic.nets]
        assert [net.name for net in nets] == [f"mlx5_{number}" for number in range(8)]
        assert [net.dev for net in nets] == list(range(8))
    assert len(topologies_of({"a": snapshots["a"]})) == 1


def islanders(*places):
    """Machines of 8 GPUs, each on an InfiniBand fabric by its number, with a 100 Gb/s port for TCP that joins all."""
    found = {}
    for host, (name, fabric) in enumerate(places, start=1):
        whole = hgx(name, lid=10 * host)
        port = ib_port(lid=10 * host, sm_lid=fabric, prefix=f"fec0:0000:0000:{fabric:04x}")
        found[name] = replace(
            whole,
            hcas=tuple(replace(one, ports=(port,)) for one in whole.hcas[:1]),
            gpus=tuple(replace(gpu, compute_capability=(9, 0)) for gpu in whole.gpus),
            interfaces=(nic("eth0", f"10.0.0.{host}/24", speed_bytes_per_second=12_500_000_000),),
        )
    return found


def test_adapters_that_do_not_reach_each_other_carry_no_ring() -> None:
    apart = islanders(("a", 1), ("b", 2))
    answer = plan_job(PlanRequest(ranks=("a", "b")), apart)
    assert answer.bandwidth_bytes_per_second <= 12.5e9
    assert answer.islands == ()
    hybrid = plan_job(PlanRequest(ranks=("a", "b", "c", "d")), islanders(("a", 1), ("b", 1), ("c", 2), ("d", 2)))
    assert [(one.ranks, one.leader) for one in hybrid.islands] == [
        (tuple(range(16)), 0),
        (tuple(range(16, 32)), 16),
    ]
    theirs = plan_job(PlanRequest(ranks=("a", "b"), view="nccl"), apart)
    assert "does not get through without NCCL_NET=Socket" in theirs.because[-1]
    together = plan_job(PlanRequest(ranks=("a", "b")), islanders(("a", 1), ("b", 1)))
    assert together.bandwidth_bytes_per_second > 30e9


def test_nodes_that_no_network_joins_have_no_plan() -> None:
    apart = {name: replace(one, interfaces=()) for name, one in islanders(("a", 1), ("b", 2)).items()}
    with pytest.raises(NoNetworkError, match="no network joins the 2 nodes"):
        plan_job(PlanRequest(ranks=("a", "b")), apart)
    assert plan_job(PlanRequest(ranks=("a",)), {"a": apart["a"]}).channels


def test_ranks_are_counted_over_gpus_that_are_not_lost() -> None:
    nodes = islanders(("a", 1), ("b", 1), ("c", 1))
    lost = replace(nodes["a"].gpus[3], outcome=Outcome.FAILED)
    nodes["a"] = replace(nodes["a"], gpus=(*nodes["a"].gpus[:3], lost, *nodes["a"].gpus[4:]))
    answer = plan_job(PlanRequest(ranks=("a", "b/gpu2")), {name: nodes[name] for name in "ab"})
    assert answer.ranks == (*(f"a/gpu{n}" for n in (0, 1, 2, 4, 5, 6, 7)), "b/gpu2")
    kept, ranks = taking_part(nodes, [6, 7, 15])
    assert (list(kept), ranks) == (["a", "b", "c"], [6, 7, 15])
    kept, ranks = taking_part(nodes, [6, 16])
    assert (list(kept), ranks) == (["a", "c"], [6, 8])
    with pytest.raises(InputError, match="no rank 23"):
        taking_part(nodes, [23])


def whole_tray(number: int, cluster: str = "d0"):
    """A tray with what NCCL asks of PCI devices and GPUs."""
    tray = nvl_tray(number, cluster=cluster)
    return replace(
        tray,
        pci=tuple(replace(device, class_code=0x030200) for device in tray.pci),
        gpus=tuple(replace(gpu, compute_capability=(10, 0)) for gpu in tray.gpus),
    )


def test_trays_of_an_nvlink_domain_are_planned_as_one_machine() -> None:
    trays = {f"tray{number}": whole_tray(number) for number in (0, 1)}
    found = machines_of(list(topologies_of(trays).items()), domains=nvlink_domains(trays))
    planner = Planner(Request(topologies=found.topologies, order=found.order, names=found.names, ranks=found.ranks))
    answer = ring_plan(planner)
    assert answer.ranks == tuple(f"tray{tray}/gpu{gpu}" for tray in (0, 1) for gpu in range(4))
    assert (answer.nodes, answer.channels[0].nics) == (1, None)
    assert answer.bandwidth_bytes_per_second > 300e9  # NVLink; no port joins them
    assert {hop.link for hop in answer.bottleneck} == {"nvlink"}


@pytest.mark.parametrize(("hosts", "copies"), [(5, 1), (3, 2)])
def test_more_ranks_than_all_orders_can_be_tried_of(hosts, copies) -> None:
    """20 ranks of one domain; 12 of each of two domains, with ports between them."""
    one = read(SWITCHED.read_text())
    domains = {f"{copy}-{host}": str(copy) for copy in range(copies) for host in range(hosts)}
    found = machines_of([(name, one) for name in domains], domains=domains)
    planner = Planner(Request(topologies=found.topologies, order=found.order, names=found.names, ranks=found.ranks))
    answer = ring_plan(planner)
    assert (answer.nodes, len(answer.ranks)) == (copies, 4 * hosts * copies)
    assert all(sorted(channel.ring) == list(range(len(answer.ranks))) for channel in answer.channels)
    assert answer.bandwidth_bytes_per_second >= 0.995 * answer.limit_bytes_per_second
    assert answer.bandwidth_bytes_per_second <= answer.bound_bytes_per_second * 1.0001
    part = planner.parts[0]
    load = sum(part.routes.usage(lane.even.steps(part.fabric.ranks)) * lane.width for lane in planner.lanes[0])
    assert np.all(load <= part.fabric.capacity * 1.0001)


def test_widths_of_rings_are_multiples_of_one_speed_where_that_costs_nothing() -> None:
    """A linear program alone spreads them at random over rings that are equally good."""
    answer = ring_plan(planner_of(("a", read(SWITCHED.read_text())), ("b", read(SWITCHED.read_text()))))
    widths = [one.bandwidth_bytes_per_second for one in answer.channels]
    assert sum(widths) == pytest.approx(answer.limit_bytes_per_second, rel=1e-3)
    assert [width / min(widths) for width in widths] == pytest.approx([round(width / min(widths)) for width in widths])


def test_no_more_rings_than_it_takes(fabricctl, three_nodes) -> None:
    """A linear program alone has 14 rings of three widths here."""
    _, out, _ = fabricctl("plan", "--from", three_nodes, "--nodes", "n-0000,n-0001", "--json")
    answer = json.loads(out)
    assert [one["bandwidth_bytes_per_second"] for one in answer["channels"]] == pytest.approx([48e9] * 8)
    assert next(one["count"] for one in answer["alternatives"] if one["name"] == "equal speed") == 8


def test_trays_of_different_domains_stay_apart() -> None:
    trays = {f"tray{number}": whole_tray(number, cluster=f"d{number}") for number in (0, 1)}
    assert machines_of(list(topologies_of(trays).items()), domains=nvlink_domains(trays)).order == (0, 0)


def test_no_gpu_is_told() -> None:
    with pytest.raises(InputError, match="no GPU"):
        machines_of([])
