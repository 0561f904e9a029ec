"""Ends of MPI's connections by TCP, held back from it: the group's daemon says who is lost.

When a process ends, the kernel tells its peers at once, and UCX takes the connection for failed. MPICH 5.0.2 crashes
when it starts a message to such a peer: the send gives no request, and what has called it writes into one (seen in
MPI_Test of a collective, by a core file). So segments that end a connection are dropped before UCX sees them, by a
filter that any process may put on its own sockets. The connection is silent then, and the operation waits, until a
moment later the watch names the lost rank.

Sources: socket(7), SO_ATTACH_FILTER; Linux, Documentation/networking/filter.rst; UCX 1.20, UCX_TCP_KEEPIDLE.
"""

import contextlib
import ctypes
import fcntl
import socket
import struct
import termios
from collections.abc import Iterator, Mapping

from fabric_client.engine.settings import may_use_tcp
from fabric_client.sever import own_sockets, tcp_sockets

# asm-generic/socket.h; Python has no names for them.
_SO_ATTACH_FILTER, _SO_DETACH_FILTER = 26, 27
#: UCX tells the kernel for its connections after what silence it is to ask whether the peer is alive. That would end
#: them as well, so it is the kernel's own two hours, and a few seconds by which they are known among all others.
KEEPALIVE, _MARK_SECONDS = "UCX_TCP_KEEPIDLE", 7207
_ANY_ADDRESS = frozenset({"0.0.0.0", "::"})  # noqa: S104 - compared, not bound to
#: The 14th byte of a TCP header holds its flags; FIN and RST are these. Source: RFC 9293, section 3.1.
_FLAGS_AT, _FIN_OR_RST = 13, 0x05
#: Classic BPF, as (code, jump if true, jump if false, operand): what it returns is how much of a segment is kept.
_PROGRAM = b"".join(
    struct.pack("HBBI", *instruction)
    for instruction in (
        (0x30, 0, 0, _FLAGS_AT),  # load a byte
        (0x45, 0, 1, _FIN_OR_RST),  # jump by whether any of these bits is set
        (0x06, 0, 0, 0),  # return
        (0x06, 0, 0, 0xFFFFFFFF),
    )
)
_LENGTH = len(_PROGRAM) // struct.calcsize("HBBI")
_MEMORY = ctypes.create_string_buffer(_PROGRAM)  # the kernel copies it out of here
_FILTER = struct.pack("HL", _LENGTH, ctypes.addressof(_MEMORY))


class HeldEnds:
    """Those of one MPI. To be made before it starts.

    Args:
        environ: MPI's. Where the user has set UCX's keepalive, or UCX is not to use TCP, nothing is held back.

    Attributes:
        variables: to be set while MPI starts.
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        # Half a second more, for UCX cuts off what is less than a second, also what is missing for want of precision.
        wanted = KEEPALIVE not in environ and may_use_tcp(environ)  # UCX warns of what it has no use for
        self.variables = {KEEPALIVE: f"{_MARK_SECONDS}500ms"} if wanted else {}
        self._before = own_sockets()
        self._ports: set[int] = set()  #: on which UCX listens

    def hold(self) -> int:
        """Hold back the ends of the connections that MPI has by now; return how many.

        Those that others make to it later are among them, for they take the filter over from the listening socket. To
        be called once, when MPI has connected all ranks: while it does, UCX ends those of which it has two, which has
        to be heard. And before this process listens on anything else that is new.
        """
        if not self.variables:
            return 0
        for name, one in tcp_sockets():
            if name not in self._before and _is_listener_of_ucx(one):
                self._ports.add(one.getsockname()[1])
        return self._set(_SO_ATTACH_FILTER, _FILTER)

    def release(self) -> None:
        """Let MPI see the ends of its connections, before it ends itself: the kernel repeats what was dropped."""
        self._set(_SO_DETACH_FILTER, bytes(4))

    def undelivered(self) -> int:
        """Return how many bytes of what MPI has sent have not come to the peers' kernels. Source: tcp(7), SIOCOUTQ.

        The last segment of a process that ends tells of its end as well, and is dropped with what it carries.
        """
        found = 0
        for one in self._sockets():
            with contextlib.suppress(OSError):  # it listens
                found += struct.unpack("i", fcntl.ioctl(one, termios.TIOCOUTQ, bytes(4)))[0]
        return found

    def _set(self, option: int, value: bytes) -> int:
        found = 0
        for one in self._sockets():
            with contextlib.suppress(OSError):  # this kernel has no filters, or the socket had none
                one.setsockopt(socket.SOL_SOCKET, option, value)
                found += 1
        return found

    def _sockets(self) -> Iterator[socket.socket]:
        """Yield what UCX listens on, what came there, and what bears the mark; not its connections to itself."""
        here = {one.getsockname() for _, one in tcp_sockets()}
        for name, one in tcp_sockets():
            marked = one.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == _MARK_SECONDS
            of_ucx = name not in self._before and (marked or one.getsockname()[1] in self._ports)
            if of_ucx and _peer(one) not in here:
                yield one


def _peer(one: socket.socket) -> object:
    try:
        return one.getpeername()
    except OSError:
        return None  # it listens


def _is_listener_of_ucx(one: socket.socket) -> bool:
    """Tell what UCX listens on from what others do: it is on its device's address, and servers reuse addresses."""
    listens, reuses = (one.getsockopt(socket.SOL_SOCKET, name) for name in (socket.SO_ACCEPTCONN, socket.SO_REUSEADDR))
    return bool(listens) and not reuses and one.getsockname()[0] not in _ANY_ADDRESS
