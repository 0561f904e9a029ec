"""The fences of one group: rounds in which every rank gives some keys, and all get everybody's. One is open at a time.

Invariant: the answer of a round holds one contribution of each rank.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from fabricd.cluster.groups_failure import Member
from fabricd.errors import GroupConflictError, InputError


@dataclass(slots=True, kw_only=True)
class Fences:
    """Rounds of a group, from 0. The answer of the latest complete one stays, for those who have not heard it."""

    done: int = 0  #: rounds; the open one bears this number
    last_keys: dict[str, str] = field(default_factory=dict)  #: of the latest complete round
    given: dict[int, Mapping[str, str]] = field(default_factory=dict)  #: what came to the open one, by rank

    def answers(self, number: int) -> bool:
        """Tell whether a round is the latest complete one, whose answer is kept."""
        return number == self.done - 1

    def awaits(self, member: Member, number: int, keys: Mapping[str, str], group: str) -> bool:
        """Tell whether a contribution is new; False for one that was given before, and comes again.

        Args:
            member: who gives.
            number: of the round.
            keys: what it gives.
            group: name, for errors.

        Raises:
            InputError: the round is neither the open one nor the one before.
            GroupConflictError: the member gave other keys before.
        """
        if self.answers(number):
            return False
        if number != self.done:
            raise InputError(f"group {group!r}: fence {number} is not open", hint=f"the open one is {self.done}")
        given = self.given.get(member.rank)
        if given is not None and given != keys:
            raise GroupConflictError(f"group {group!r}: {member} gave fence {number} other keys before")
        return given is None

    def give(self, rank: int, keys: Mapping[str, str], size: int) -> bool:
        """Take a contribution that is awaited; tell whether it was the last of ``size``, and the round is complete."""
        self.given[rank] = dict(keys)
        if len(self.given) < size:
            return False
        self.last_keys = {key: value for one in range(size) for key, value in self.given[one].items()}
        self.given = {}
        self.done += 1
        return True

    def forget(self) -> None:
        """Let go of all keys."""
        self.given, self.last_keys = {}, {}
