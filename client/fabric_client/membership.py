"""A rank's place in a running group: who is lost, and how to go."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from fabric_client.rendezvous import Rendezvous
from fabric_client.watch import GroupWatch
from fabricd.errors import FabricError, GroupError, OperationTimeoutError, RankLostError
from fabricd.model.plan import GroupPlan

if TYPE_CHECKING:  # what most ranks never ask is loaded when it is asked
    from fabric_client.lateness import LateWord
    from fabric_client.staleness import MapWatch


#: Who starts nothing for longer may have been stopped, and its group be over meanwhile.
PAUSE_SECONDS = 1.0


class News(Protocol):
    """Tells whether something happened that may concern an operation; cheap to read."""

    alert: bool


class _NoNews:
    alert = False


#: Of a communicator whose ranks a launcher looks after.
NO_NEWS: News = _NoNews()


class Membership:
    """Joins what a communicator needs of its group. One a process and group.

    Args:
        rendezvous: the group's daemon.
        watch: the other ranks' fate; already started.
        plan: what the daemon planned.
    """

    def __init__(self, rendezvous: Rendezvous, watch: GroupWatch, plan: GroupPlan) -> None:
        self.plan = plan
        self.watch = watch
        self._rendezvous = rendezvous
        self._map_watch: MapWatch | None = None

    def map_changes(self) -> tuple[str, ...]:
        """Return what changed on the map that concerns the plan, since this was first asked.

        Raises:
            FabricError: the daemon does not answer now.
        """
        if self._map_watch is None:
            from fabric_client.staleness import MapWatch

            self._map_watch = MapWatch(self._rendezvous.connection, self.plan)
        return self._map_watch.changes

    def explain(self, error: BaseException, what: str) -> None:
        """Add to an operation's timeout why it did not end, as far as the daemon and the other ranks can tell.

        And to a start of MPI that failed what has changed on the network.
        """
        if not isinstance(error, FabricError) or "why" in error.details:
            return
        if isinstance(error, OperationTimeoutError):
            from fabric_client.lateness import why_late

            why = why_late(self._rendezvous, self.plan, what)
        elif "mpi_ended" in error.details:
            from fabric_client.lateness import network_changes

            found = str(error.details["network"])
            why = "; ".join(network_changes(self._rendezvous.connection, self.plan) + ([found] if found else []))
        else:
            return
        error.details["why"] = why
        error.message += f": {why}" if why else ""

    def late_word(self, what: str, ends: str) -> "LateWord":
        """Return what says of an operation that it lasts, and why; see :class:`fabric_client.progress.Word`.

        Args:
            what: the operation.
            ends: when it does at the latest.
        """
        from fabric_client.lateness import LateWord

        return LateWord(self._rendezvous, self.watch, self.plan, what, ends)

    def failure(self, during: str) -> FabricError | None:
        """Return why ``during`` cannot end well any more, or None. Cheap while all is well."""
        return self.watch.failure(during) if self.watch.alert else None

    def before_start(self, now: float, since: float, during: str) -> FabricError | None:
        """Return why ``during`` had better not be started, or None. Cheap while all is well.

        MPICH 5.0.2 over TCP crashes when an operation is started whose peers have ended. Ranks that have left in peace
        may not be needed for it.

        Args:
            now: of ``time.monotonic``.
            since: when the operation before was started.
            during: the operation's name.
        """
        if now - since > PAUSE_SECONDS:
            self.watch.catch_up()
        if not self.watch.alert:
            return None
        error = self.watch.failure(during)
        return None if error is None or error.details.get("left") else error

    def leave(self) -> None:
        """Go in peace; nothing of this rank asks the daemon any more."""
        self._go(self._rendezvous.leave)
        self._rendezvous.connection.close()

    def abort(self, reason: str) -> None:
        """End the group for everybody."""
        self._go(lambda: self._rendezvous.abort(reason))

    def give_up(self, what: str, error: BaseException) -> None:
        """Go, because of ``error``; tell the others why, unless the group itself told this rank.

        Args:
            what: who failed at what.
            error: of foreign errors only the type is told, their text may hold anything.
        """
        self.explain(error, "")
        if isinstance(error, RankLostError | GroupError):
            self._go(self._rendezvous.leave)  # MPI's thread may still be at a fence: the connection stays
        else:
            self.abort(f"{what}: {error.message if isinstance(error, FabricError) else type(error).__name__}")

    def _go(self, say: Callable[[], bool]) -> None:
        """Say it before the stream ends: a stream that ends without a word is a lost rank."""
        self.watch.ignore()
        if self._map_watch is not None:
            self._map_watch.stop()
        say()
        self.watch.stop()

    def describe(self) -> str:
        """Return where the group lives and whether lost ranks are noticed."""
        state = "watched" if self.watch.watched else "not watched any more: the daemon does not know it"
        return f"{state}, daemon at {self._rendezvous.connection.address}"
