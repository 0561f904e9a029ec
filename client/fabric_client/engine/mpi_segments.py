"""MPICH's shared memory: whether there is enough, and that none stays. Loads no MPI, for launchers look here, too."""

import ctypes
import os
from contextlib import suppress
from pathlib import Path

_SEGMENT = "/dev/shm/mpich_shm_"  # noqa: S108 - MPICH's own name, in POSIX shared memory
#: What each rank of a host takes there, found by trial: MPICH 5.0 about 1 MiB, UCX 1.20 about 4 MiB.
_SHARED_BYTES_PER_RANK = 6 << 20


def shared_memory_shortage(ranks: int, directory: str = os.path.dirname(_SEGMENT)) -> str:  # noqa: PTH120 - a string
    """Return what to tell the user when so many ranks of this host need more shared memory than there can be, or "".

    MPI does not check: its processes die by SIGBUS or SIGSEGV. Containers have 64 MiB unless told otherwise.
    """
    try:
        found = os.statvfs(directory)
    except OSError as error:
        return f"{directory} cannot be used: {error.strerror}"
    size, wanted = found.f_blocks * found.f_frsize, ranks * _SHARED_BYTES_PER_RANK
    if size >= wanted or not size:  # 0: without limit
        return ""
    return (
        f"{directory} holds {size >> 20} MiB, and {ranks} ranks on one host take about {wanted >> 20} of them: "
        "MPI may crash (give the container more, for example by --shm-size=1g or --ipc=host)"
    )


def unlink_segments(kvsname: str | None) -> None:
    """Unlink MPICH's shared memory files of one group, so that a killed group leaves none behind.

    The memory lives on as long as a rank has it mapped. To be called when every rank of this host has mapped it, or
    when the group is lost anyway.

    Args:
        kvsname: the group's; MPICH derives the files' names from it, and other groups' files have others. None, where
            a launcher chose it, leaves the files that this process has mapped.
    """
    directory, prefix = os.path.split(_SEGMENT)
    paths = set() if kvsname is None else set(Path(directory).glob(f"{prefix}{_fnv1a(kvsname):x}_*"))
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
        fields = (line.split(maxsplit=5)[-1].strip() for line in maps if _SEGMENT in line)
        paths.update(Path(path) for path in fields if not path.endswith(" (deleted)"))
    for path in paths:
        with suppress(OSError):  # another rank of the group was faster
            path.unlink()


def unlink_segment_at_exit(kvsname: str, host_index: int) -> None:
    """Have this host's file of a group unlinked when this process ends by itself, whoever ends it.

    MPICH calls ``exit`` when its start fails, and no Python code runs any more. The C library calls ``unlink`` then; it
    does nothing where the file is gone, as it is when MPI has started.
    """
    libc = ctypes.CDLL(None)
    libc.strdup.restype = ctypes.c_void_p  # never freed: it must outlive Python
    path = libc.strdup(f"{_SEGMENT}{_fnv1a(kvsname):x}_{host_index}".encode())
    libc.__cxa_atexit(libc.unlink, ctypes.c_void_p(path), None)


def unlink_left_segments(kvsname: str) -> int:
    """Unlink a group's files on this host when none of its ranks lives here any more; return how many there were.

    Ranks that were all killed in the moment in which MPI starts leave theirs. What somebody has mapped, as far as this
    user may look, stays, and so does what is another user's.
    """
    directory, prefix = os.path.split(_SEGMENT)
    paths = [path for path in Path(directory).glob(f"{prefix}{_fnv1a(kvsname):x}_*") if not _is_mapped(str(path))]
    found = 0
    for path in paths:
        with suppress(OSError):  # gone meanwhile, or not this user's: the folder is sticky
            path.unlink()
            found += 1
    return found


def _is_mapped(path: str) -> bool:
    for maps in Path("/proc").glob("[0-9]*/maps"):
        with suppress(OSError):  # ended meanwhile, or another user's
            if path in maps.read_text(errors="replace"):
                return True
    return False


def _fnv1a(text: str) -> int:
    """Return the 32-bit FNV-1a hash, which MPICH 4 and 5 name their segments by (found by trial)."""
    value = 0x811C9DC5
    for byte in text.encode():
        value = (value ^ byte) * 0x01000193 & 0xFFFFFFFF
    return value
