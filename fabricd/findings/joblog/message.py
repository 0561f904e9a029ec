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
        self._parts = [
            (tuple(part for part in text.split(ANYTHING) if part), message)
            for message in messages
            for text in message.texts
        ]

    def find(self, line: str) -> Message | None:
        """Return the message that a line is; None for none."""
        for parts, message in self._parts:
            at = 0
            for part in parts:
                at = line.find(part, at)
                if at < 0:
                    break
                at += len(part)
            else:
                return message
        return None
