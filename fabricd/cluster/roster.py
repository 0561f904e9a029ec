"""Who bears which node_id and which name, and what cannot be told apart. A change costs the claims that it touches."""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """One daemon says that it is that node."""

    key: str  #: of its place in the map
    node_id: str
    name: str
    where: str  #: for people: its URL, "this node"


class Roster:
    """All claims of nodes that are not gone."""

    def __init__(self) -> None:
        self._claims: dict[str, Claim] = {}
        self._by_id: dict[str, dict[str, Claim]] = {}
        self._by_name: dict[str, dict[str, Claim]] = {}
        self._conflicts: dict[tuple[str, str], str] = {}

    @property
    def conflicts(self) -> tuple[str, ...]:
        """One sentence for each node_id that two daemons claim and each name that two nodes bear."""
        return tuple(self._conflicts[key] for key in sorted(self._conflicts))

    def by_id(self, node_id: str) -> list[str]:
        """Return the keys of those who claim a node_id, the first one first."""
        return list(self._by_id.get(node_id, ()))

    def by_name(self, name: str) -> list[str]:
        """Return the keys of those who bear a name, the first one first."""
        return list(self._by_name.get(name, ()))

    def put(self, key: str, claim: Claim | None) -> tuple[list[str], list[str]]:
        """Take a daemon's claim; None when it has none any more. Return the conflicts that began, and that are over."""
        before = self._claims.get(key)
        if before == claim:
            return [], []
        self._claims.pop(key, None)
        if claim is not None:
            self._claims[key] = claim
        touched = [one for one in (before, claim) if one is not None]
        for one in touched:
            _set(self._by_id, one.node_id, key, claim if claim and claim.node_id == one.node_id else None)
            _set(self._by_name, one.name, key, claim if claim and claim.name == one.name else None)
        return self._judge({one.node_id for one in touched}, {one.name for one in touched})

    def _judge(self, ids: Iterable[str], names: Iterable[str]) -> tuple[list[str], list[str]]:
        begun, over = [], []
        judged = {("id", one): _id_conflict(one, list(self._by_id.get(one, {}).values())) for one in ids}
        judged |= {("name", one): _name_conflict(one, list(self._by_name.get(one, {}).values())) for one in names}
        for key, sentence in judged.items():
            known = self._conflicts.pop(key, "")
            if sentence:
                self._conflicts[key] = sentence
            if sentence and not known:
                begun.append(sentence)
            if known and not sentence:
                over.append(known)
        return begun, over


def _set(index: dict[str, dict[str, Claim]], word: str, key: str, claim: Claim | None) -> None:
    if claim is not None:
        index.setdefault(word, {})[key] = claim
    elif word in index:
        index[word].pop(key, None)
        if not index[word]:
            del index[word]


def _id_conflict(node_id: str, claims: list[Claim]) -> str:
    if len(claims) < 2:
        return ""
    return (
        f"node_id {node_id} is claimed by {_places(claims)}: the same daemon listed twice, or machines with one "
        "identity (set node_id on each)"
    )


def _name_conflict(name: str, claims: list[Claim]) -> str:
    bearers = {claim.node_id: claim for claim in reversed(claims)}
    if len(bearers) < 2:
        return ""
    return f"the name {name} is borne by {_places(list(bearers.values())[::-1])} (set name on each)"


def _places(claims: list[Claim]) -> str:
    return " and ".join(f"{claim.name} ({claim.where})" for claim in claims)
