"""Probe ``verbs``: what only the verbs library tells of RDMA devices, through pyverbs.

Active MTU, limits, and whether a device can register another device's memory by dma-buf (GPUDirect without a module).
Everything else is read from sysfs by the probe ``rdma``, which needs neither the library nor rights. The library runs
in a process of its own (``fabricd.probe.verbs_child``).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from fabricd.errors import ParseError
from fabricd.model.codec import from_json
from fabricd.model.device import Hca
from fabricd.probe.answers import ask
from fabricd.probe.base import ProbeAbsent, ProbeContext, ProbeDenied, ProbeFailed, ProbeResult, ProbeUnsupported
from fabricd.probe.files import FieldReader
from fabricd.probe.process import ProbeProcess

#: Where a replay keeps the child's answer, in the folder of recorded answers.
RECORDED = "verbs.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class VerbsAnswer:
    """What the child says."""

    names: tuple[str, ...] = ()  #: of the devices that the library lists
    hcas: tuple[Hca, ...] = ()  #: of those that answered, with what verbs tell
    notes: tuple[str, ...] = ()
    denied: int = 0  #: devices that may not be opened
    reason: str = ""  #: why the library lists nothing
    binding_missing: str = ""  #: why pyverbs cannot be imported


@dataclass(slots=True)
class VerbsProbe:
    """RDMA devices through pyverbs. Each is opened and closed again.

    Args:
        environment: of the process in which the library runs, by default this one's.
        answer_seconds: how long the devices may take.
    """

    environment: Mapping[str, str] | None = None
    answer_seconds: float = 8.0
    name: str = field(default="verbs", init=False)
    _process: ProbeProcess = field(init=False)

    def __post_init__(self) -> None:
        self._process = ProbeProcess("fabricd.probe.verbs_child", "verbs", self.environment)

    @property
    def deadline_seconds(self) -> float:
        """Later than the child's own, so that its reason is reported."""
        return self.answer_seconds + 3.0

    def run(self, ctx: ProbeContext) -> ProbeResult:
        """Ask every device; one that does not answer is a note.

        Raises:
            ProbeAbsent: no RDMA device.
            ProbeDenied: there are devices, and none may be opened.
            ProbeUnsupported: pyverbs or a kernel module is missing; says which.
            ProbeFailed: the library crashed, hung or refused.
        """
        verbs, infiniband = ctx.roots.sys / "class/infiniband_verbs", ctx.roots.sys / "class/infiniband"
        in_kernel = FieldReader().entries(infiniband)
        if not in_kernel:
            raise ProbeAbsent(f"no RDMA device: {infiniband} is missing or empty")
        answer = ask(ctx, RECORDED, VerbsAnswer, lambda: self._ask(verbs))
        if answer.binding_missing:
            raise ProbeUnsupported(
                f"pyverbs cannot be imported ({answer.binding_missing}); install the package python3-pyverbs"
            )
        if answer.reason:
            raise ProbeFailed(f"the verbs library lists no devices: {answer.reason}")
        if answer.denied and answer.denied == len(answer.names):
            raise ProbeDenied("; ".join(answer.notes[:3]))
        orphans = tuple(
            f"{name}: no driver of the verbs library takes it (package ibverbs-providers)"
            for name in sorted(set(in_kernel) - set(answer.names))
        )
        return ProbeResult(facts={"hcas": answer.hcas}, notes=answer.notes + orphans)

    def _ask(self, verbs: Path) -> VerbsAnswer:
        if not FieldReader().entries(verbs):
            raise ProbeUnsupported("the kernel module ib_uverbs is not loaded: user space reaches no RDMA device")
        data = self._process.ask(self.answer_seconds)
        try:
            return from_json(data, VerbsAnswer, what="the answer of the verbs process")
        except ParseError as error:
            raise ProbeFailed(str(error)) from error
