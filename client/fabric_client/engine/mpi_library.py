"""MPICH, loaded and started in this process without mpiexec.

Facts of mpi4py 4.1 and MPICH 5.0 that shape this file:

- ``mpi4py.MPI.Init`` holds the GIL, so no thread of this process could answer PMI meanwhile: ``MPI_Init_thread`` and
  ``MPI_Finalize`` are called through ctypes, which releases it.
- Both can block for ever when a peer dies in the middle. They run in a thread of their own, so that this thread can
  raise, and Ctrl-C works.
- MPI's main thread is that which calls the first of ``MPI_Session_init`` and ``MPI_Init_thread``. The former opens this
  process's devices and waits for no other rank, so the caller's thread does it: ``MPI_Is_thread_main`` is as true
  there as under mpiexec, and settings that no device fits are an error code instead of the end of the process.
- On a fatal error MPICH prints it, tells PMI ``abort`` and calls ``exit`` by itself.
"""

import ctypes
import os
import re
from collections.abc import Callable

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


_ARGUMENTS = re.compile(r"\.{2,}|\([^()]*=[^()]*\)")


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


def open_devices() -> ctypes.c_int:
    """Open this process's devices; return the handle of what holds them until MPI's world does.

    Raises:
        EngineError: settings that no device fits.
        UnavailableError: the library is older than MPI 4.
    """
    library, info, session = _library(), ctypes.c_int(), ctypes.c_int()
    if not hasattr(library, "MPI_Session_init"):
        raise UnavailableError(f"{library_version()} knows no sessions, as 4.0 and later do", hint=install_line("mpi"))
    library.MPI_Info_create(ctypes.byref(info))
    library.MPI_Info_set(info, b"thread_level", b"MPI_THREAD_MULTIPLE")  # the world gets what the session got
    code = int(library.MPI_Session_init(info, MPI._handleof(MPI.ERRORS_RETURN), ctypes.byref(session)))
    library.MPI_Info_free(ctypes.byref(info))
    if code != MPI.SUCCESS:
        raise EngineError(
            f"MPI cannot use what it was told to: {reason_of(MPI.Get_error_string(code))}",
            hint="the settings UCX_* and MPIR_CVAR_* of this process must name devices and transports that it has",
        )
    return session


def initialize(session: ctypes.c_int, check: Callable[[], FabricError | None], *, deadline: float) -> None:
    """Start MPI's world model, with all threads allowed to call it.

    Args:
        session: of :func:`open_devices`, which this thread has called.
        check: asked while waiting; returns why this cannot end well any more.
        deadline: of ``time.monotonic``; MPI that has not started by then is given up.

    Raises:
        EngineError: MPI reported an error.
        OperationTimeoutError: it did not start in time.
        FabricError: what ``check`` returned.
    """
    library, provided = _library(), ctypes.c_int()

    def start() -> int:
        code = int(library.MPI_Init_thread(None, None, MPI.THREAD_MULTIPLE, ctypes.byref(provided)))
        if code == MPI.SUCCESS:
            _ask_process_manager(library)
        return code

    call = BlockingCall(start, "MPI_Init_thread")
    code = call.wait(check, deadline=deadline)
    if code != MPI.SUCCESS:
        raise EngineError(f"MPI_Init_thread failed: {reason_of(MPI.Get_error_string(code))}")
    library.MPI_Session_finalize(ctypes.byref(session))  # the world holds what it opened
    # mpi4py would have done this in its own start: errors come back as exceptions instead of ending the process.
    for comm in (MPI.COMM_WORLD, MPI.COMM_SELF):
        comm.Set_errhandler(MPI.ERRORS_RETURN)
    if provided.value < MPI.THREAD_MULTIPLE:
        raise EngineError("this MPI library does not allow calls from several threads")


def reason_of(text: str) -> str:
    """Return what MPICH says of an error in one line, without the calls' arguments, addresses, and aligning dots."""
    return _ARGUMENTS.sub("", " ".join(text.split()))


def _ask_process_manager(library: ctypes.CDLL) -> None:
    """Have MPICH ask once what it else asks when a program does, and keeps: mpi4py holds the GIL meanwhile.

    The thread of this process that has the answer would wait for the GIL, and the program for it, for ever.
    """
    world, value, found = ctypes.c_void_p(MPI._handleof(MPI.COMM_WORLD)), ctypes.c_void_p(), ctypes.c_int()
    library.MPI_Comm_get_attr(world, MPI.UNIVERSE_SIZE, ctypes.byref(value), ctypes.byref(found))


def finalize(check: Callable[[], FabricError | None], *, deadline: float) -> bool:
    """End MPI; every rank must do it. Tell whether it ended in time.

    Raises:
        FabricError: what ``check`` returned.
    """
    try:
        call = BlockingCall(lambda: int(_library().MPI_Finalize()), "MPI_Finalize")
        code = call.wait(check, deadline=deadline)
    except OperationTimeoutError:
        return False
    return bool(code == MPI.SUCCESS)


def _library() -> ctypes.CDLL:
    """Return the MPI library that mpi4py has loaded."""
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
        for line in maps:
            path = line.split(maxsplit=5)[-1].strip()
            if os.path.basename(path).startswith("libmpi") and ".so" in path:  # noqa: PTH119 - a string, no file
                return ctypes.CDLL(path)
    raise UnavailableError("mpi4py has loaded no shared MPI library", hint=install_line("mpi"))
