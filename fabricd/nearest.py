"""Which known word was probably meant by one that is none."""

import re
from collections.abc import Collection, Iterable
from itertools import islice

#: Comparing takes some 20 us a word, more of long ones, in daemons as in clients.
_COMPARED = 128
_NUMBER = re.compile(r"[0-9]+")


def nearest(word: object, known: Collection[str], *, cutoff: float = 0.6) -> str:
    """Return ``"; did you mean ...?"`` when a known word is near, else ``""``.

    Another number is no slip: ``gpu9`` does not mean ``gpu8``, nor ``mlx5_17`` ``mlx5_9:1``. One that was left out
    (``mlx_9``), or has other zeros before it (``node007``), is.

    Args:
        word: what was found.
        known: what could have been; those that end alike are looked at first, and of very many not all.
        cutoff: how near, 0 to 1.
    """
    import difflib  # when something is wrong

    wanted = str(word)[:80]
    numbers = _numbers(wanted)
    candidates: Iterable[str] = (one for one in known if numbers <= (its := _numbers(one)) or its <= numbers)
    if len(known) > _COMPARED:
        candidates = sorted(candidates, key=lambda one: one[-2:] != wanted[-2:])
    near = difflib.get_close_matches(wanted, list(islice(candidates, _COMPARED)), n=1, cutoff=cutoff)
    return f"; did you mean {near[0]!r}?" if near else ""


def _numbers(word: str) -> set[str]:
    return {number.lstrip("0") for number in _NUMBER.findall(word)}
