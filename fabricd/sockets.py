"""Options of TCP sockets between daemons and clients. Standard library only."""

import socket

#: A host that went silent is noticed within 3 + 4 * 1 s; groups rest on this. Keepalive probes only idle connections;
#: TCP_USER_TIMEOUT is for those with data under way, such as heartbeats. Accepted sockets inherit them all (tcp(7)).
KEEPALIVE = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 3),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 4),
    (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 7000),
)
