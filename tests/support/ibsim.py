"""A simulated InfiniBand fabric: ``ibsim`` serves a net file, and programs of libibumad run on one of its nodes.

::

    with fabric(Path("/usr/share/doc/ibsim-utils/net-examples/net")) as on_node:
        subprocess.run(["ibnetdiscover"], env=on_node("Hca1"))
"""

import os
import select
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

EXAMPLES = Path("/usr/share/doc/ibsim-utils/net-examples")
#: What each program sees as its only device.
DEVICE = "ibsim0"
_START_SECONDS = 10.0


@contextmanager
def fabric(net: Path) -> Iterator[Callable[[str], dict[str, str]]]:
    """Serve a net file; yield what returns the environment of programs on the node of that id."""
    with tempfile.TemporaryDirectory(prefix="fabricd-ibsim-") as folder:
        # The simulator's sockets are abstract ones: only the name keeps two simulations apart.
        environment = {**os.environ, "IBSIM_SOCKNAME": Path(folder).name, "TMPDIR": folder}
        simulator = subprocess.Popen(  # its console must stay open: at its end the simulator spins
            ["ibsim", "-s", str(net)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env=environment,
        )
        try:
            _wait_until_ready(simulator)
            yield lambda node: {**environment, "LD_PRELOAD": _library(), "SIM_HOST": node}
        finally:
            simulator.kill()
            simulator.communicate()


def _wait_until_ready(simulator: "subprocess.Popen[bytes]") -> None:
    assert simulator.stdout is not None
    said, end = b"", time.monotonic() + _START_SECONDS
    while b"simulator ready" not in said:
        ready, _, _ = select.select([simulator.stdout], [], [], max(0.0, end - time.monotonic()))
        part = os.read(simulator.stdout.fileno(), 65536) if ready else b""
        if not part:
            raise AssertionError(f"ibsim did not start: {said.decode(errors='replace')[-500:]}")
        said += part


def _library() -> str:
    return str(next(Path("/usr/lib").glob("*/umad2sim/libumad2sim.so")))
