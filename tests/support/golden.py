"""A snapshot as a golden file has it: whole, in lines that can be reviewed, without what is another each time."""

import hashlib
from dataclasses import replace
from itertools import groupby
from typing import Any

from fabricd.model.snapshot import Snapshot
from fabricd.readable import lean, readable
from fabricd.units import format_ranges

_CPUS = ("cpus", "local_cpus", "cpu_affinity")
#: So many virtual functions in a row are folded: nobody reviews the thousandth.
_MANY = 20


def golden_text(snapshot: Snapshot, *, root: str = "") -> str:
    """Return the golden file's text.

    Args:
        snapshot: of a machine of the suite.
        root: folder of its tree, cut out of all texts.
    """
    told = _with_ranges(lean(timeless(snapshot)))
    told["pci"] = [one for group in _groups(told.get("pci", [])) for one in _folded(group)]
    text = readable(told, dense=True)
    return text.replace(root, "") if root else text


def _with_ranges(value: Any) -> Any:
    """Return a snapshot with lists of CPUs as the kernel writes them: a hundred numbers stand with each device."""
    if isinstance(value, list):
        return [_with_ranges(one) for one in value]
    if not isinstance(value, dict):
        return value
    return {name: format_ranges(one) if name in _CPUS else _with_ranges(one) for name, one in value.items()}


def timeless(snapshot: Snapshot) -> Snapshot:
    """Return a snapshot without times, durations and the hash over all of it."""
    reports = tuple(replace(report, duration_seconds=0.0) for report in snapshot.probes)
    return replace(snapshot, taken_at=0.0, content_hash="", probes=reports)


def without_place(snapshot: Snapshot, root: str = "/nowhere") -> Snapshot:
    """Return a snapshot without times, durations, its hash, and where its tree lay."""
    reports = tuple(
        replace(
            report,
            reason=report.reason.replace(root, ""),
            notes=tuple(note.replace(root, "") for note in report.notes),
        )
        for report in snapshot.probes
    )
    return timeless(replace(snapshot, probes=reports))


def _groups(devices: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    return [list(group) for _, group in groupby(devices, key=lambda device: device.get("physical_function", ""))]


def _folded(devices: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return virtual functions with all but the first and the last as a hash."""
    if len(devices) < _MANY or "physical_function" not in devices[0]:
        return devices
    between = readable(devices[1:-1]).encode()
    digest = hashlib.blake2b(between, digest_size=16).hexdigest()
    return [devices[0], {"and": len(devices) - 2, "hash": digest}, devices[-1]]
