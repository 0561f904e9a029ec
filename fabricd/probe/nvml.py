"""Probe ``nvml``: GPUs, their links and peers, and the driver, from NVIDIA's management library.

The library runs in a process of its own (``fabricd.probe.nvml_child``). What a GPU or driver does not tell is a note of
that GPU; a lost GPU is a GPU with outcome ``failed``; the probe fails only when the library as a whole does.
"""

import errno
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from fabricd.errors import ParseError
from fabricd.install import install_line
from fabricd.localview import IMEX_CHANNELS, imex_numbers
from fabricd.model.codec import from_json
from fabricd.model.device import Gpu, GpuDriver, NvLink
from fabricd.model.observation import Outcome
from fabricd.probe.answers import ask
from fabricd.probe.base import (
    ProbeAbsent,
    ProbeContext,
    ProbeDenied,
    ProbeFailed,
    ProbeResult,
    ProbeStopped,
    ProbeUnsupported,
    Roots,
)
from fabricd.probe.files import FieldReader
from fabricd.probe.process import ProbeProcess

#: Where a replay keeps the child's answer, in the folder of recorded answers.
RECORDED = "nvml.json"
_NVIDIA_VENDOR = "0x10de"
_DISPLAY_CLASS, _NVLINK_SWITCH_CLASS, _IBM_VENDOR = "0x03", "0x0680", "0x1014"
_DRIVER_NOT_LOADED, _LIBRARY_NOT_FOUND, _NO_PERMISSION, _VERSION_MISMATCH, _UNKNOWN = 9, 12, 4, 18, 999


@dataclass(frozen=True, slots=True, kw_only=True)
class NvmlAnswer:
    """What the child says."""

    driver: GpuDriver = field(default_factory=GpuDriver)
    gpus: tuple[Gpu, ...] = ()
    notes: tuple[str, ...] = ()
    calls: int = 0  #: calls into the library
    error: int = 0  #: nvmlReturn_t when the library as a whole refuses
    reason: str = ""
    binding_missing: str = ""  #: why nvidia-ml-py cannot be imported


@dataclass(slots=True)
class NvmlProbe:
    """GPUs through NVML. Remembers what each told last, for the day that it is lost.

    Args:
        environment: of the process in which NVML runs, by default this one's. With ``LD_LIBRARY_PATH`` in it another
            ``libnvidia-ml.so.1`` can be named.
        answer_seconds: how long NVML may take. Starting up takes seconds for each GPU where persistence mode is off.
    """

    environment: Mapping[str, str] | None = None
    answer_seconds: float = 15.0
    name: str = field(default="nvml", init=False)
    _process: ProbeProcess = field(init=False)
    _known: dict[int, Gpu] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self._process = ProbeProcess("fabricd.probe.nvml_child", "NVML", self.environment)

    @property
    def deadline_seconds(self) -> float:
        """Later than the child's own, so that its reason is reported."""
        return self.answer_seconds + 3.0

    def run(self, ctx: ProbeContext) -> ProbeResult:
        """Ask NVML, or the recorded answer of a replay.

        Raises:
            ProbeStopped: the library is not there, or says nothing at all.
        """
        answer = ask(ctx, RECORDED, NvmlAnswer, lambda: self._told(ctx.roots))
        if answer.binding_missing or answer.error:  # recorded as the child says it
            raise ProbeFailed(f"NVML: {answer.binding_missing or answer.reason} (error {answer.error})")
        gpus = tuple(_completed(self._with_last_known(gpu, answer), ctx.roots) for gpu in answer.gpus)
        if ctx.this_host:
            self._known = {gpu.index: gpu for gpu in gpus if gpu.uuid}
        channels = imex_numbers(FieldReader().entries(ctx.roots.dev / IMEX_CHANNELS))
        driver = replace(answer.driver, imex_channels=channels)
        return ProbeResult(facts={"gpu_driver": driver, "gpus": gpus}, notes=answer.notes)

    def ask(self) -> bytes:
        """Return NVML's answer as JSON, as a recording keeps it in ``nvml.json``.

        Raises:
            ProbeFailed: the library crashed or did not answer in time.
        """
        return self._process.ask(self.answer_seconds)

    def _told(self, roots: Roots) -> NvmlAnswer:
        if not _may_have_gpus(roots):
            raise ProbeAbsent("no NVIDIA device on the PCI bus, and no NVIDIA driver")
        answer = decode(self.ask())
        if answer.binding_missing or answer.error:
            raise _why_not(answer, roots)
        return answer

    def _with_last_known(self, gpu: Gpu, answer: NvmlAnswer) -> Gpu:
        """Return a lost GPU with the facts that it had last, unless they are another's by now."""
        last = self._known.get(gpu.index)
        if gpu.outcome is Outcome.OK or gpu.uuid or last is None:
            return gpu
        if any(other.uuid == last.uuid or other.pci_address == last.pci_address for other in answer.gpus):
            return gpu
        return replace(last, outcome=gpu.outcome, reason=gpu.reason, notes=gpu.notes)


