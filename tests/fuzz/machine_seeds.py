"""Captures and snapshots of simulated machines, and of a real one, as inputs to begin with."""

import functools
import tempfile
from collections.abc import Mapping
from pathlib import Path

from fabricd.capture import Capture, record, to_text
from fabricd.model.codec import to_json
from tests.support.machine import load
from tests.support.machine_run import FAST, context_of
from tests.support.nodes import hgx, nvl_tray

#: Small ones, each of another kind.
_MACHINES = ("broken", "gh200", "vm-flat", "mig-a100")
_REAL = Path(__file__).parents[1] / "machines/microvm/capture.json"


@functools.cache
def _captures() -> Mapping[str, Capture]:
    found = {}
    for name in _MACHINES:
        with tempfile.TemporaryDirectory(prefix="fabricd-fuzz-", dir=FAST) as folder:
            context, probes, _ = context_of(load(name), Path(folder))
            recording, snapshot = record(context, probes=probes)
            found[name] = Capture(recording=recording, snapshot=snapshot)
    return found


def captures() -> list[bytes]:
    """Return files of captured machines."""
    return [_REAL.read_bytes(), *(to_text(capture).encode() for capture in _captures().values())]


def snapshots() -> list[bytes]:
    """Return snapshots of machines as they go over the wire."""
    taken = [capture.snapshot for capture in _captures().values()]
    return [to_json(one) for one in (*taken, hgx("a", gpus=2), nvl_tray(0))]
