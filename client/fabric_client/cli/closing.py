"""How a command ends: its exit status, and what is closed then. A process runs one command."""

import sys
from collections.abc import Callable
from contextlib import ExitStack

from fabricd.errors import FabricError

at_end = ExitStack()


def exit_status(command: Callable[[], object]) -> int:
    """Run a command and return its exit status; errors go to standard error, without a traceback.

    Args:
        command: returns nothing or the status, or raises SystemExit.
    """
    try:
        status = command()
    except FabricError as error:
        _complain(error, keep="\n")
        return error.exit_status
    except OSError as error:  # of standard output or temporary files: a full disk, a terminal that went away
        _complain(error)
        return 1
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(bool(end.code))
    except KeyboardInterrupt:
        return 130
    finally:
        at_end.close()
    return status if isinstance(status, int) else 0


def _complain(error: Exception, *, keep: str = "") -> None:
    from fabric_client.cli.clean import clean

    # Messages name what machines and files call their parts.
    sys.stderr.write(f"fabricctl: {clean(error, keep=keep)}\n")
