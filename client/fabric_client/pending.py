"""An operation that was started: what engines give, and waits drive on."""

from typing import Protocol


class Pending(Protocol):
    """An operation that was started."""

    def test(self) -> bool:
        """Drive the operation on and tell whether it has ended; the result is then in place.

        Not called again after it returned true or raised.

        Raises:
            EngineError: it failed.
        """
        ...


class Ended:
    """An operation that had ended when it was started, or had nothing to do."""

    def test(self) -> bool:
        """See :class:`Pending`."""
        return True


#: Any such operation: who gets it need not test.
ENDED = Ended()
