"""What all tests share: a clean environment, markers that say why a test cannot run here, and no leftovers.

``FABRICD_CI=1`` (set by .ci/run) makes the session strict: a test that cannot run fails instead of being skipped, a
session in which nothing passed fails, and so does one that left interfaces or shared memory on the machine.
"""

import importlib.util
import os
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings

from demo.namespaces import why_not
from tests.support.command_line import Told, told
from tests.support.etcd import etcd_program
from tests.support.leaks import Watch, mpi_memory

if TYPE_CHECKING:
    from tests.support.daemon import RunningDaemon

#: Variables that the code under test, its launchers and its engines read. None of the machine's may reach a test.
ENVIRONMENT = (
    "FABRICD_", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "ROLE_RANK", "MASTER_ADDR",
    "MASTER_PORT", "TORCHELASTIC_", "SLURM_", "OMPI_", "PMI_", "PMIX_", "PALS_", "MPICH_", "MPIR_", "HYDRA_", "UCX_",
    "FI_", "NCCL_", "GLOO_", "JAX_", "TORCH_", "CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "XDG_RUNTIME_DIR",
)  # fmt: skip

# How fast a machine draws and runs examples says nothing about the code; and what CI says must not be luck.
settings.register_profile("here", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", settings.get_profile("here"), derandomize=True)
settings.load_profile("ci" if os.environ.get("FABRICD_CI") else "here")


class Session:
    """One run of pytest: what it may assume, what passed, what it left.

    With pytest-xdist each worker is one, and so is the process that controls them, which alone judges the end.
    """

    def __init__(self, *, works_for_another: bool) -> None:
        self.strict = bool(os.environ.get("FABRICD_CI"))
        self.corpus = os.environ.get("FABRICD_CORPUS", "")
        for name in [name for name in os.environ if name.startswith(ENVIRONMENT)]:
            del os.environ[name]
        if self.corpus:
            os.environ["FABRICD_CORPUS"] = self.corpus
        if self.strict:
            os.environ["FABRICD_CI"] = "1"  # workers are to know
        self.cannot = {
            "root": _why_no_hosts(), "mpi": _why_no_mpi(), "ibsim": _why_no_ibsim(), "etcd": _why_no_etcd(),
            "corpus": self._why_no_corpus(), "frameworks": _why_no_frameworks(),
        }  # fmt: skip
        self.passed = 0
        self.left: list[str] = []
        self.watch = None if works_for_another else Watch()

    def _why_no_corpus(self) -> str:
        if not self.corpus:
            return "FABRICD_CORPUS names no folder of public machines"
        return "" if Path(self.corpus).is_dir() else f"FABRICD_CORPUS={self.corpus} is no folder"

    def must_run(self, marker: str) -> bool:
        """Tell whether a test that cannot run is a failure here."""
        return self.strict and (marker != "corpus" or bool(self.corpus))


def _why_no_hosts() -> str:
    missing = [program for program in ("ip", "tc") if shutil.which(program) is None]
    return f"no {' and '.join(missing)} (package iproute2)" if missing else why_not()


def _why_no_etcd() -> str:
    return "" if etcd_program() else "no etcd (make setup brings it; Debian package etcd-server)"


def _why_no_mpi() -> str:
    missing = [module for module in ("mpi4py", "numpy") if importlib.util.find_spec(module) is None]
    return f"not installed: {', '.join(missing)} (pip install 'fabricd[mpi]')" if missing else ""


def _why_no_frameworks() -> str:
    missing = [module for module in ("torch", "jax") if importlib.util.find_spec(module) is None]
    return (
        f"not installed: {', '.join(missing)} (make setup-tests; pip install 'fabricd[test-engines]')"
        if missing
        else ""
    )


def _why_no_ibsim() -> str:
    missing = [program for program in ("ibsim", "ibnetdiscover") if shutil.which(program) is None]
    return f"no {' and '.join(missing)} (packages ibsim-utils and infiniband-diags)" if missing else ""


@pytest.fixture
def fabricctl(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Told]:
    """Run a command line of fabricctl in this process; returns exit status, standard output and standard error."""
    from fabric_client.cli.main import run  # most tests need no command line

    return lambda *words: told(capsys, monkeypatch, run, *words)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator["RunningDaemon"]:
    """A daemon without options, for the tests of one file."""
    from tests.support.daemon import daemon  # most tests need none

    with daemon(tmp_path_factory.mktemp("daemon")) as one:
        yield one


@pytest.fixture
def no_memory_left() -> Iterator[None]:
    """Whatever a test does to its ranks, no shared memory of MPI stays behind."""
    from tests.support.daemon import eventually

    before = mpi_memory()
    yield
    eventually(lambda: mpi_memory() <= before)


@pytest.fixture(scope="module")
def url(running: "RunningDaemon") -> str:
    return running.url


SESSION = pytest.StashKey[Session]()


def pytest_configure(config: pytest.Config) -> None:
    if threading.current_thread() is threading.main_thread():
        # A session that is ended otherwise than by Ctrl-C ends what its fixtures have started, too.
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        # A shell's background job is begun deaf to Ctrl-C, and what it starts would be so, too.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    config.stash[SESSION] = Session(works_for_another=hasattr(config, "workerinput"))
    config.pluginmanager.register(_Tally(config.stash[SESSION]))


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what cannot run here, with the reason; in CI that is a failure."""
    session = item.config.stash[SESSION]
    for marker, reason in session.cannot.items():
        if reason and item.get_closest_marker(marker) is not None:
            if session.must_run(marker):
                pytest.fail(f"marked {marker!r}, and CI must be able to run it: {reason}", pytrace=False)
            pytest.skip(reason)


#: Run by one worker: ranks that keep a core busy and hosts that come and go, which would disturb each other, and what
#: takes a snapshot of each machine once.
_TOGETHER = {
    "tests/contract/": "ranks",
    "tests/net/": "ranks",
    "tests/e2e/test_mpi_life": "ranks",
    "tests/e2e/test_mpi_ends": "ranks",
    "tests/e2e/test_mpi_process": "ranks",
    "tests/machines/": "machines",
}


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Have each file, or folder that belongs together, run in one worker, so that its fixtures are made once."""
    from xdist.scheduler import LoadScopeScheduling

    class ByFile(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.partition("::")[0]
            return next((group for start, group in _TOGETHER.items() if file.startswith(start)), file)

    return ByFile(config, log)


class _Tally:
    """Counts what passed, here or in a worker."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._session.passed += report.when == "call" and report.passed


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Turn a session that left something, or in CI proved nothing, into a failure."""
    ours = session.config.stash[SESSION]
    if ours.watch is None:
        return
    ours.left = ours.watch.left_behind(whole_machine=ours.strict)
    ours.watch.end()
    if exitstatus != pytest.ExitCode.OK:
        return
    if ours.left:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
    elif ours.strict and not ours.passed:
        session.exitstatus = pytest.ExitCode.NO_TESTS_COLLECTED


def pytest_terminal_summary(terminalreporter, config: pytest.Config) -> None:
    session = config.stash[SESSION]
    if session.left:
        terminalreporter.section("left behind", red=True)
        for line in session.left:
            terminalreporter.write_line(line)
    if session.strict and not session.passed:
        terminalreporter.write_line("no test passed: this session proved nothing", red=True)