def decode(data: bytes) -> NvmlAnswer:
    """Return the child's answer.

    Raises:
        ProbeFailed: it is none.
    """
    try:
        return from_json(data, NvmlAnswer, what="the answer of the NVML process")
    except ParseError as error:
        raise ProbeFailed(str(error)) from error


def _may_have_gpus(roots: Roots) -> bool:
    """Tell whether it is worth starting a process for NVML. /dev/dxg is the way to the GPU in WSL."""
    signs = (roots.proc / "driver/nvidia", roots.dev / "nvidiactl", roots.dev / "dxg")
    return any(FieldReader().exists(sign) for sign in signs) or bool(_pci_gpus(roots))


def _pci_gpus(roots: Roots) -> list[str]:
    """Return addresses of NVIDIA's display controllers (class 03)."""
    read, devices = FieldReader(), roots.sys / "bus/pci/devices"
    return [
        name
        for name in read.entries(devices)
        if read.text(devices / name / "vendor") == _NVIDIA_VENDOR
        and (read.text(devices / name / "class") or "").startswith(_DISPLAY_CLASS)
    ]


def _why_not(answer: NvmlAnswer, roots: Roots) -> ProbeStopped:
    """Return why there is no NVML here, told apart as far as files can tell."""
    gpus = _pci_gpus(roots)
    seen = (
        f"{len(gpus)} NVIDIA GPU{'s are' if len(gpus) != 1 else ' is'} on the PCI bus"
        if gpus
        else "no NVIDIA GPU is on the PCI bus"
    )
    if answer.binding_missing:
        return ProbeUnsupported(f"nvidia-ml-py is not installed ({install_line('daemon')}): {answer.binding_missing}")
    if answer.error == _LIBRARY_NOT_FOUND:
        return ProbeAbsent(
            f"libnvidia-ml.so.1 is not found, {seen}; it comes with the driver, in a container with the driver"
            " capability 'utility'"
        )
    denied = _device_node_trouble(roots)
    if answer.error in (_NO_PERMISSION, _DRIVER_NOT_LOADED, _UNKNOWN) and denied:
        return ProbeDenied(f"{denied} (NVML: {answer.reason})")
    if answer.error == _NO_PERMISSION:
        return ProbeDenied(f"NVML: {answer.reason}")
    if answer.error == _DRIVER_NOT_LOADED:
        kind = ProbeFailed if gpus else ProbeAbsent
        return kind(f"NVIDIA's kernel driver is not loaded, {seen}")
    if answer.error == _VERSION_MISMATCH:
        return ProbeFailed(
            f"the kernel driver and libnvidia-ml differ in version, as after an upgrade without reboot: {answer.reason}"
        )
    return ProbeFailed(f"NVML: {answer.reason} (error {answer.error})")


def _device_node_trouble(roots: Roots) -> str:
    """Return why this process cannot use a driver that is loaded; "" when it is not loaded or nothing is wrong."""
    if not FieldReader().exists(roots.proc / "driver/nvidia/version"):
        return ""
    control = roots.dev / "nvidiactl"
    try:
        os.close(os.open(control, os.O_RDWR | os.O_CLOEXEC))
    except FileNotFoundError:
        return f"the driver is loaded, but {control} is not there: this container was given no GPU"
    except OSError as error:
        if error.errno in (errno.EPERM, errno.EACCES):
            return f"the driver is loaded, but this process may not open {control} ({error.strerror})"
    return ""


def _completed(gpu: Gpu, roots: Roots) -> Gpu:
    """Return a GPU with what the kernel knows better than NVML."""
    links = tuple(_with_remote_type(link, roots) for link in gpu.links)
    if not gpu.pci_address:
        return replace(gpu, links=links)
    # NVML tells the NUMA node only within this process's cpuset; the kernel says -1 where firmware named none.
    node = FieldReader().integer(roots.sys / "bus/pci/devices" / gpu.pci_address / "numa_node", missing=-1)
    return replace(gpu, links=links, numa_node=gpu.numa_node if node is None else node)


def _with_remote_type(link: NvLink, roots: Roots) -> NvLink:
    """Return a link with its far end's type from the far end's PCI class, where an old driver does not tell it."""
    if link.remote_type or not link.remote_pci_address:
        return link
    read, device = FieldReader(), roots.sys / "bus/pci/devices" / link.remote_pci_address
    kind, vendor = read.text(device / "class") or "", read.text(device / "vendor")
    if vendor == _IBM_VENDOR:
        return replace(link, remote_type="cpu")
    if kind.startswith(_DISPLAY_CLASS):
        return replace(link, remote_type="gpu")
    return replace(link, remote_type="switch") if kind.startswith(_NVLINK_SWITCH_CLASS) else link
