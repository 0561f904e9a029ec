"""Builds the C libraries that stand in for a vendor's, below the real bindings."""

import hashlib
import os
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

_STRICT = ["-Wall", "-Wextra", "-Wpedantic", "-Wshadow", "-Wconversion", "-Wno-sign-conversion", "-Werror"]
_FLAGS = ["-std=c11", "-D_GNU_SOURCE", "-O1", "-g", "-fPIC", "-fvisibility=hidden", "-shared", *_STRICT]


def built(sources: Path, name: str, *, flags: Sequence[str] = (), hidden: frozenset[str] = frozenset()) -> Path:
    """Return a folder that holds the library, compiled if its sources or flags changed.

    Args:
        sources: folder of its C files.
        name: of the library, e.g. "libnvidia-ml.so.1".
        flags: more of gcc's.
        hidden: functions that the library shall not export.
    """
    files = sorted(sources.glob("*.[ch]"))
    key = hashlib.blake2b(" ".join([*_FLAGS, *flags, *sorted(hidden)]).encode(), digest_size=12)
    for file in files:
        key.update(file.read_bytes())
    folder = Path(tempfile.gettempdir()) / f"fabricd-{sources.name}-{os.getuid()}" / key.hexdigest()
    library = folder / name
    if not library.exists():
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        script = folder / f"{os.getpid()}.map"
        script.write_text("{ local: " + " ".join(f"{one};" for one in sorted(hidden)) + " };\n")
        made = script.with_suffix(".so")
        versions = [f"-Wl,--version-script={script}"] if hidden else []
        programs = [str(file) for file in files if file.suffix == ".c"]
        subprocess.run(["gcc", *_FLAGS, *flags, *versions, "-o", str(made), *programs], check=True)
        made.rename(library)  # whoever builds it at the same time finishes with the same file
        script.unlink()
    return folder
