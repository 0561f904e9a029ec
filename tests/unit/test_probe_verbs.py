"""Probe ``verbs``: the real pyverbs over a preloaded stand-in for the library below it, and the join with ``rdma``."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import psutil
import pytest

from fabricd.model.codec import to_json
from fabricd.model.device import Gid, Hca, HcaPort
from fabricd.model.observation import Outcome
from fabricd.model.snapshot import Snapshot
from fabricd.probe.base import ProbeAbsent, ProbeContext, ProbeFailed, ProbeNotRun, ProbeUnsupported, Roots
from fabricd.probe.merge import add_facts, join_hcas
from fabricd.probe.runner import take_snapshot
from fabricd.probe.verbs import VerbsAnswer, VerbsProbe
from tests.support.tree import Tree

T = TypeVar("T")
SOURCE = Path(__file__).parents[1] / "verbs/ibverbs.c"
FLAGS = ["-std=gnu11", "-O1", "-fPIC", "-fvisibility=hidden", "-shared", "-Wall", "-Wextra", "-Werror"]


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    built = tmp_path_factory.mktemp("verbs") / "ibverbs.so"
    subprocess.run(["gcc", *FLAGS, "-o", built, SOURCE], check=True)
    return built


def probe(
    root: Path, library: Path, scenario: str, *, in_kernel: str = "mlx5_0", seconds: float = 8, **environment: str
) -> Snapshot:
    """Run the probe, whose child sees the scenario's devices."""
    tree = Tree()
    for number, name in enumerate(in_kernel.split()):
        tree[f"sys/class/infiniband/{name}"] = None
        tree[f"sys/class/infiniband_verbs/uverbs{number}"] = None
    preloaded = {**os.environ, "LD_PRELOAD": str(library), "FABRICD_TEST_VERBS": scenario, **environment}
    context = ProbeContext(roots=Roots.under(tree.write(root)))
    return take_snapshot(context, probes=(VerbsProbe(preloaded, seconds),))


def test_what_only_verbs_tell(tmp_path: Path, library: Path) -> None:
    scenario = "mlx5_1,ports=2,mtu=3,dmabuf=95;mlx5_0,mtu=5,dmabuf=9;siw0,mtu=0,dmabuf=12"
    snapshot = probe(tmp_path, library, scenario, in_kernel="mlx5_0 mlx5_1 siw0")
    assert snapshot.probes[0].outcome is Outcome.OK
    limits = {"max_qp": 131072, "max_mr_bytes": 2**63 - 1}
    ports = (HcaPort(port=1, active_mtu=1024), HcaPort(port=2, active_mtu=1024))
    assert snapshot.hcas == (
        Hca(name="mlx5_0", ports=(HcaPort(port=1, active_mtu=4096),), dmabuf=True, **limits),
        Hca(name="mlx5_1", ports=ports, dmabuf=False, **limits),
        Hca(name="siw0", ports=(HcaPort(port=1),), dmabuf=None, **limits),
    )
    assert len(snapshot.probes[0].notes) == 1
    assert snapshot.probes[0].notes[0].startswith("siw0 dma-buf: ")


@pytest.mark.parametrize(
    ("scenario", "in_kernel", "environment", "outcome", "said"),
    [
        ("mlx5_0,open=13;mlx5_1,open=13", "mlx5_0 mlx5_1", {}, Outcome.DENIED, "ermission denied"),
        ("", "mlx5_0", {"FABRICD_TEST_VERBS_ERROR": "38"}, Outcome.FAILED, "lists no devices"),
    ],
)
def test_why_there_is_nothing(
    tmp_path: Path,
    library: Path,
    scenario: str,
    in_kernel: str,
    environment: dict[str, str],
    outcome: Outcome,
    said: str,
) -> None:
    report = probe(tmp_path, library, scenario, in_kernel=in_kernel, **environment).probes[0]
    assert report.outcome is outcome
    assert said in report.reason


def test_one_bad_device_does_not_hide_the_others(tmp_path: Path, library: Path) -> None:
    snapshot = probe(
        tmp_path, library, "bad0,query=5;good0,dmabuf=9;shut0,open=13", in_kernel="bad0 good0 shut0 irdma0"
    )
    assert snapshot.probes[0].outcome is Outcome.OK
    assert [hca.name for hca in snapshot.hcas] == ["good0"]
    notes = dict(note.split(": ", 1) for note in snapshot.probes[0].notes)
    assert set(notes) == {"bad0", "shut0", "irdma0"}
    assert "ibverbs-providers" in notes["irdma0"]


def test_a_device_that_hangs_is_given_up_and_its_process_killed(tmp_path: Path, library: Path) -> None:
    """In a thread it would stop the whole daemon: pyverbs keeps Python's lock during the call."""
    report = probe(tmp_path, library, "mlx5_0,hang=1", seconds=1).probes[0]
    assert report.outcome is Outcome.FAILED
    assert "did not answer within 1 s" in report.reason


