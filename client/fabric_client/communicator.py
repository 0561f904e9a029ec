"""The communicator: collectives and messages between the ranks of a group, on the path that the plan chose."""

from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self, cast

import numpy as np

from fabric_client.explain import explain_communicator
from fabric_client.gathers import Gathers
from fabric_client.messages import Messages
from fabric_client.moves import Moves
from fabric_client.operations import is_between
from fabric_client.progress import check_timeout
from fabric_client.rebuild import join_again
from fabric_client.reductions import Reductions
from fabric_client.runner import Runner
from fabric_client.scatters import Scatters
from fabricd.errors import InputError
from fabricd.units import format_ranges

if TYPE_CHECKING:
    from fabric_client.environment import Identity
    from fabric_client.joining import Joined
    from fabric_client.stats import OperationStats
    from fabric_client.verification import Verification

_COLOR_MAX = 2**31 - 1
_LEAST_VERIFIED = 1 << 20


class Communicator(Reductions, Moves, Gathers, Scatters, Messages):
    """The ranks of a group, able to talk. Made by :func:`fabric_client.create_communicator`.

    Blocking: every method returns when this rank's part is done, so the arrays may be used again. An operation that
    lasts longer than its ``timeout`` raises OperationTimeoutError. Ctrl-C is heard while waiting. With
    ``async_op=True`` it returns a :class:`fabric_client.Work` at once; several may be under way, and what they end
    with, their handles tell.

    Arrays, with the mpi engine: NumPy's in C order; whatever has the buffer protocol (``bytearray``, ``array.array``);
    PyTorch's CPU tensors, JAX's CPU arrays, and what else speaks DLPack on the CPU. A strided input is copied first; a
    strided ``out`` is refused, and so is a read-only one, as JAX's are. What comes back without ``out`` is a tensor for
    a tensor, a jax.Array for a jax.Array, and NumPy's for all else. Arrays of a wrong dtype or shape are refused before
    anything is sent. Zero elements and 0-d arrays are fine, and so are more than 2**31 elements. What is only moved may
    have any dtype without Python objects. Reductions take the integers, floats, complex numbers and bool that
    :class:`ReduceOp` has a meaning for, in native byte order; float16 and bfloat16 (ml_dtypes') are reduced in float32
    and rounded once at the end. Masked arrays are refused, and so is a GPU's memory.

    All ranks must pass the same shape, dtype, operator and root, and start the same collectives in the same order. That
    is checked where it costs nothing, else only with ``create_communicator(check_calls=True)``, for it would cost a
    message. When they do not, results may be garbage without an error, an operation may wait until its timeout, or the
    engine may report an error. An InputError on one rank alone is such a case: let it end the rank, and the others are
    told.

    Threads: collectives from several threads run one after another, in the order in which they come, so threads must
    agree on an order among all ranks; ``send`` and ``recv`` may run beside them and beside each other.

    A failed peer: a pending operation raises RankLostError, which names the group and the ranks, also when it is not
    with the lost rank that this one exchanges data; afterwards every operation raises CommunicatorError, and the
    process may end as it likes: nothing waits for the lost. That goes for all communicators that were made of one
    another: what breaks one breaks all.

    Attributes:
        rank: this process's place, 0 to size - 1.
        size: number of ranks.
        group: the group's name.
    """

    def __init__(self, runner: Runner, identity: "Identity", joined: "Joined | None" = None) -> None:
        super().__init__(runner)
        self.group = runner.group
        self._identity = identity
        self._joined = joined  #: None: made of another one, or on a launcher's MPI
        self._rebuilds = 0

    def split(self, color: int | None, key: int = 0, *, timeout: float | None = None) -> "Communicator | None":
        """Make communicators out of this one: one for each color. Collective.

        Args:
            color: ranks that pass the same number are together; None is in none.
            key: new ranks are in the order of the keys, among equal ones of the old ranks.
            timeout: seconds; None takes the communicator's.

        Returns:
            This rank's new communicator, None without a color. It ends with its own ``close``, or with this one.

        Raises:
            InputError: a color or key that cannot be used; nothing was sent.
            RankLostError, GroupAbortedError, OperationTimeoutError, EngineError: the communicator is broken.
        """
        for name, value in (("color", color), ("key", key)):
            if not (is_between(value, 0, _COLOR_MAX) or (value is None and name == "color")):
                raise InputError(f"{name} {value!r} cannot be used", hint=f"valid: integers from 0 to {_COLOR_MAX}")
        return self._derive("split", color, key, f"[{color}]", timeout)

    def dup(self, *, timeout: float | None = None) -> "Communicator":
        """Make a communicator of the same ranks, whose operations cannot be mistaken for this one's. Collective.

        Args:
            timeout: seconds; None takes the communicator's.

        Raises:
            RankLostError, GroupAbortedError, OperationTimeoutError, EngineError: the communicator is broken.
        """
        return cast(
            "Communicator", self._derive("dup", 0, self.rank, "[dup]", timeout)
        )  # one color: nobody is left out

    def subgroup(self, ranks: Sequence[int], *, timeout: float | None = None) -> "Communicator | None":
        """Make a communicator of some ranks, in the order given. Collective: all ranks of this one call it.

        Args:
            ranks: of this communicator, each once; the same on every rank.
            timeout: seconds; None takes the communicator's.

        Returns:
            The new communicator; None on ranks that are not in it.

        Raises:
            InputError: ranks that are none, or are named twice; nothing was sent.
            RankLostError, GroupAbortedError, OperationTimeoutError, EngineError: the communicator is broken.
        """
        try:
            chosen = list(ranks)
        except TypeError as error:
            raise InputError(f"ranks {ranks!r:.100} are not several", hint="name them in a list: [0, 1]") from error
        for rank in chosen:
            self._check_rank(rank, "rank")
        chosen = [int(rank) for rank in chosen]  # tensors of one value differ
        if not chosen or len(set(chosen)) != len(chosen):
            raise InputError(f"ranks {chosen} are not a group", hint="name at least one, and each once")
        name = f"[{format_ranges(sorted(chosen))}]"
        member = self.rank in chosen
        return self._derive("subgroup", 0 if member else None, chosen.index(self.rank) if member else 0, name, timeout)

    def _derive(
        self, what: str, color: int | None, key: int, name: str, timeout: float | None
    ) -> "Communicator | None":
        runner = self._runner.derive(what, color, key, timeout, group=f"{self.group}{name}")
        return None if runner is None else type(self)(runner, self._identity)

    def explain(self) -> str:
        """Return the plan in a few lines: which path, why, and what was set for it. Local; nothing is sent."""
        return explain_communicator(self._runner, self._identity)

    def stats(self) -> "dict[str, OperationStats]":
        """Return calls, bytes and seconds of each kind of operation so far, on this rank. Local; nothing is sent."""
        return self._runner.tally.read()

    def verify(self, nbytes: int = 32 << 20, *, timeout: float | None = None) -> "Verification":
        """Check that data takes the planned path. Collective, and not free: it reduces an array over all ranks.

        Every host reads what its interfaces and ports have carried before and after, and all are held against the plan.
        Other traffic of the machines counts with it: below a tenth of ``nbytes`` it does not matter.

        Args:
            nbytes: of the array; the same on every rank. 1 MiB or more.
            timeout: seconds for each step; None takes the communicator's.

        Returns:
            The verdict with its figures, the same on every rank; print it.

        Raises:
            InputError: fewer bytes, or a communicator that was made of another one, for which there is no plan.
            RankLostError, GroupAbortedError, OperationTimeoutError, EngineError: the communicator is broken.
        """
        if not is_between(nbytes, _LEAST_VERIFIED, 2**40):
            raise InputError(f"nbytes {nbytes!r} cannot be used", hint=f"at least {_LEAST_VERIFIED}, to be seen at all")
        self._check_leads("verify")
        from fabric_client.verify import CounterWatch, judge_reports  # reads counters, which most ranks never do

        array = self._arrays.give(self._arrays.as_result(None, (nbytes,), np.dtype(np.uint8)), None)
        watch = CounterWatch()
        self.barrier(timeout=timeout)  # nobody's bytes come before everybody's first look
        self.all_reduce(array, "max", out=array, timeout=timeout)
        self.barrier(timeout=timeout)
        membership = self._runner.membership
        plan = None if membership is None else membership.plan
        report = watch.report(self.rank, plan, self._engine.direct_memory)
        return judge_reports(self._share(report, timeout), plan, nbytes)

    @property
    def stale(self) -> tuple[str, ...]:
        """What changed on the map that makes the plan doubtful, since this was first asked: empty while it stands.

        A planned device that went down, or another one that came: one line each. A thread follows the map from the
        first use on; ask on one rank, and let all :meth:`rebuild` between two steps. Where all ranks are on one host,
        and without a plan, nothing ever is.

        Raises:
            FabricError: the daemon does not answer when this is used for the first time.
        """
        membership = self._runner.membership
        return () if membership is None else membership.map_changes()

    def rebuild(self, *, timeout: float = 60.0) -> "Communicator":
        """Make a communicator of the same ranks on a new plan. Collective.

        The daemon plans anew. Settings that an engine reads only when a process starts (MPI's devices and transports,
        NCCL's cards) cannot follow: when the new plan needs others, nothing is changed and the error names them.

        Args:
            timeout: seconds for all ranks to come, and for each step.

        Returns:
            The new communicator. This one goes on, too; the first one's close is the end of both.

        Raises:
            InputError: a communicator that was made by ``split``, ``dup`` or ``subgroup``, or has no plan.
            CommunicatorError: the new plan needs a restart; says of what. This communicator is as it was.
            RankLostError, GroupError, OperationTimeoutError, EngineError: the communicator is broken.
        """
        if self._joined is None:
            raise InputError(
                f"rebuild: {self.group!r} has no plan of its own",
                hint="plans are for what create_communicator makes with a daemon",
            )
        check_timeout(timeout)
        self._rebuilds += 1
        runner, joined = join_again(self._runner, self._joined, f"{self.group}+{self._rebuilds}", timeout)
        return type(self)(runner, joined.identity, joined)

    def _check_leads(self, what: str) -> None:
        if not self._runner.leads:
            raise InputError(
                f"{what}: the communicator {self.group!r} was made of another one, and plans are for groups",
                hint="call it on the one that create_communicator gave",
            )

    def close(self, *, timeout: float | None = None) -> None:
        """End the communicator together with the other ranks, which must close theirs, too. Safe to repeat.

        Waits for what is pending. The communicators that were made of this one end with it. A process that ends
        without closing leaves its group: others see it as lost when they need it.

        Args:
            timeout: seconds to wait for the others; None takes the communicator's.

        Raises:
            RankLostError, GroupAbortedError, OperationTimeoutError, EngineError: it did not end in order; this rank's
                part is over nevertheless.
        """
        self._runner.close(timeout)

    def abort(self, reason: str) -> None:
        """End the group at once: every rank's pending operation raises GroupAbortedError with this reason.

        Args:
            reason: shown to the other ranks; no secrets.
        """
        self._runner.abort(f"rank {self.rank}: {reason}")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
        else:
            self._runner.give_up(error)

    def __repr__(self) -> str:
        state = ", closed" if self._runner.closed else ""
        return f"<Communicator of group {self.group!r}: rank {self.rank} of {self.size}{state}>"
