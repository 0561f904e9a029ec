"""PMI-1, the protocol by which MPICH's processes find each other, answered inside the rank's own process.

MPICH reads ``PMI_FD`` from the environment and talks on that socket: one command a line, ``key=value`` pairs
separated by blanks. Here a thread answers on the other end of a socketpair, so that no port is open on any network;
what the ranks must share (``put`` ... ``barrier_in`` ... ``get``) goes through a fence function, which asks the
group's daemon.

Source: MPICH, src/pmi/src/pmi_wire.c and doc of PMI version 1.1 ("simple PMI").
"""

import os
import re
import socket
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress

from fabricd.errors import FabricError, ParseError

#: What ``get_maxes`` tells MPICH; longer values are split by it.
KVSNAME_MAX, KEY_MAX, VALUE_MAX = 256, 64, 4096
_LINE_MAX = 65536
_FINALIZE_ACK = b"cmd=finalize_ack rc=0\n"
_WORD = re.compile(r"[!-~]*")  # printable, no blank: what fits into a line of pairs

#: New keys of this rank for one round in, the keys of all ranks out.
Fence = Callable[[int, Mapping[str, str]], Mapping[str, str]]


def parse_line(line: str) -> dict[str, str]:
    """Return the pairs of one PMI line; blanks separate them, the first ``=`` of each splits it.

    Raises:
        ParseError: longer than any legal line, or not printable.
    """
    if len(line) > _LINE_MAX:
        raise ParseError(f"PMI line of {len(line)} characters", hint=f"at most {_LINE_MAX}")
    if not line.isprintable():
        raise ParseError(f"PMI line with control characters: {line[:60]!r}")
    return dict(word.split("=", 1) for word in line.split(" ") if "=" in word)


def check_keys(keys: Mapping[str, str]) -> Mapping[str, str]:
    """Return the keys when MPICH may be given them; a blank or line feed inside would be a command of its own.

    Raises:
        ParseError: a key or value that no MPICH could have put.
    """
    for key, value in keys.items():
        if not (0 < len(key) <= KEY_MAX and len(value) <= VALUE_MAX and _WORD.fullmatch(key + value)):
            raise ParseError(f"not a PMI key and value: {key[:60]!r} with {len(value)} characters")
    return keys


class PmiSession:
    """One rank's view of the key-value space: lines in, lines out, no I/O but the fence's.

    Attributes:
        aborted: exit code that MPICH sent when it gave up, or None.
    """

    def __init__(self, *, size: int, kvsname: str, process_mapping: str, fence: Fence) -> None:
        self.aborted: int | None = None
        self._size = size
        self._kvsname = kvsname
        self._fence = fence
        self._keys: dict[str, str] = {"PMI_process_mapping": process_mapping}
        self._new: dict[str, str] = {}
        self._round = 0
        self._in_multiline = False

    def answer(self, line: str) -> str | None:
        """Return the answer to one line, without line feed; None where none is due.

        Raises:
            ParseError: not a PMI line.
            FabricError: the fence failed.
        """
        if self._in_multiline:  # a spawn request: "mcmd=spawn", its pairs one a line, "endcmd"
            if line != "endcmd":
                return None
            self._in_multiline = False
            return "cmd=spawn_result rc=-1 msg=not_supported"
        pairs = parse_line(line)
        if "mcmd" in pairs:
            self._in_multiline = True
            return None
        command = pairs.get("cmd", "")
        handler = self._HANDLERS.get(command)
        if handler is None:
            return f"cmd={command or 'unknown'} rc=-1 msg=not_supported"
        return handler(self, pairs)

    def _init(self, pairs: dict[str, str]) -> str:
        if pairs.get("pmi_version", "1") != "1":
            return "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=-1"
        return "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0"

    def _maxes(self, pairs: dict[str, str]) -> str:
        return f"cmd=maxes kvsname_max={KVSNAME_MAX} keylen_max={KEY_MAX} vallen_max={VALUE_MAX} rc=0"

    def _appnum(self, pairs: dict[str, str]) -> str:
        return "cmd=appnum appnum=0 rc=0"

    def _my_kvsname(self, pairs: dict[str, str]) -> str:
        return f"cmd=my_kvsname kvsname={self._kvsname} rc=0"

    def _universe_size(self, pairs: dict[str, str]) -> str:
        return f"cmd=universe_size size={self._size} rc=0"

    def _put(self, pairs: dict[str, str]) -> str:
        key, value = pairs.get("key", ""), pairs.get("value", "")
        check_keys({key: value})
        self._new[key] = value
        return "cmd=put_result rc=0 msg=success"

    def _get(self, pairs: dict[str, str]) -> str:
        value = self._keys.get(pairs.get("key", ""))
        if value is None:
            return "cmd=get_result rc=-1 msg=key_not_found value=unknown"
        return f"cmd=get_result rc=0 msg=success value={value}"

    def _barrier(self, pairs: dict[str, str]) -> str:
        self._keys.update(check_keys(self._fence(self._round, self._new)))
        self._new = {}
        self._round += 1
        return "cmd=barrier_out rc=0"

    def _finalize(self, pairs: dict[str, str]) -> None:
        """Answer nothing: the answer was laid into the socket before, see :meth:`PmiServer.answer_finalize`."""

    def _abort(self, pairs: dict[str, str]) -> None:
        text = pairs.get("exitcode", "1")
        self.aborted = int(text) if re.fullmatch(r"-?[0-9]{1,9}", text) else 1

    _HANDLERS: Mapping[str, Callable[["PmiSession", dict[str, str]], str | None]] = {
        "init": _init,
        "get_maxes": _maxes,
        "get_appnum": _appnum,
        "get_my_kvsname": _my_kvsname,
        "get_universe_size": _universe_size,
        "put": _put,
        "get": _get,
        "barrier_in": _barrier,
        "finalize": _finalize,
        "abort": _abort,
    }


