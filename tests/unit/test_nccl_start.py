"""How a rank of the NCCL engine starts: its GPU, the settings of its plan, and what is refused before NCCL hangs."""

import importlib
import subprocess
import sys

import pytest

from fabricd.errors import EngineError, InputError, UnavailableError
from tests.support.nccl_library import load

pytest.importorskip("cupy_backends", reason="CuPy is not installed")


@pytest.fixture(scope="module")
def start():
    load()
    return importlib.import_module("fabric_client.engine.nccl_start")


@pytest.fixture(scope="module")
def cuda():
    return importlib.import_module("fabric_client.engine.cuda")


def ranks(*gpus, nccl="2.30.4", host="boot-a"):
    return [{"host": host, "name": "a", "gpu": gpu, "nccl": nccl} for gpu in gpus]


def test_ranks_on_one_gpu_of_one_host_are_named(start):
    start.check_ranks(ranks("17:00.0", "18:00.0"))
    start.check_ranks(ranks("17:00.0") + ranks("17:00.0", host="boot-b"))
    with pytest.raises(EngineError, match=r"ranks 0,2 are all on one GPU, 17:00\.0 of a.*one rank for each GPU"):
        start.check_ranks(ranks("17:00.0", "18:00.0", "17:00.0"))


def test_different_versions_of_nccl_are_named(start):
    with pytest.raises(EngineError, match=r"2\.30\.4 at rank 0-1; 2\.27\.3 at rank 2"):
        start.check_ranks(ranks("1", "2") + ranks("3", nccl="2.27.3"))


@pytest.mark.parametrize(
    ("asked", "current", "count", "environ", "place", "chosen"),
    [
        (3, 1, 8, {"LOCAL_RANK": "5"}, 6, 3),
        (None, 1, 8, {"LOCAL_RANK": "5"}, 6, 1),
        (None, 0, 1, {"LOCAL_RANK": "5"}, 6, 0),  # each rank sees its own GPU only
        (None, 0, 8, {"LOCAL_RANK": "5"}, 6, 5),
        (None, 0, 8, {"SLURM_LOCALID": "4"}, 6, 4),
        (None, 0, 8, {}, 6, 6),
    ],
)
def test_which_gpu_is_a_ranks(cuda, asked, current, count, environ, place, chosen):
    assert cuda.choose_index(asked, current, count, environ, place)[0] == chosen


def test_a_local_rank_that_is_no_number_is_refused(cuda):
    with pytest.raises(InputError, match="LOCAL_RANK='first' is not a number"):
        cuda.choose_index(None, 0, 8, {"LOCAL_RANK": "first"}, 0)


def test_without_nccl_the_line_to_run_is_told(start, monkeypatch):
    nccl = importlib.import_module("cupy.cuda.nccl")
    monkeypatch.setattr(nccl, "available", False)
    with pytest.raises(UnavailableError, match=r"finds no libnccl\.so\.2.*\[cuda12\]"):
        start.load_binding()


def test_without_a_gpu_the_answer_is_that_there_is_none(cuda, monkeypatch):
    monkeypatch.setattr(cuda.runtime, "getDeviceCount", lambda: 0)
    with pytest.raises(UnavailableError, match="this process sees no GPU"):
        cuda.open_device(None, {}, 0)


SETTINGS = """
import os
from types import SimpleNamespace
from fabric_client.joining import Joined
from fabric_client.membership import Membership
from fabricd.localview import collect
from fabricd.model.plan import GroupPlan, RankSlice, Setting
from fabricd.model.wire import JoinAnswer
from tests.support.nccl_library import HostDevice, load

library = load()
from fabric_client.engine.nccl_start import start_nccl

class Daemon:  # that has one rank only
    def fence(self, number, keys, *, timeout):
        return keys

wanted = (("NCCL_SOCKET_IFNAME", "=lo"), ("NCCL_CROSS_NIC", "0"), ("NCCL_NET", "Socket"))
settings = tuple(Setting(name=name, value=value, because="of a test") for name, value in wanted)
plan = GroupPlan(engine="nccl", size=1, ranks=(RankSlice(rank=0, node="a", host_index=0, settings=settings),))
answer = JoinAnswer(group="g", incarnation=0, rank=0, size=1, kvsname="k", plan=plan)
watch = SimpleNamespace(alert=False)
member = Membership(None, watch, plan)
known = {"identity": None, "view": collect(), "rendezvous": Daemon(), "membership": member}
joined = Joined(**known, answer=answer, again=None)
os.environ["NCCL_NET"] = "IB"
engine = start_nccl(joined, HostDevice("gpu0"), timeout=10, operation_timeout=10)
for name, _ in wanted:
    print(name, library.shim_environment(name.encode()).decode())
print("\\n".join(engine.describe()))
assert engine.shutdown(timeout=5)
"""


def test_the_plans_settings_are_there_when_nccl_starts_and_the_users_own_stay():
    done = subprocess.run([sys.executable, "-c", SETTINGS], capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[:3] == ["NCCL_SOCKET_IFNAME =lo", "NCCL_CROSS_NIC 0", "NCCL_NET IB"]
    assert "NCCL 2.30.4 through CuPy, on host memory as gpu0" in lines
    assert "NCCL_NET=IB from the environment, instead of the plan's Socket" in lines
    assert "NCCL_CROSS_NIC=0 (of a test)" in lines
