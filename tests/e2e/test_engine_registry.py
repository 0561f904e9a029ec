"""Engines by entry point: a package that is installed brings one, and what can be wrong with it."""

import json

import pytest

from tests.support.ranks import new_group, ranks

pytestmark = pytest.mark.frameworks

#: A third party's engine: Gloo by another name, which tells what it was given.
_ACME = """
from fabric_client.engine import gloo_start
from fabricd.errors import UnavailableError

plan = "gloo"

def check():
    import os
    if os.environ.get("ACME_LICENCE") == "none":
        raise UnavailableError("Acme needs a licence", hint="buy one")

def start(meeting):
    told = meeting.exchange({f"acme/{meeting.rank}": f"{meeting.rank + 1}/{meeting.size}"})
    engine = gloo_start.start(meeting)
    engine.name = "acme"
    engine._lines = (f"acme in {meeting.group[:5]}: {' '.join(sorted(told.values()))} on {meeting.part.node}",)
    return engine
"""


def install(folder, name, source, entries):
    """Put a package where a folder of PYTHONPATH has it, as pip would."""
    about = folder / f"{name}-1.0.dist-info"
    about.mkdir(parents=True)
    (folder / f"{name}.py").write_text(source)
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    lines = "\n".join(f"{entry} = {target}" for entry, target in entries.items())
    (about / "entry_points.txt").write_text(f"[fabric_client.engines]\n{lines}\n")


_RANK = """
import json, os, sys
import numpy as np
from fabric_client import FabricError, create_communicator
name = sys.argv[1].split(",")[int(os.environ["RANK"])]
try:
    with create_communicator(engine=name, timeout=20) as comm:
        total = comm.all_reduce(np.arange(4.0) + comm.rank)
        halves = comm.split(comm.rank % 2)
        print(json.dumps([total.tolist(), comm.explain(), halves.size, repr(comm.verify().verdict)]))
except FabricError as error:
    print(json.dumps([type(error).__name__, str(error)]))
"""


def test_a_package_brings_an_engine(tmp_path, url):
    install(tmp_path / "site", "acme_engine", _ACME, {"acme": "acme_engine"})
    group = new_group(url, PYTHONPATH=str(tmp_path / "site"))
    with ranks(tmp_path, 2, ["-c", _RANK, "acme,acme"], group) as job:
        found = [rank.json() for rank in job.wait(60)]
    for total, explained, halves, verdict in found:
        assert total == [1.0, 3.0, 5.0, 7.0]
        assert "engine acme" in explained
        assert "acme in test-: 1/2 2/2 on d" in explained
        assert halves == 1
        assert "CONFIRMED" in verdict


def test_ranks_of_different_engines_are_told_who_is_which(tmp_path, url):
    install(tmp_path / "site", "acme_engine", _ACME, {"acme": "acme_engine"})
    group = new_group(url, PYTHONPATH=str(tmp_path / "site"))
    with ranks(tmp_path, 2, ["-c", _RANK, "acme,gloo"], group) as job:
        found = [rank.json() for rank in job.wait(60)]
    assert any("acme at rank 0; gloo at rank 1" in said for _, said in found)
    assert {kind for kind, _ in found} <= {"EngineError", "GroupAbortedError"}


@pytest.mark.parametrize(
    ("name", "more", "kind", "said"),
    [
        ("nvshmem", {}, "InputError", "valid: mpi, nccl, gloo, acme, broken, twice, void"),
        ("acme", {"ACME_LICENCE": "none"}, "UnavailableError", "Acme needs a licence"),
        ("broken", {}, "UnavailableError", "'broken' of acme_engine 1.0 cannot be loaded: ModuleNotFoundError"),
        ("void", {}, "UnavailableError", "has no plan and no check and no start"),
        ("twice", {}, "UnavailableError", "acme_engine 1.0 and other_engine 1.0"),
    ],
)
def test_what_can_be_wrong_is_said_before_anybody_waits(tmp_path, url, name, more, kind, said):
    entries = {"acme": "acme_engine", "broken": "no_such_module", "void": "json:loads", "twice": "acme_engine"}
    install(tmp_path / "site", "acme_engine", _ACME, entries)
    install(tmp_path / "site", "other_engine", _ACME, {"twice": "other_engine"})
    group = new_group(url, PYTHONPATH=str(tmp_path / "site"), **more)
    with ranks(tmp_path, 1, ["-c", _RANK, name], group) as job:
        found = job.wait(60)[0].json()
    assert found[0] == kind
    assert said in found[1]


def test_what_gloo_cannot_do_is_refused_in_words(tmp_path, url):
    code = """
import json
import numpy as np
from fabric_client import InputError, create_communicator
comm = create_communicator(engine="gloo")
said = []
for array, op in ((np.ones(2, bool), "logical_and"), (np.ones(2, "c16"), "product"), (np.ones(2, "u4"), "sum"),
                  (np.ones(2, "i2"), "max"), (np.ones(2, "g"), "sum"), (np.ones(2, int), "average")):
    try:
        comm.all_reduce(array, op)
    except InputError as error:
        said.append(str(error))
assert comm.all_reduce(np.ones(2), "average").tolist() == [1, 1]  # in step
comm.close()
print(json.dumps(said))
"""
    with ranks(tmp_path, 2, ["-c", code], new_group(url)) as job:
        first, second = (rank.json() for rank in job.wait(60))
    assert first == second
    assert [said.split(":")[0].split(" (")[0] for said in first] == [
        "Gloo has no logical_and",
        "Gloo has no product of complex numbers",
        "Gloo does not reduce uint32",
        "Gloo does not reduce int16",
        "Gloo does not reduce float128",
        "average of int64 has no meaning",
    ] or json.dumps(first)


def test_a_lost_rank_is_named_and_nobody_hangs(tmp_path, url):
    code = """
import os, signal
import numpy as np
from fabric_client import create_communicator
comm = create_communicator(engine="gloo")
comm.all_reduce(np.ones(1000))
if comm.rank == 1:
    os.kill(os.getpid(), signal.SIGKILL)
comm.all_reduce(np.ones(1 << 20))
"""
    with ranks(tmp_path, 3, ["-c", code], new_group(url)) as job:
        found = job.wait(60)
    assert [rank.status for rank in found] == [1, -9, 1]
    for survivor in (found[0], found[2]):
        assert "RankLostError" in survivor.err, survivor.err
        assert "lost rank 1 during all_reduce" in survivor.err


def test_a_stopped_rank_is_an_error_in_time(tmp_path, url):
    code = """
import os, signal
import numpy as np
from fabric_client import OperationTimeoutError, create_communicator
comm = create_communicator(engine="gloo")
comm.barrier()
if comm.rank == 1:
    comm.recv(np.empty(1), 0, tag=7, timeout=20)  # never sent
try:
    comm.all_reduce(np.ones(1 << 20), timeout=0.5)
except OperationTimeoutError as error:
    print('"timed out"')
"""
    with ranks(tmp_path, 2, ["-c", code], new_group(url)) as job:
        found = job.wait(60)
    assert found[0].json() == "timed out"
    assert found[1].status == 1
    assert "Error" in found[1].err
