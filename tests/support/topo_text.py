"""Reads what ``nvidia-smi topo -m`` printed, in any driver's layout and however badly it was copied."""

import re
from dataclasses import dataclass, field

_ESCAPE = re.compile(r"\x1b\[[0-9;]*m")
_WORD = re.compile(r"^(X|SYS|SOC|NODE|PHB|PXB|PIX|PXN|NV\d+)$")
_LABEL = re.compile(r"^(GPU|NIC)\d+$")


@dataclass
class Published:
    """A published matrix. Lists are in order of its columns."""

    columns: list[str] = field(default_factory=list)  # "GPU0", "NIC0", or an adapter's name with older drivers
    rows: dict[str, list[str]] = field(default_factory=dict)
    cpu_affinity: dict[str, str] = field(default_factory=dict)
    numa_affinity: dict[str, str] = field(default_factory=dict)
    gpu_numa_id: dict[str, str] = field(default_factory=dict)
    adapters: dict[str, str] = field(default_factory=dict)  # NIC legend
    headings: list[str] = field(default_factory=list)


def parse(text: str) -> Published:
    """Return the matrix. Words of older drivers are put into today's: SOC is SYS."""
    found = Published()
    for line in _ESCAPE.sub("", text).replace("\r", "").splitlines():
        words = line.split()
        legend = re.match(r"^\s*(NIC\d+): (\S+)$", line)
        if legend:
            found.adapters[legend[1]] = legend[2]
        elif len(words) > 1 and words[0] == "GPU0" and not _WORD.match(words[1]):
            found.columns = words[: words.index("CPU")] if "CPU" in words else words
            found.headings = [
                name for name in ("CPU Affinity", "NUMA Affinity", "GPU NUMA ID") if name in " ".join(words)
            ]
        elif len(words) > 1 and (words[0] in found.columns or _LABEL.match(words[0])) and _WORD.match(words[1]):
            _read_row(found, line, words)
    return found


def _read_row(found: Published, line: str, words: list[str]) -> None:
    cells = [word for word in words[1:] if _WORD.match(word)]
    found.rows[words[0]] = ["SYS" if word == "SOC" else word for word in cells]
    rest = words[1 + len(cells) :]
    if not words[0].startswith("GPU"):
        return
    # An empty CPU affinity shows only where columns are set apart by tabs.
    if "\t" in line and len(rest) < len(found.headings) and re.search(r"(NODE|SYS|PHB|PIX|PXB|X )\t\t", line):
        rest = ["", *rest]
    for heading, column in zip(("CPU Affinity", "NUMA Affinity", "GPU NUMA ID"),
                               (found.cpu_affinity, found.numa_affinity, found.gpu_numa_id), strict=True):  # fmt: skip
        if heading in found.headings and rest:
            column[words[0]] = rest.pop(0)
