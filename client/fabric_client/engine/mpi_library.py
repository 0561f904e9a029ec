"""MPICH, loaded and started in this process without mpiexec.

Facts of mpi4py 4.1 and MPICH 5.0 that shape this file:

- ``mpi4py.MPI.Init`` holds the GIL, so no thread of this process could answer PMI meanwhile: ``MPI_Init_thread`` and
  ``MPI_Finalize`` are called through ctypes, which releases it.
- Both can block for ever when a peer dies in the middle. They run in a thread of their own, so that this thread can
  raise, and Ctrl-C works.
- On a fatal error MPICH prints it, tells PMI ``abort`` and calls ``exit`` by itself.
"""

import ctypes
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import mpi4py

from fabric_client.blocking import BlockingCall
from fabricd.errors import EngineError, FabricError, OperationTimeoutError, UnavailableError
from fabricd.install import install_line

# Before the import of MPI: importing it must not start MPI, and its exit handler must not end it.
mpi4py.rc.initialize = False
mpi4py.rc.finalize = False

try:
    from mpi4py import MPI as MPI
except (ImportError, RuntimeError) as error:
    raise UnavailableError(f"mpi4py finds no MPI library: {error}", hint=install_line("mpi")) from error

_SEGMENT = "/dev/shm/mpich_shm_"  # noqa: S108 - MPICH's own name, in POSIX shared memory
#: What each rank of a host takes there, found by trial: MPICH 5.0 about 1 MiB, UCX 1.20 about 4 MiB.
_SHARED_BYTES_PER_RANK = 6 << 20


def library_version() -> str:
    """Return MPICH's version, e.g. ``"MPICH 5.0.2"``.

    Raises:
        UnavailableError: the MPI library is another one, whose processes do not find each other by PMI-1.
    """
    lines = MPI.Get_library_version().strip("\0\n ").splitlines()
    words = lines[0].replace(":", " ").split() if lines else []
    if len(words) < 3 or words[:2] != ["MPICH", "Version"]:
        raise UnavailableError(
            f"mpi4py runs on {lines[0][:80] if lines else 'an unknown MPI library'}, not on MPICH",
            hint=f"{install_line('mpi')} brings MPICH with UCX; remove other builds of mpi4py",
        )
    return f"MPICH {words[2]}"


def initialize(check: Callable[[], FabricError | None], *, deadline: float) -> None:
    """Start MPI's world model, with all threads allowed to call it.

    Args:
        check: asked while waiting; returns why this cannot end well any more.
        deadline: of ``time.monotonic``; MPI that has not started by then is given up.

    Raises:
        EngineError: MPI reported an error.
        OperationTimeoutError: it did not start in time.
        FabricError: what ``check`` returned.
    """
    provided = ctypes.c_int()

    def start() -> int:
        library = _library()
        code = int(library.MPI_Init_thread(None, None, MPI.THREAD_MULTIPLE, ctypes.byref(provided)))
        if code == MPI.SUCCESS:
            _ask_process_manager(library)
        return code

    call = BlockingCall(start, "MPI_Init_thread")
    code = call.wait(check, deadline=deadline)
    if code != MPI.SUCCESS:
        raise EngineError(f"MPI_Init_thread failed with code {code}")
    # mpi4py would have done this in its own start: errors come back as exceptions instead of ending the process.
    for comm in (MPI.COMM_WORLD, MPI.COMM_SELF):
        comm.Set_errhandler(MPI.ERRORS_RETURN)
    if provided.value < MPI.THREAD_MULTIPLE:
        raise EngineError("this MPI library does not allow calls from several threads")


def _ask_process_manager(library: ctypes.CDLL) -> None:
    """Have MPICH ask once what it else asks when a program does, and keeps: mpi4py holds the GIL meanwhile.

    The thread of this process that has the answer would wait for the GIL, and the program for it, for ever.
    """
    world, value, found = ctypes.c_void_p(MPI._handleof(MPI.COMM_WORLD)), ctypes.c_void_p(), ctypes.c_int()
    library.MPI_Comm_get_attr(world, MPI.UNIVERSE_SIZE, ctypes.byref(value), ctypes.byref(found))


def finalize(*, deadline: float) -> bool:
    """End MPI; every rank must do it. Tell whether it ended in time."""
    try:
        call = BlockingCall(lambda: int(_library().MPI_Finalize()), "MPI_Finalize")
        code = call.wait(lambda: None, deadline=deadline)
    except OperationTimeoutError:
        return False
    return bool(code == MPI.SUCCESS)


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


def _fnv1a(text: str) -> int:
    """Return the 32-bit FNV-1a hash, which MPICH 4 and 5 name their segments by (found by trial)."""
    value = 0x811C9DC5
    for byte in text.encode():
        value = (value ^ byte) * 0x01000193 & 0xFFFFFFFF
    return value


def _library() -> ctypes.CDLL:
    """Return the MPI library that mpi4py has loaded."""
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
        for line in maps:
            path = line.split(maxsplit=5)[-1].strip()
            if os.path.basename(path).startswith("libmpi") and ".so" in path:  # noqa: PTH119 - a string, no file
                return ctypes.CDLL(path)
    raise UnavailableError("mpi4py has loaded no shared MPI library", hint=install_line("mpi"))
