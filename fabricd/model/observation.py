"""How a fact came to be known, and how a probe ended."""

from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

T = TypeVar("T")


def missing_word(value: object, instead: T) -> T | None:
    """Return what stands for a word of a newer version in an enumeration's ``_missing_``; None for what is no word."""
    return instead if isinstance(value, str) else None


class Outcome(StrEnum):
    """How a probe, or the reading of one field, ended. None of these means "healthy"."""

    OK = "ok"
    ABSENT = "absent"  #: what it looks for is not on this machine
    DENIED = "denied"  #: it is there, but this process may not see it
    UNSUPPORTED = "unsupported"  #: device, driver or kernel does not offer it
    FAILED = "failed"  #: an error, or the deadline passed
    STALE = "stale"  #: an earlier answer, because the latest try failed
    NOT_RUN = "not_run"  #: switched off, or not yet tried

    @classmethod
    def _missing_(cls, value: object) -> "Outcome | None":
        return missing_word(value, cls.FAILED)


class Evidence(StrEnum):
    """Where a figure comes from. Ordered from strong to weak."""

    MEASURED = "measured"  #: a transfer was timed
    REPORTED = "reported"  #: the device or the kernel says so
    ASSUMED = "assumed"  #: nominal, from a table or a rule

    @classmethod
    def _missing_(cls, value: object) -> "Evidence | None":
        return missing_word(value, cls.ASSUMED)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeReport:
    """How one probe ended."""

    name: str
    outcome: Outcome
    #: Why, in words, when the outcome is not ok; names the missing package, file or right.
    reason: str = ""
    duration_seconds: float = 0.0
    #: Outcomes of single fields or devices that failed within an otherwise useful probe, "where: why".
    notes: tuple[str, ...] = ()
