"""What the ranks call, so that calls that do not fit together become an error that says which rank calls what."""

import zlib
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from fabric_client.arrays import describe
from fabricd.errors import InputError
from fabricd.units import format_ranges

#: A count and the mark of a call go in one word, of 63 bits.
_COUNT_BITS = 43
COUNT_MAX = (1 << _COUNT_BITS) - 1
_MARK_MASK = (1 << 63 - _COUNT_BITS) - 1
_TEXT_MAX = 300  #: bytes of what a rank tells of its call
_SHOWN = 4
_NONE = b" (it has none)"


class Call(NamedTuple):
    """What must be the same on all ranks, but for ``empty``.

    Attributes:
        operation: its name.
        dtype: of its arrays; None without any.
        shape: of what is the same on all ranks: an array, a row or a block of one.
        detail: more, in words that follow these.
        empty: this rank's array has no rows, where ranks may have different numbers of them.
    """

    operation: str
    dtype: Any = None
    shape: tuple[int, ...] = ()
    detail: str = ""
    empty: bool = False

    def __str__(self) -> str:
        what = "" if self.dtype is None else f" of {describe(self.shape, self.dtype)}"
        return f"{self.operation}{what}{self.detail}"

    def told(self) -> bytes:
        """Return what a rank tells the others of it."""
        text = str(self).encode("ascii", "backslashreplace")
        end = _NONE if self.empty else b""
        return text[: _TEXT_MAX - len(end)] + end


@lru_cache(maxsize=256)  # to make the text takes longer than to send a small message
def mark_of(call: Call) -> int:
    """Return a number that is the same for the same calls and hardly ever for others, above the bits of a count.

    Axes of length one do not matter: who gathers in place passes a slice of the result, which has one more.
    """
    alike = call._replace(shape=tuple(length for length in call.shape if length != 1))
    return (zlib.crc32(str(alike).encode()) & _MARK_MASK) << _COUNT_BITS


def differing(operation: str, told: Sequence[bytes]) -> InputError:
    """Return what every rank raises when their calls differ.

    Args:
        operation: of this rank.
        told: by each rank; see :meth:`Call.told`.
    """
    ranks: dict[str, list[int]] = {}
    for rank, text in enumerate(told):
        ranks.setdefault(text[:_TEXT_MAX].decode("ascii", "backslashreplace"), []).append(rank)
    fewest_first = sorted(ranks.items(), key=lambda one: len(one[1]))  # probably those that are wrong
    shown = "; ".join(f"rank {format_ranges(those)}: {text}" for text, those in fewest_first[:_SHOWN])
    more = f"; and {len(ranks) - _SHOWN} others" if len(ranks) > _SHOWN else ""
    empty = any(text.endswith(_NONE) for text in told)
    return InputError(
        f"{operation}: the ranks' calls differ: {shown}{more}",
        hint="all ranks make the same calls in the same order; nothing was moved, and the communicator is as it was"
        + ("; no rows have a dtype, too: np.empty((0, ...), dtype), for np.array([]) is float64" if empty else ""),
        details={"calls": ranks},
    )