class PmiServer:
    """A thread that answers one MPICH on a socketpair.

    Args:
        session: what to answer.
        on_abort: called with the exit code when MPICH is about to end the process.

    Attributes:
        fd: MPICH's end of the socketpair.
        failure: why the thread stopped answering; MPICH then waits for ever, in a thread of its own.
    """

    def __init__(self, session: PmiSession, *, on_abort: Callable[[int], None]) -> None:
        self.failure: FabricError | None = None
        self._session = session
        self._on_abort = on_abort
        self._ours, theirs = socket.socketpair()
        # A bare descriptor, which the interpreter's end does not close: MPICH may still wait for an answer then, in a
        # thread of its own, and an end of file would wake it up in a process that is being taken apart.
        self._held_open = os.dup(self._ours.fileno())
        # MPICH owns this end from now on; it closes it, or the process's end does.
        self.fd = theirs.detach()
        self._thread = threading.Thread(target=self._serve, name="fabricd-pmi", daemon=True)

    def start(self) -> None:
        """Begin to answer."""
        self._thread.start()

    def answer_finalize(self) -> None:
        """Lay the answer to ``finalize`` into the socket: MPICH asks from a C exit handler, when no thread runs."""
        with suppress(OSError):  # MPICH closed its end: it asks nothing any more
            self._ours.send(_FINALIZE_ACK, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)

    def replace_after_fork(self) -> None:
        """In a forked child: give its copy of MPICH a socket of its own, with that answer already in it.

        The child's exit handler would talk on the parent's socket otherwise, and wait for ever.
        """
        ours, theirs = socket.socketpair()
        os.dup2(theirs.fileno(), self.fd, inheritable=False)
        theirs.close()
        os.close(self._held_open)
        self._ours, self._held_open = ours, os.dup(ours.fileno())
        self.answer_finalize()

    def _serve(self) -> None:
        try:
            with self._ours.makefile("r", encoding="latin-1", newline="\n") as lines:
                while line := lines.readline(_LINE_MAX + 2):
                    answer = self._session.answer(line.rstrip("\n"))
                    if self._session.aborted is not None:
                        self._on_abort(self._session.aborted)
                    if answer is not None:
                        self._ours.sendall(answer.encode("latin-1") + b"\n")
            self._ours.close()  # MPICH closed its end
            os.close(self._held_open)
        except FabricError as error:
            self.failure = error
        except OSError:
            return  # the process ends
