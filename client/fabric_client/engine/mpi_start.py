"""Starting the MPI engine: from a plan, without mpiexec; or on the MPI that mpiexec or the user's code started."""

import atexit
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping

from fabric_client.engine import mpi_library, mpi_segments
from fabric_client.engine.exit_gate import held_up
from fabric_client.engine.held_ends import KEEPALIVE, HeldEnds
from fabric_client.engine.mpi import MpiEngine
from fabric_client.engine.mpi_form import check_forms, with_form
from fabric_client.engine.mpi_library import MPI
from fabric_client.engine.mpi_requests import MpiPending
from fabric_client.engine.pair_connect import are_two_hosts, connect, place_of
from fabric_client.engine.piece_size import PieceSize, choose_piece_size
from fabric_client.engine.reach import Reach
from fabric_client.engine.segments import BeforeStart, Segments, agree
from fabric_client.engine.settings import choose_settings, may_use_rdma, scrub_process_manager, variables_set
from fabric_client.pending import Pending
from fabric_client.pmi import PmiServer, PmiSession
from fabric_client.progress import wait_for
from fabricd.errors import CommunicatorError, EngineError, FabricError
from fabricd.localview import LocalView
from fabricd.model.wire import JoinAnswer

_LOG = logging.getLogger("fabric_client")

#: MPI_Finalize has one more fence, after which no rank talks to another; without a daemon nobody needs to wait for it.
_LAST_FENCE_SECONDS = 5.0
#: A fence that is not complete in time says a moment later who has not come.
_LAST_WORD_SECONDS = 2.0
#: MPI may notice a dead peer before the daemon does, which waits 1.5 s for a member to reconnect.
_VERDICT_SECONDS, _GLANCE_SECONDS = 3.0, 0.02

_once = threading.Lock()
_used = False


def check_usable() -> None:
    """Refuse before anybody is made to wait.

    Raises:
        CommunicatorError: this process has, or had, a communicator.
        UnavailableError: no MPICH.
    """
    mpi_library.library_version()
    if _used:
        raise CommunicatorError(
            "this process had a communicator: MPI starts once in a process and cannot start again",
            hint="keep the first communicator open, and make others of its ranks; or start a new process",
        )


def check_not_running() -> None:
    """Refuse when other code has started MPI.

    Raises:
        CommunicatorError: says how to avoid that.
    """
    if MPI.Is_initialized():
        raise CommunicatorError(
            "MPI is already initialised in this process, by other code than this client",
            hint="create the communicator before anything imports mpi4py.MPI, "
            "or set mpi4py.rc.initialize = False before that import",
        )


def _claim_process() -> None:
    global _used
    with _once:
        check_usable()
        _used = True


