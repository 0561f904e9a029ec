"""Runs the two virtual machines, joined by a wire, until they switch themselves off or their time is up."""

import secrets
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

from tests.rdma.image import Image

PROJECT = Path(__file__).parents[2]
NAMES = ("alpha", "beta")
#: Begins each line that is for people, among what the kernel says on the same console.
MARK = "rdma-check:"
_MEMORY_MIB = 1536


class Machine:
    """One that runs. What it says goes into a file, and what it says to people (``MARK``) also to standard output.

    Args:
        name: its host name.
        process: of QEMU.
        log: takes all that is said on its console.
    """

    def __init__(self, name: str, process: "subprocess.Popen[bytes]", log: Path) -> None:
        self.said: list[str] = []
        self.done = threading.Event()  #: it has given its verdict, or ended
        self._name = name
        self._process = process
        self._log = log
        self._begun = time.monotonic()
        self._reader = threading.Thread(target=self._listen)
        self._reader.start()

    @property
    def verdict(self) -> str:
        """The last thing it said; "" for nothing."""
        return self.said[-1] if self.said else ""

    def end(self) -> None:
        """Switch it off."""
        self._process.kill()
        self._process.wait()
        self._reader.join()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        with self._log.open("wb") as log:
            for raw in self._process.stdout:
                log.write(raw)
                log.flush()
                _, found, line = raw.decode(errors="replace").rstrip().partition(f"{MARK} ")
                if found:
                    self.said.append(line)
                    print(f"{time.monotonic() - self._begun:6.1f} {self._name}: {line}", flush=True)
                    if line.startswith("verdict"):
                        self.done.set()
        self.done.set()


def run(image: Image, folder: Path, *, seconds: float, speed: bool = False) -> dict[str, str]:
    """Boot both, wait for their verdicts, switch them off, and return what each said last, by name.

    Args:
        image: what they boot.
        folder: takes NAME.log for each.
        seconds: how long to wait.
        speed: also measure.
    """
    secret = secrets.token_hex(32)
    end = time.monotonic() + seconds
    machines: dict[str, Machine] = {}
    ours, theirs = socket.socketpair()
    with ours, theirs:
        try:
            for number, (name, wire) in enumerate(zip(NAMES, (ours, theirs), strict=True), 1):
                process = subprocess.Popen(
                    _command(image, name, secret, wire.fileno(), number, speed),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    pass_fds=[wire.fileno()],
                    start_new_session=True,
                )
                machines[name] = Machine(name, process, folder / f"{name}.log")
            for machine in machines.values():
                machine.done.wait(max(0.0, end - time.monotonic()))
        finally:
            for machine in machines.values():
                machine.end()
    return {name: machine.verdict for name, machine in machines.items()}


def _command(image: Image, name: str, secret: str, wire: int, number: int, speed: bool) -> list[str]:
    guest = Path(__file__).with_name("guest.sh")
    # The secret is of these two machines, which end with this run.
    words = f"name={name} guest={guest} project={PROJECT} python={sys.executable} secret={secret}"
    words += " speed=1" if speed else ""
    return [
        "qemu-system-x86_64", "-nographic", "-no-reboot", "-nodefaults", "-serial", "stdio",
        # No help of hardware, so that it runs within virtual machines too; and a clock that counts instructions, 10^9 a
        # second, so that times do not depend on what else this machine does.
        "-accel", "tcg,thread=single", "-icount", "shift=0", "-cpu", "max", "-m", str(_MEMORY_MIB),
        "-kernel", str(image.kernel), "-initrd", str(image.initrd),
        "-append", f"console=ttyS0 quiet panic=-1 mitigations=off {words}",
        "-fsdev", "local,id=root,path=/,security_model=none,readonly=on,multidevs=remap",
        "-device", "virtio-9p-pci,fsdev=root,mount_tag=host",
        # The network card sits below a PCIe port, as in hardware: such ports have Access Control Services.
        "-machine", "q35", "-device", "pcie-root-port,id=above,chassis=1",
        "-netdev", f"socket,id=wire,fd={wire}",
        "-device", f"virtio-net-pci,bus=above,netdev=wire,romfile=,mac=52:54:00:00:00:{number:02x}",
    ]  # fmt: skip
