"""The package as its users see it."""

import importlib.util
import inspect
import json
import subprocess
import sys
from pathlib import Path

import pytest

import fabric_client
from fabric_client.cli.main import COMMANDS
from fabricd import errors
from fabricd.install import install_line

HEAVY = ["fastapi", "uvicorn", "pynvml", "pyverbs", "psutil", "pyroute2", "scipy", "typer"]


def modules_after(code: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport sys, json; print(json.dumps(sorted(sys.modules)))"],
        capture_output=True, text=True, check=True, timeout=30,
    )  # fmt: skip
    return set(json.loads(done.stdout.splitlines()[-1]))


def test_importing_it_is_light():
    loaded = modules_after("import fabric_client")
    for name in [*HEAVY, "numpy", "mpi4py", "httpx"]:
        assert name not in loaded


def test_frameworks_are_loaded_by_the_call_that_needs_them():
    loaded = modules_after("import fabric_client.torch, fabric_client.jax")
    for name in [*HEAVY, "numpy", "torch", "jax"]:
        assert name not in loaded


@pytest.mark.parametrize(
    ("name", "call", "words"),
    [
        ("torch", "torch.init_process_group(rank=0, world_size=1)", "PyTorch is not installed"),
        ("jax", "jax.initialize(rank=0, world_size=1)", "JAX is not installed"),
    ],
)
def test_a_framework_that_is_missing_is_named_with_the_line_to_run(name, call, words):
    code = f"""
import importlib.util
real = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name == {name!r} else real(name, *rest)
import fabric_client.torch, fabric_client.jax
try:
    fabric_client.{call}
except fabric_client.FabricError as error:
    print(type(error).__name__, error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=30)
    assert done.stdout.startswith(f"UnavailableError {words}")
    assert install_line(name) in done.stdout


def test_starting_ranks_loads_nothing_that_plans_or_draws():
    code = "import sys; sys.argv = ['fabricctl', 'run', '--help']; from fabric_client.cli.main import run; run()"
    loaded = modules_after(code)
    assert "fabric_client.cli.launcher" in loaded
    others = {f"fabric_client.cli.{module}" for name, module in COMMANDS.items() if name != "run"}
    heavy = {
        *HEAVY,
        "numpy",
        "httpx",
        "rich.table",
        "fabricd.graph",
        "fabricd.model.device",
        "fabricd.paths",
        "fabricd.plan.group",
    } - {"typer"}
    assert loaded & (others | heavy) == set()


def test_every_command_is_in_the_list_and_its_module_adds_it(fabricctl):
    _, out, _ = fabricctl("--help")
    listed = [line.split()[0] for line in out.partition("Commands:")[2].splitlines() if line.startswith("  ")]
    assert [name for name in listed if name in COMMANDS] == list(COMMANDS)
    for name in COMMANDS:
        status, out, _ = fabricctl(name, "--help")
        assert status == 0
        assert out.startswith("Usage: ")


def test_a_command_that_does_not_exist_is_answered_with_one_that_does(fabricctl):
    status, _, err = fabricctl("plna")
    assert status == 2
    assert "No such command 'plna'. Did you mean 'plan'?" in err


def test_making_a_communicator_loads_no_part_of_the_daemon():
    loaded = modules_after("import fabric_client; fabric_client.create_communicator, fabric_client.Communicator")
    assert "fabric_client.communicator" in loaded
    for name in [
        *HEAVY,
        "httpx",
        "importlib.metadata",
        "fabric_client.verify",
        "fabric_client.staleness",
        "fabricd.install",
        "fabricd.model.path",
        "rich",
        "asyncio",
        "fabricd.model.snapshot",
        "fabricd.plan",
        "fabricd.api",
        "fabricd.cluster",
        "fabricd.probe",
    ]:
        assert name not in loaded


def test_all_is_sorted_and_complete():
    names = fabric_client.__all__
    assert names == sorted(names)
    for name in names:
        assert getattr(fabric_client, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        fabric_client.nothing  # noqa: B018
    # What create_communicator and the operations raise can be caught without a look into fabricd.
    raised = {"AccessError", "InputError", "UnavailableError", "UnreachableError", "FabricError"}
    for kind in (errors.GroupError, errors.CommunicatorError):
        raised |= {kind.__name__} | {child.__name__ for child in kind.__subclasses__()}
    assert raised <= set(names)


def test_every_public_method_says_what_it_takes_and_raises():
    from fabric_client import Communicator
    from fabric_client.gathers import Gathers
    from fabric_client.messages import Messages
    from fabric_client.moves import Moves
    from fabric_client.reductions import Reductions
    from fabric_client.scatters import Scatters

    kinds = (Reductions, Moves, Gathers, Scatters, Messages)
    operations = {name for kind in kinds for name in vars(kind) if not name.startswith("_")}
    assert len(operations) == 17
    for name in operations:
        method = getattr(Communicator, name)
        assert inspect.signature(method).parameters["async_op"].kind is inspect.Parameter.KEYWORD_ONLY
        parts = {"send": ("Args:", "Raises:"), "barrier": ("Args:", "Raises:")}
        for part in parts.get(name, ("Shapes:", "Args:", "Returns:", "Raises:")):
            assert part in method.__doc__, (name, part)


@pytest.mark.parametrize("missing", ["mpi4py", "numpy"])
def test_a_missing_extra_is_named_with_the_line_to_run(missing):
    code = f"""
import sys

class Without:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == {missing!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Without())
import importlib.util
real = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name == {missing!r} else real(name, *rest)
import fabric_client
try:
    fabric_client.create_communicator(rank=0, world_size=1)
except fabric_client.FabricError as error:
    print(type(error).__name__, error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=30)
    assert done.stdout.startswith(f"UnavailableError the MPI engine needs {missing}")
    assert install_line("mpi") in done.stdout
    torch = missing == "mpi4py" and importlib.util.find_spec("torch") is not None
    assert ('engine="gloo"' in done.stdout) is torch


def test_the_command_line_without_its_extra_says_what_to_install(tmp_path: Path):
    (tmp_path / "typer.py").write_text("raise ModuleNotFoundError(\"No module named 'typer'\", name='typer')\n")
    done = subprocess.run(
        [sys.executable, "-c", "from fabric_client.cli import main; main()"],
        capture_output=True, text=True, check=False, timeout=30, env={"PYTHONPATH": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr == (f"fabricctl: typer is not installed; the command line needs it: {install_line('cli')}\n")


def test_ctrl_c_while_the_command_line_loads_is_no_traceback(tmp_path: Path):
    (tmp_path / "typer.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n")
    done = subprocess.run(
        [sys.executable, "-c", "from fabric_client.cli import main; main()"],
        capture_output=True, text=True, check=False, timeout=30, env={"PYTHONPATH": str(tmp_path)},
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (130, "")
