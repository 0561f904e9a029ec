"""What libraries print when something is wrong: which line it is, what it means, and what to do."""

from collections.abc import Iterable
from dataclasses import dataclass

from fabricd.model.finding import Severity

#: Stands in a text for what differs from one time to the next.
ANYTHING = "*"


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One message, in the wordings of the library's versions."""

    code: str  #: stable, and a row of docs/messages.md
    texts: tuple[str, ...]  #: as printed; ``*`` stands for what differs
    meaning: str  #: one sentence
    fix: str  #: the next step, with the command that shows the facts
    severity: Severity = Severity.ERROR


class KnownMessages:
    """Finds in a line which message it is, the first of a list: particular ones stand before general ones.

    Args:
        messages: in the order in which they are tried.
    """

    def __init__(self, messages: Iterable[Message]) -> None:
        #: By what a wording begins with, which most lines lack: the rest of each, its place in the order, the message.
        self._wordings: dict[str, list[tuple[list[str], int, Message]]] = {}
        for place, message in enumerate(messages):
            for text in message.texts:
                first, *rest = filter(None, text.split(ANYTHING))
                self._wordings.setdefault(first, []).append((rest, place, message))

    def find(self, line: str) -> Message | None:
        """Return the message that a line is; None for none."""
        fitting = [
            (place, message)
            for first, wordings in self._wordings.items()
            if first in line
            for rest, place, message in wordings
            if _follow(line, line.find(first) + len(first), rest)
        ]
        return min(fitting, key=lambda one: one[0])[1] if fitting else None


def _follow(line: str, at: int, parts: Iterable[str]) -> bool:
    """Tell whether parts stand in a line in this order, from a place on."""
    for part in parts:
        at = line.find(part, at)
        if at < 0:
            return False
        at += len(part)
    return True
