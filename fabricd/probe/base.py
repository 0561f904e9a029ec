"""What a probe is, what it is given and how it answers."""

from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from fabricd.locations import TOPOLOGY_FILES
from fabricd.model.observation import Outcome
from fabricd.smallfile import KERNEL, Files


@dataclass(frozen=True, slots=True, kw_only=True)
class Roots:
    """Where the trees lie that probes read. Tests, containers and replays use the same door as production."""

    top: Path = Path("/")
    sys: Path = Path("/sys")
    proc: Path = Path("/proc")
    etc: Path = Path("/etc")
    dev: Path = Path("/dev")
    run: Path = Path("/run")

    @classmethod
    def under(cls, directory: Path) -> "Roots":
        """Return the roots of a tree that stands in for ``/``: a captured machine, or a host mounted in a container."""
        return cls(
            top=directory,
            sys=directory / "sys",
            proc=directory / "proc",
            etc=directory / "etc",
            dev=directory / "dev",
            run=directory / "run",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeContext:
    """What every probe is given.

    Attributes:
        roots: where to read files.
        this_host: False when the roots describe another machine. Then a probe must ask neither this kernel nor
            this machine's libraries, only files and ``answers``.
        answers: recorded answers of sources that are no files, for a replay: by name, or a folder of files; see
            ``fabricd.probe.answers`` and the probes' ``RECORDED``.
        topology_files: absolute paths, with ``*``, where files may lie that say how the devices hang together.
        files: the door to the files below the roots.
        recording: takes what is read and answered, for a capture.
        taken_at: when the machine of a replay was captured, Unix time.
    """

    roots: Roots = Roots()
    this_host: bool = True
    answers: Path | Mapping[str, bytes] | None = None
    topology_files: tuple[str, ...] = TOPOLOGY_FILES
    files: Files = KERNEL
    recording: "Recording | None" = None
    taken_at: float | None = None

    def keep(self, name: str, answer: Any) -> None:
        """Keep an answer for the capture that is being taken, if one is."""
        if self.recording is not None:
            self.recording.answers[name] = answer


class Recording(Protocol):
    """What takes a capture: ``fabricd.probe.recorder.Recorder``."""

    @property
    def answers(self) -> MutableMapping[str, Any]:
        """What sources that are no files said, by name."""

    @property
    def door(self) -> Files:
        """Lets everything through, and keeps it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeResult:
    """What a probe found.

    Attributes:
        facts: values for fields of ``Snapshot``, by the field's name.
        notes: single fields or devices that could not be read, "where: why".
    """

    facts: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


class Probe(Protocol):
    """One source of facts. ``run`` may be called again at any time, in any thread, but never twice at once."""

    @property
    def name(self) -> str:
        """Short and unique; names the source."""

    @property
    def deadline_seconds(self) -> float:
        """When to stop waiting for ``run``."""

    def run(self, ctx: ProbeContext) -> ProbeResult:
        """Read the source.

        Raises:
            ProbeStopped: nothing to tell; the subclass says why. Any other exception counts as a failure.
        """


class ProbeStopped(Exception):  # noqa: N818 - an answer, not a fault: most machines lack most devices
    """A probe ends without facts. The reason names the missing package, file or right."""

    outcome = Outcome.FAILED

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class ProbeAbsent(ProbeStopped):
    """What the probe looks for is not on this machine."""

    outcome = Outcome.ABSENT


class ProbeDenied(ProbeStopped):
    """It is there, but this process may not see it."""

    outcome = Outcome.DENIED


class ProbeUnsupported(ProbeStopped):
    """Device, driver or kernel does not offer it."""

    outcome = Outcome.UNSUPPORTED


class ProbeFailed(ProbeStopped):
    """An error that the probe understands well enough to explain."""


class ProbeNotRun(ProbeStopped):
    """Switched off, or impossible in a replay."""

    outcome = Outcome.NOT_RUN