def test_a_hanging_child_ends_with_its_parent(tmp_path: Path, library: Path) -> None:
    tree = Tree({"sys/class/infiniband/mlx5_0": None, "sys/class/infiniband_verbs/uverbs0": None})
    script = (
        "import sys; from pathlib import Path; from fabricd.probe.base import ProbeContext, Roots; "
        "from fabricd.probe.verbs import VerbsProbe; "
        "VerbsProbe(answer_seconds=60).run(ProbeContext(roots=Roots.under(Path(sys.argv[1]))))"
    )
    environment = {**os.environ, "LD_PRELOAD": str(library), "FABRICD_TEST_VERBS": "mlx5_0,hang=1"}
    with subprocess.Popen([sys.executable, "-c", script, tree.write(tmp_path)], env=environment) as parent:
        children = wait_for(lambda: psutil.Process(parent.pid).children())
        # Until it has imported pyverbs it has not yet asked to end with its parent.
        wait_for(lambda: any("pyverbs" in region.path for region in children[0].memory_maps()))
        parent.kill()
    assert wait_for(lambda: not children[0].is_running() or children[0].status() == psutil.STATUS_ZOMBIE)


def wait_for(condition: Callable[[], T], seconds: float = 10.0) -> T:
    end = time.monotonic() + seconds
    while not (value := condition()) and time.monotonic() < end:
        time.sleep(0.02)
    return value


def test_a_library_that_crashes_crashes_its_own_process(tmp_path: Path, library: Path) -> None:
    report = probe(tmp_path, library, "mlx5_0,nonsense=1").probes[0]
    assert report.outcome is Outcome.FAILED
    assert "SIGABRT" in report.reason


def test_without_pyverbs_it_names_the_package(tmp_path: Path, library: Path) -> None:
    (tmp_path / "hidden/pyverbs").mkdir(parents=True)
    (tmp_path / "hidden/pyverbs/__init__.py").write_text("raise ImportError('not here')")
    report = probe(tmp_path / "root", library, "mlx5_0", PYTHONPATH=str(tmp_path / "hidden")).probes[0]
    assert report.outcome is Outcome.UNSUPPORTED
    assert "python3-pyverbs" in report.reason


def test_without_the_kernel_module_it_names_it(tmp_path: Path) -> None:
    tree = Tree({"sys/class/infiniband/mlx5_0": None})
    with pytest.raises(ProbeUnsupported, match="ib_uverbs"):
        VerbsProbe().run(ProbeContext(roots=Roots.under(tree.write(tmp_path))))


def test_no_device_is_absent(tmp_path: Path) -> None:
    with pytest.raises(ProbeAbsent, match="no RDMA device"):
        VerbsProbe().run(ProbeContext(roots=Roots.under(tmp_path)))


def test_a_replay_uses_what_was_recorded(tmp_path: Path) -> None:
    answer = VerbsAnswer(names=("mlx5_0",), hcas=(Hca(name="mlx5_0", dmabuf=True),))
    tree = Tree({"sys/class/infiniband/mlx5_0": None, "verbs.json": to_json(answer)})
    context = ProbeContext(roots=Roots.under(tree.write(tmp_path)), this_host=False, answers=tmp_path)
    assert VerbsProbe().run(context).facts == {"hcas": answer.hcas}
    (tmp_path / "verbs.json").write_text("[]")
    with pytest.raises(ProbeFailed, match=r"verbs\.json"):
        VerbsProbe().run(context)
    (tmp_path / "verbs.json").unlink()
    with pytest.raises(ProbeNotRun, match="not recorded"):
        VerbsProbe().run(context)


class TestJoin:
    """Sysfs and verbs tell of the same devices."""

    known = Hca(
        name="mlx5_0",
        kind="roce",
        firmware="28.1",
        peer_memory=False,
        ports=(HcaPort(port=1, lid=3, gids=(Gid(index=0, gid="x", type="ib"),)), HcaPort(port=2)),
    )
    more = Hca(
        name="mlx5_0",
        dmabuf=True,
        peer_memory=True,
        max_qp=7,
        ports=(HcaPort(port=1, active_mtu=4096, lid=9), HcaPort(port=3)),
    )

    def test_only_what_is_not_known_is_taken(self) -> None:
        assert join_hcas((self.known,), (self.more,)) == (
            Hca(
                name="mlx5_0",
                kind="roce",
                firmware="28.1",
                dmabuf=True,
                peer_memory=False,
                max_qp=7,
                ports=(
                    HcaPort(port=1, lid=3, active_mtu=4096, gids=(Gid(index=0, gid="x", type="ib"),)),
                    HcaPort(port=2),
                ),
            ),
        )

    def test_devices_of_either_side_stay(self) -> None:
        other = Hca(name="mlx5_9", max_qp=1)
        assert join_hcas((self.known,), (other,)) == (self.known, other)
        assert join_hcas((), (other,)) == (other,)
        assert join_hcas((self.known,), ()) == (self.known,)

    def test_other_facts_are_replaced(self) -> None:
        assert add_facts({"numa": (1,), "hcas": (self.known,)}, {"numa": (2,)}) == {"numa": (2,), "hcas": (self.known,)}
