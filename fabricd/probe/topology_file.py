"""The topology file that describes this machine, where its image or hypervisor left one. Chosen by PCI addresses.

What such a file means is not decided here. Looked at are the file that ``/etc/nccl.conf`` names, as NCCL itself does
(NVIDIA's documentation of NCCL_TOPO_FILE), and the places that the context lists.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from fabricd.model.topology_file import MAX_CHARACTERS, TopologyFile
from fabricd.probe.answers import ask
from fabricd.probe.base import ProbeAbsent, ProbeContext, ProbeFailed, ProbeResult, Roots
from fabricd.probe.files import FieldReader

#: Where a replay keeps the file, in the folder of recorded answers.
RECORDED = "topology_file.json"
_MAX_FILES = 64
_ADDRESS = re.compile(r'\bbusid="([0-9a-f:.]{12,16})"', re.IGNORECASE)
_NCCL_SETTING = re.compile(r"^\s*NCCL_TOPO_FILE\s*=\s*(/\S+)", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopologyFileAnswer:
    """The file that was chosen."""

    file: TopologyFile
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TopologyFileProbe:
    """Finds the file that names most of this machine's PCI devices; of several the first."""

    name: str = "topology_file"
    deadline_seconds: float = 5.0

    def run(self, ctx: ProbeContext) -> ProbeResult:
        """Read the files.

        Raises:
            ProbeAbsent: there is none, or none of this machine.
            ProbeFailed: those that are there cannot be read.
        """
        answer = ask(ctx, RECORDED, TopologyFileAnswer, lambda: _choose(ctx), from_files=True)
        return ProbeResult(facts={"topology_file": answer.file}, notes=answer.notes)


def _choose(ctx: ProbeContext) -> TopologyFileAnswer:
    read = FieldReader()
    here = set(read.entries(ctx.roots.sys / "bus/pci/devices"))
    looked: list[str] = []
    best, most = None, 0
    for place, path in _files(ctx, read):
        text = read.text(path, MAX_CHARACTERS + 1)
        if text is None:
            continue
        if len(text) > MAX_CHARACTERS:
            read.note(place, f"more than {MAX_CHARACTERS} characters, so it is no topology of one machine")
            continue
        looked.append(place)
        named = len(here & {_kernel_form(address) for address in _ADDRESS.findall(text)})
        if named > most:
            best, most = TopologyFile(path=place, text=text), named
    if best is not None:
        return TopologyFileAnswer(file=best, notes=tuple(read.notes))
    if read.notes:
        raise ProbeFailed("; ".join(read.notes))
    if looked:
        raise ProbeAbsent(f"none of this machine's devices stands in {', '.join(looked)}")
    raise ProbeAbsent("no file in any place of topology_files")


def _files(ctx: ProbeContext, read: FieldReader) -> Iterator[tuple[str, Path]]:
    """Yield the files there are, each once: how it is called on its machine, and where it is."""
    named = _NCCL_SETTING.findall(read.text(ctx.roots.etc / "nccl.conf") or "")
    seen: set[str] = set()
    for pattern in (*named[-1:], *ctx.topology_files):
        base, rest = _below(ctx.roots, pattern)
        for path in read.matching(base, rest)[:_MAX_FILES]:
            place = pattern[: -len(rest)] + path.relative_to(base).as_posix()
            if place not in seen and len(seen) < _MAX_FILES:
                seen.add(place)
                yield place, path


def _below(roots: Roots, pattern: str) -> tuple[Path, str]:
    """Return the root that a path lies under, and the rest of it."""
    for beginning, root in (("/run/", roots.run), ("/etc/", roots.etc)):
        if pattern.startswith(beginning):
            return root, pattern[len(beginning) :]
    return roots.top, pattern.lstrip("/")


def _kernel_form(busid: str) -> str:
    """Return a PCI address as the kernel writes it; NVML writes domains with eight digits."""
    busid = busid.lower()
    return busid[4:] if busid.startswith("0000") and busid[8:9] == ":" else busid
