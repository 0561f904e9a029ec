"""The process that waits for NVML's events, and writes one line of JSON for each to standard output, for ever.

It is apart from the one that reads facts, because waiting means to keep the library initialised: that holds every GPU
open, so that none can be reset and no MIG mode be changed while it runs.
"""

import contextlib
import ctypes
import json
import os
import time
from typing import Any

from fabricd.probe.child import end_with_parent
from fabricd.probe.nvml_library import GpuLostError, Library, Refusal

# nvmlEventType bits that say that a GPU's facts may have changed. Source: NVIDIA's nvml.h.
_KINDS = {
    0x2: "ecc-uncorrected", 0x8: "xid", 0x100: "mig-changed", 0x400: "row-retired", 0x800: "row-retirement-failed",
    0x1000: "poison", 0x2000: "fatal-poison", 0x4000: "unavailable", 0x8000: "recovery-action",
}  # fmt: skip
_WANTED = sum(_KINDS)
_MAX_GPUS = 64
_WAIT_MILLISECONDS = 10_000
_TIMEOUT = 10
_SPACING_SECONDS = 0.1  # a GPU that reports errors without end must not cost more


def watch() -> None:
    """Write ``{"watching": N}``, then events, until NVML refuses; the last line is then ``{"error": ...}``."""
    end_with_parent()
    with os.fdopen(os.dup(1), "w", buffering=1) as out:
        os.dup2(2, 1)  # what a library prints must not garble the answer

        def tell(**facts: Any) -> None:
            out.write(json.dumps(facts) + "\n")

        try:
            import pynvml  # here, because its absence is an answer
        except ImportError as error:
            return tell(error=str(error))
        library = Library(pynvml)
        try:
            _must(library, "nvmlInit")
            events = _must(library, "nvmlEventSetCreate")
            index_of = _register(library, events)
            tell(watching=len(index_of))
            while True:
                _wait(library, events, index_of, tell)
        except (GpuLostError, _RefusedError) as end:
            return tell(error=str(end))


class _RefusedError(Exception):
    """NVML refuses what waiting needs."""


def _must(library: Library, function: str, *arguments: Any) -> Any:
    answer = library.call(function, *arguments)
    if isinstance(answer, Refusal):
        raise _RefusedError(answer.words)
    return answer


def _register(library: Library, events: Any) -> dict[int, int]:
    """Register for each GPU what it supports; return the GPUs' numbers by handle. A lost GPU has no more to tell."""
    index_of = {}
    for index in range(min(_must(library, "nvmlDeviceGetCount"), _MAX_GPUS)):
        with contextlib.suppress(GpuLostError, _RefusedError):
            handle = _must(library, "nvmlDeviceGetHandleByIndex", index)
            types = _must(library, "nvmlDeviceGetSupportedEventTypes", handle) & _WANTED
            if types:
                _must(library, "nvmlDeviceRegisterEvents", handle, types, events)
                index_of[_address(handle)] = index
    return index_of


def _wait(library: Library, events: Any, index_of: dict[int, int], tell: Any) -> None:
    event = library.call("nvmlEventSetWait_v2", events, _WAIT_MILLISECONDS)
    if not isinstance(event, Refusal):
        kind = _KINDS.get(event.eventType, f"event-{event.eventType:#x}")
        tell(gpu=index_of.get(_address(event.device), -1), kind=kind, data=event.eventData)
        time.sleep(_SPACING_SECONDS)
    elif event.code != _TIMEOUT:
        raise _RefusedError(event.words)


def _address(handle: Any) -> int:
    return ctypes.cast(handle, ctypes.c_void_p).value or 0


if __name__ == "__main__":
    watch()