class PlannedStart:
    """MPI from a plan: this process answers its own PMI, and the group's daemon carries the fences.

    Args:
        answer: what the daemon planned.
        view: what this process sees.
        fence: exchanges keys with the other ranks: round, new keys, seconds to wait.
        check: why the group cannot go on, or None.
        before_start: why no operation may be started any more, see :meth:`Membership.before_start`.
        on_abort: told MPI's reason when it ends this process by itself.
    """

    def __init__(
        self,
        answer: JoinAnswer,
        view: LocalView,
        *,
        fence: Callable[[int, Mapping[str, str], float], Mapping[str, str]],
        check: Callable[[str], FabricError | None],
        before_start: BeforeStart,
        on_abort: Callable[[str], None],
    ) -> None:
        self._answer = answer
        self._view = view
        self._fence = fence
        self._check = check
        self._before_start = before_start
        self._on_abort = on_abort
        self._deadline = 0.0
        self._closing = False
        session = PmiSession(
            size=answer.size,
            kvsname=answer.kvsname,
            process_mapping=answer.plan.process_mapping,
            fence=self._shared_fence,
        )
        self._pmi = PmiServer(session, on_abort=self._mpi_aborts)

    def run(self, *, timeout: float, environ: Mapping[str, str]) -> MpiEngine:
        """Start MPI and return the engine.

        Raises:
            EngineError: settings that cannot work here, or MPI did not start.
            FabricError: what became of the group meanwhile.
        """
        answer = self._answer
        self._deadline = time.monotonic() + timeout
        mine = next((part for part in answer.plan.ranks if part.rank == answer.rank), None)
        if mine is None:
            raise EngineError(f"the plan of group {answer.group!r} has no part for rank {answer.rank}")
        chosen, notes = choose_settings(mine.settings, self._view, environ)
        beside = [part.rank for part in answer.plan.ranks if part.host_index == mine.host_index]
        if answer.rank == beside[0] and (shortage := mpi_segments.shared_memory_shortage(len(beside))):
            _LOG.warning("%s", shortage)
        _claim_process()
        mpi_segments.unlink_segment_at_exit(answer.kvsname, mine.host_index)
        stale = scrub_process_manager()
        bootstrap = {"PMI_FD": str(self._pmi.fd), "PMI_RANK": str(answer.rank), "PMI_SIZE": str(answer.size)}
        place = place_of(mine, chosen)
        self._reach = Reach(answer.plan, answer.rank, place, {**environ, **chosen})
        self._ends = HeldEnds({**environ, **chosen})
        self._pmi.start()
        try:
            with variables_set({**self._ends.variables, **chosen, **bootstrap}):
                self._initialize()
            os.register_at_fork(after_in_child=self._pmi.replace_after_fork)
            atexit.register(self._at_exit, os.getpid())
            network = next((one for one in answer.plan.networks if one.chosen), None)
            piece = choose_piece_size(answer.size, len(beside), network)
            comm, control, segments = _communicators(piece, self._complete, self._before_start)
            self._ends.hold()
            two = are_two_hosts(answer.plan)  # each rank knows without asking the other
            link = connect(control, place, self._complete) if two else None
        finally:
            self._reach.close()
            # Duplication was collective, so every rank has mapped its host's segment; or the group is lost.
            mpi_segments.unlink_segments(answer.kvsname)
        lines = [f"{mpi_library.library_version()} over UCX, started by this client", *notes]
        if KEEPALIVE in environ:
            lines.append(f"{KEEPALIVE} is set: MPI hears by itself that a peer has ended, and may crash then")
        if stale:
            lines.append("removed variables of an outer process manager: " + " ".join(sorted(stale)))
        # Over RDMA, MPI must not be ended before the process is: MPI_Finalize passes its last fence, flushes each
        # connection and destroys its end of it. The other end answers a flush, so a rank that comes out of the fence a
        # millisecond late waits for one that is gone, for ever (MPICH 5.0.2 over RoCE). The kernel ends them as well.
        end = self._leave_to_kernel if may_use_rdma({**environ, **chosen}, self._view) else self._finalize
        return MpiEngine(comm, control, segments, link, end=end, lines=tuple(lines))

    def undelivered(self) -> int:
        """Return how many bytes of what was sent would be lost if the process ended now."""
        return self._ends.undelivered()

    def _at_exit(self, pid: int) -> None:
        if os.getpid() == pid:  # a forked child has its own PMI socket, see replace_after_fork, and shares the others
            self._ends.release()  # or the kernel would repeat for a minute what the other side's drops
            self._pmi.answer_finalize()

    def _complete(self, pending: Pending) -> None:
        left = max(1.0, self._deadline - time.monotonic())
        wait_for(pending, self._failure, timeout=left, what="the start of MPI")

    def _initialize(self) -> None:
        """Start MPI. When it calls ``exit`` instead, that is an exception here, and the program's end is its own."""
        session = mpi_library.open_devices()  # in this thread, in which the end of the process is not to be held up
        with held_up(self._failure, self._why_ended) as check:
            mpi_library.initialize(session, check, deadline=self._deadline + _LAST_WORD_SECONDS)

    def _why_ended(self) -> FabricError:
        """Return what made MPI end: that a rank is lost says more than what MPI saw of it."""
        deadline = time.monotonic() + _VERDICT_SECONDS
        while (verdict := self._failure()) is None and time.monotonic() < deadline:
            time.sleep(_GLANCE_SECONDS)
        if verdict is not None:
            return verdict
        told = {"mpi_ended": True, "network": self._reach.told()}
        return EngineError("MPI did not start; its reason is on standard error", details=told)

    def _failure(self) -> FabricError | None:
        return self._pmi.failure or self._check("the start of MPI")

    def _shared_fence(self, number: int, keys: Mapping[str, str]) -> Mapping[str, str]:
        if not self._closing:
            left = max(1.0, self._deadline - time.monotonic())
            if number:
                return self._fence(number, keys, left)
            found = self._fence(0, self._reach.with_port(with_form(keys, self._answer.rank, self._answer.plan)), left)
            check_forms(found, self._answer.plan)
            self._reach.look(found, (self._deadline - time.monotonic()) / 2)
            return found
        try:
            # Half of what is left: MPI must end after it, before the connection does.
            half = max(0.5, (self._deadline - time.monotonic()) / 2)
            return self._fence(number, keys, min(_LAST_FENCE_SECONDS, half))
        except FabricError:
            return {}  # the daemon is away; all ranks have passed the barrier before, and nothing is in flight

    def _leave_to_kernel(self, timeout: float) -> bool:
        return True

    def _finalize(self, timeout: float) -> bool:
        self._closing = True
        self._deadline = time.monotonic() + timeout
        self._ends.release()
        with held_up(lambda: None, _why_not_ended) as check:
            return mpi_library.finalize(check, deadline=self._deadline)

    def _mpi_aborts(self, code: int) -> None:
        """MPICH printed why and is about to call exit: leave nothing behind, and tell the group."""
        mpi_segments.unlink_segments(self._answer.kvsname)
        self._on_abort(f"MPI ended rank {self._answer.rank} with code {code}; its standard error says why")


