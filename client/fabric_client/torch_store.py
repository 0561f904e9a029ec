"""The store by which PyTorch's backends connect, at rank 0's address of the planned network and on no other."""

import socket
from collections.abc import Callable
from datetime import timedelta

from torch.distributed import TCPStore

from fabric_client.endpoints import checked_endpoint

_BACKLOG = 4096  # every rank connects at once; the kernel's own limit counts, too


def connect_store(
    address: str, rank: int, size: int, meet: Callable[[str | None], str], *, timeout: float
) -> tuple[TCPStore, str, int]:
    """Return this rank's connection to the store, and the server's address and port.

    Args:
        address: of this rank, on the planned network.
        rank: 0 has the server.
        size: number of ranks.
        meet: gives rank 0's word to all ranks; called with None by the others.
        timeout: seconds for what the store is asked.

    Raises:
        EngineError: rank 0 told no address.
        RuntimeError: PyTorch could not connect.
        FabricError: what ``meet`` raised.
    """
    listener = None
    if rank == 0:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        listener = socket.create_server((address, 0), family=family, backlog=_BACKLOG)
    try:
        told = None if listener is None else f"{listener.getsockname()[0]} {listener.getsockname()[1]}"
        host, port = checked_endpoint(meet(told), what="the store")
        # It takes the descriptor over, whatever comes of it.
        descriptor = None if listener is None else listener.detach()
    finally:
        if listener is not None:
            listener.close()
    store = TCPStore(
        host,
        port,
        size,
        descriptor is not None,
        timeout=timedelta(seconds=timeout),
        wait_for_workers=False,  # all have met at the daemon
        master_listen_fd=descriptor,
    )
    return store, host, port
