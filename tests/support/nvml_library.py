"""Builds the simulated ``libnvidia-ml.so.1`` of ``tests/nvml`` and the environment in which a probe finds it."""

import functools
import hashlib
import os
import subprocess
import tempfile
from collections.abc import Collection, Mapping
from pathlib import Path

_SOURCES = Path(__file__).parents[1] / "nvml"
_STRICT = ["-Wall", "-Wextra", "-Wpedantic", "-Wshadow", "-Wconversion", "-Wno-sign-conversion", "-Werror"]
_FLAGS = ["-std=c11", "-D_GNU_SOURCE", "-O1", "-g", "-fPIC", "-fvisibility=hidden", "-shared", *_STRICT]


@functools.cache
def library_folder(hidden: frozenset[str] = frozenset()) -> Path:
    """Return a folder that holds the library, compiled if its sources changed.

    Args:
        hidden: functions that the library shall not export, as an older driver's would not.
    """
    sources = sorted(_SOURCES.glob("*.[ch]"))
    key = hashlib.blake2b(" ".join([*_FLAGS, *sorted(hidden)]).encode(), digest_size=12)
    for source in sources:
        key.update(source.read_bytes())
    folder = Path(tempfile.gettempdir()) / f"fabricd-nvml-{os.getuid()}" / key.hexdigest()
    library = folder / "libnvidia-ml.so.1"
    if not library.exists():
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        script = folder / f"{os.getpid()}.map"
        script.write_text("{ local: " + " ".join(f"{name};" for name in sorted(hidden)) + " };\n")
        built = script.with_suffix(".so")
        versions = [f"-Wl,--version-script={script}"] if hidden else []
        programs = [str(source) for source in sources if source.suffix == ".c"]
        subprocess.run(["gcc", *_FLAGS, *versions, "-o", str(built), *programs], check=True)
        built.rename(library)  # whoever builds it at the same time finishes with the same file
        script.unlink()
    return folder


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
