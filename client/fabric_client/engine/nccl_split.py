"""Engines of some of the ranks, made of an NCCL engine."""

import time
from collections.abc import Callable
from typing import Any

from fabric_client.blocking import BlockingCall
from fabric_client.engine.base import Engine
from fabric_client.engine.nccl_comm import NcclComm

_NO_COLOR = -1  #: NCCL_SPLIT_NOCOLOR; source: nccl.h
_NAP_SECONDS = 0.001


class Split:
    """``ncclCommSplit``, which waits for all ranks; see :class:`fabric_client.engine.base.PendingEngine`.

    Args:
        comm: of all ranks.
        color: from 0; None is in none.
        key: orders the ranks of one color.
        adopt: makes an engine of the new communicator, given this rank's place in it and its size.
    """

    def __init__(self, comm: NcclComm, color: int | None, key: int, adopt: Callable[[Any, int, int], Engine]) -> None:
        self._comm = comm
        self._color = _NO_COLOR if color is None else color
        self._key = key
        self._adopt = adopt
        self._call: BlockingCall[Any] = BlockingCall(self._split, "ncclCommSplit")

    def test(self) -> bool:
        """See the protocol."""
        if self._call.ended():
            self._call.result()
            return True
        self._comm.check("split")
        return False

    def _split(self) -> Any:
        comm = self._comm
        while not comm.settled():  # NCCL's manual: what is under way on the communicator might cause a deadlock
            comm.check("split")
            time.sleep(_NAP_SECONDS)
        return comm.call("split", lambda raw: raw.commSplit(self._color, self._key))

    def engine(self) -> Engine | None:
        """See the protocol."""
        raw = self._call.result()
        return None if raw is None else self._adopt(raw, int(raw.rank_id()), int(raw.size()))
