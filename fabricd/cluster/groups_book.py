"""All groups of this daemon by name, and who may find which."""

from fabricd.cluster.groups_access import Credentials, check_claim, check_name, not_here
from fabricd.cluster.groups_failure import fenced_failure
from fabricd.cluster.groups_live import Group
from fabricd.errors import AccessError


class GroupBook:
    """Groups by name, oldest first: those that live, and for a while those that are over."""

    def __init__(self) -> None:
        self._groups: dict[str, list[Group]] = {}

    def __bool__(self) -> bool:
        return bool(self._groups)

    def all(self) -> list[Group]:
        """Return every group that is still known."""
        return [group for groups in self._groups.values() for group in groups]

    def add(self, group: Group) -> None:
        """Take in a group, the newest of its name."""
        self._groups.setdefault(group.state.name, []).append(group)

    def remove(self, group: Group) -> None:
        """Forget a group."""
        name = group.state.name
        self._groups[name].remove(group)
        if not self._groups[name]:
            del self._groups[name]

    def matching(self, name: str, shown: Credentials) -> list[Group]:
        """Return the groups of a name that the credentials open, newest first.

        Raises:
            InputError: that is no name.
            AccessError: the credentials could open none.
        """
        check_name(name)
        shown.check()
        return [group for group in reversed(self._groups.get(name, [])) if group.access.admits(shown)]

    def of_caller(self, name: str, shown: Credentials) -> Group:
        """Return the newest group, or that of the incarnation shown.

        Raises:
            GroupGoneError: there is none for this caller.
        """
        for group in self.matching(name, shown):
            if shown.incarnation in (None, group.state.incarnation):
                return group
        raise not_here(name)

    def of_member(self, name: str, rank: int, shown: Credentials) -> Group:
        """Return the group in which the claim shown has that rank.

        Raises:
            GroupGoneError: there is none.
            GroupConflictError: a newer incarnation took over, and the older one is forgotten.
        """
        claim = check_claim(shown.claim)
        found = self.matching(name, shown)
        for group in found:
            if group.is_member(claim, rank):
                return group
        if found and shown.incarnation is not None and shown.incarnation < found[0].state.incarnation:
            raise fenced_failure(found[0].state.incarnation).error(name)
        raise not_here(name)

    def check_free(self, name: str, shown: Credentials) -> None:
        """Refuse a name that somebody else's living group has.

        Raises:
            AccessError: it is taken.
        """
        others = [one for one in self._groups.get(name, []) if not one.state.over and not one.access.admits(shown)]
        if any(one.access.collides(shown) for one in others):
            raise AccessError(
                f"these credentials do not open group {name!r}",
                hint="every rank needs the same secret; if another job uses this name, choose a different one",
            )
