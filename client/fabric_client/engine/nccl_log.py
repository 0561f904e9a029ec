"""What NCCL says of its connections. It has no function for that: its log is where it says so.

A line for each connection that goes by a network, written when it is made, which may be long after the start::

    host:4711:4730 [0] NCCL INFO Channel 00/0 : 0[0] -> 8[0] [send] via NET/IB/0/GDRDMA

``/GDRDMA`` stands there when the card reads and writes the GPU's memory, and not when data are copied through the
host's. Source: NCCL 2.30, transport/net.cc, sendSetup and recvSetup; debug.cc for the variables.
"""

import os
import re
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from fabric_client.engine.settings import variables_set

_CONNECTION = re.compile(rb"\[(?:send|receive)\] via NET/(\S+)")
_DIRECT = b"/GDRDMA"
_MAX_BYTES = 8 << 20  #: that are read of it

_of_process: "NcclLog | None" = None  #: that of the first start: NCCL has one for all communicators


class NcclLog:
    """NCCL's log of this process, as far as it tells of networks.

    Attributes:
        file: open for reading; None where the user has asked NCCL for a log, or NCCL ran before.
    """

    def __init__(self) -> None:
        self.file: BinaryIO | None = None

    def direct_memory(self) -> bool | None:
        """Tell whether all connections by network so far go to GPUs' memory directly; None: there are none, or no log.

        The first time that NCCL needs a connection is when it makes it, so this may change with the first operations.
        """
        if self.file is None:
            return None
        self.file.seek(0)
        connections = _CONNECTION.findall(self.file.read(_MAX_BYTES))
        return all(_DIRECT in connection for connection in connections) if connections else None


@contextmanager
def logging_networks(environ: Mapping[str, str]) -> Iterator[NcclLog]:
    """Have NCCL, which starts in this block, write a log that only this process has; its variables end with the block.

    NCCL reads them once in a process: if it runs already there is no log. The file has no name afterwards.

    Args:
        environ: of the user, whose own ``NCCL_DEBUG`` stands.

    Yields:
        The log, which can be read when the block has ended.
    """
    global _of_process
    log = _of_process = _of_process or NcclLog()
    if log.file is not None or any(name.startswith("NCCL_DEBUG") for name in environ):
        yield log
        return
    with tempfile.TemporaryDirectory(prefix="fabric-nccl-") as folder:
        path = Path(folder) / "log"
        variables = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "NET", "NCCL_DEBUG_FILE": os.fspath(path)}
        with variables_set(variables):
            yield log
        if path.exists():
            log.file = path.open("rb")