def _why_not_ended() -> FabricError:
    return EngineError("MPI did not end in order; its reason is on standard error")


def running_mpi() -> tuple[int, int] | None:
    """Return rank and size in the MPI that runs in this process already, or None."""
    if not MPI.Is_initialized() or MPI.Is_finalized():
        return None
    return int(MPI.COMM_WORLD.Get_rank()), int(MPI.COMM_WORLD.Get_size())


def on_running_mpi(*, timeout: float) -> tuple[MpiEngine, int]:
    """Return an engine on the MPI that another launcher's PMI, or the user's code, has started.

    Also returns how many ranks share this host.
    """
    _claim_process()
    started_here = not MPI.Is_initialized()
    if started_here:
        mpi_library.initialize(mpi_library.open_devices(), lambda: None, deadline=time.monotonic() + timeout)
    who = "started by this client over the launcher's PMI" if started_here else "started by the user's code"

    def complete(pending: Pending) -> None:
        wait_for(pending, lambda: None, timeout=timeout, what="MPI_Comm_idup")

    beside = MPI.COMM_WORLD.Split_type(MPI.COMM_TYPE_SHARED)
    ranks_on_host = int(beside.Get_size())
    beside.Free()
    piece = choose_piece_size(int(MPI.COMM_WORLD.Get_size()), ranks_on_host)
    comm, control, segments = _communicators(piece, complete, lambda *_: None)
    if started_here:
        mpi_segments.unlink_segments(None)
    lines = (f"{mpi_library.library_version()}, {who}; no plan, no daemon",)

    def end(timeout: float) -> bool:
        if not started_here:
            return True
        return mpi_library.finalize(lambda: None, deadline=time.monotonic() + timeout)

    return MpiEngine(comm, control, segments, end=end, lines=lines), ranks_on_host


def _communicators(
    piece: PieceSize, complete: Callable[[Pending], None], before_start: BeforeStart
) -> tuple["MPI.Intracomm", "MPI.Intracomm", Segments]:
    """Return what an engine runs on; collective."""
    comm, control, own = _duplicate(complete), _duplicate(complete), _duplicate(complete)
    return comm, control, Segments(own, agree(own, piece, complete), before_start)


def _duplicate(complete: Callable[[Pending], None]) -> "MPI.Intracomm":
    """Return a communicator of our own: messages of other code on MPI.COMM_WORLD cannot be mistaken for ours."""
    comm, request = MPI.COMM_WORLD.Idup()
    complete(MpiPending(request))
    comm.Set_errhandler(MPI.ERRORS_RETURN)
    return comm
