"""Builds the simulated ``libnvidia-ml.so.1`` of ``tests/nvml`` and the environment in which a probe finds it."""

import functools
import os
from collections.abc import Collection, Mapping
from pathlib import Path

from tests.support.c_library import built

_SOURCES = Path(__file__).parents[1] / "nvml"


@functools.cache
def library_folder(hidden: frozenset[str] = frozenset()) -> Path:
    """Return a folder that holds the library, compiled if its sources changed.

    Args:
        hidden: functions that the library shall not export, as an older driver's would not.
    """
    return built(_SOURCES, "libnvidia-ml.so.1", hidden=hidden)


def environment(
    scenario: Path, *, hidden: Collection[str] = (), calls: Path | None = None, base: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Return an environment for a process that shall see the GPUs of a scenario file.

    Args:
        scenario: "key = value" lines, see ``tests/nvml/sim.h``.
        hidden: functions that the library lacks.
        calls: file to which the library appends "function count" lines when it is shut down.
        base: environment to extend, by default this process's.
    """
    result = dict(os.environ if base is None else base)
    result["LD_LIBRARY_PATH"] = str(library_folder(frozenset(hidden)))
    result["NVML_SIM_SCENARIO"] = str(scenario)
    if calls is not None:
        result["NVML_SIM_CALLS"] = str(calls)
    return result
