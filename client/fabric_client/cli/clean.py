"""Texts of others, for a terminal. Light: an error of a command that draws nothing goes through here."""

from fabricd.smallfile import escaped

_LONGEST = 400


def clean(text: object, *, keep: str = "") -> str:
    r"""Return a text that a terminal only shows: what would do anything else is written as ``\x1b``.

    Args:
        text: anything; shortened beyond 400 characters, unless ``keep`` says that it is a whole page.
        keep: characters to leave as they are.
    """
    shown = str(text)
    if not keep and len(shown) > _LONGEST:
        shown = shown[:_LONGEST] + "..."
    return "".join(character if character in keep else escaped(character) for character in shown)
