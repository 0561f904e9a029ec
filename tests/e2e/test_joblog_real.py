"""Messages that the libraries themselves print when they are made to, and NCCL's logs of real machines."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from demo.daemons import program
from fabricd.findings.joblog.judge import log_findings
from fabricd.findings.joblog.read import JobLog, read_log
from tests.support.leaks import mpi_memory

_MPI = "from mpi4py import MPI; MPI.COMM_WORLD.barrier()"
_GLOO = "import torch.distributed as d; d.init_process_group('gloo', rank=0, world_size=1, store=d.HashStore())"


def printed(words: list[str], settings: Mapping[str, str]) -> JobLog:
    """What a log tells in which a program's output stands."""
    done = subprocess.run(
        words, env={**os.environ, **settings}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60,
        check=False,
    )  # fmt: skip
    return read_log(done.stdout.splitlines())


def mpi(ranks: int = 1, **settings: str) -> JobLog:
    return printed([program("mpiexec"), "-n", str(ranks), sys.executable, "-c", _MPI], settings)


@pytest.mark.mpi
def test_settings_that_ucx_warns_of():
    log = mpi(UCX_NET_DEVICES="mlx5_9:1", UCX_TSL="tcp")
    assert set(log.messages) == {"ucx-device", "ucx-unused"}


@pytest.mark.mpi
def test_transports_that_are_not_there():
    assert set(mpi(UCX_TLS="rc").messages) == {"ucx-transport", "ucx-nothing", "mpich-start"}


@pytest.mark.mpi
def test_ranks_without_a_transport_in_common():
    before = mpi_memory()
    assert set(mpi(2, UCX_TLS="self").messages) == {"ucx-unreachable", "mpich-start"}
    for path in mpi_memory() - before:  # MPICH leaves it there when it does not start
        Path(path).unlink()


@pytest.mark.frameworks
def test_gloo_with_the_syntax_of_nccl():
    log = printed([sys.executable, "-c", _GLOO], {"GLOO_SOCKET_IFNAME": "^docker0"})
    assert set(log.messages) == {"gloo-interface"}


#: NCCL's logs of MLPerf training, as their makers published them: version, ranks, networks, and what is wrong.
PUBLISHED = {
    "azure_ndv4_1node_A100": (8, {"IBext"}, set()),
    "dell_xe8545_4xA100_1node": (4, {"IBext"}, set()),
    "dell_xe8545_4xA100_2node": (8, {"IBext"}, {"log-indirect"}),
    "dell_xe8640_4xH100_2node": (8, {"IBext"}, set()),
    "dell_xe9640_4xH100_1node": (4, {"Socket"}, {"nccl-no-adapter"}),
    "dell_xe9680_8xH200_1node": (8, {"Socket"}, {"setting-hinders", "nccl-no-adapter"}),
    "dell_xe9680l_8xH200_2node": (16, {"IBext"}, {"setting-hinders"}),
    "dell_xe9685l_8xB200_1node": (8, {"IBext_v9"}, set()),
}


@pytest.mark.corpus
@pytest.mark.parametrize("name", PUBLISHED)
def test_published_logs(name):
    file = Path(os.environ["FABRICD_CORPUS"]) / f"measurements/logs/mlperf_{name}.txt"
    log = read_log(file.read_text(errors="replace").splitlines())
    ranks, networks, codes = PUBLISHED[name]
    assert log.ranks == ranks
    assert {network for host in log.hosts.values() for network in host.networks} == networks
    assert {one.code for one in log_findings(log)} == codes
    assert sum(host.by_peer_access for host in log.hosts.values()) > 0 or "B200" in name
