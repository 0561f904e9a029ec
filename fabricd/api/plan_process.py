"""Plans in processes of their own, bounded in number, time and size: the event loop only waits."""

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Mapping

from fabricd.background import in_thread
from fabricd.errors import BusyError, FabricError, InputError
from fabricd.model.codec import from_json, to_json
from fabricd.model.collective import CollectivePlan
from fabricd.model.plan_request import PlanRequest
from fabricd.model.snapshot import Snapshot
from fabricd.plan.worker import Answer, Question, Refusal
from fabricd.shortage import Resource, ShortageError

_log = logging.getLogger("fabricd.plan")

#: A plan of 1,024 ranks takes some seconds, one of 16,384 half a minute.
SECONDS = 60.0
_AT_ONCE, _WAITING = 1, 8
#: -P: nothing is imported from wherever the daemon happens to run.
_COMMAND = (sys.executable, "-P", "-m", "fabricd.plan.worker")


class Plans:
    """Makes plans, one after another.

    Args:
        seconds: how long one may take.
    """

    def __init__(self, seconds: float = SECONDS) -> None:
        self._seconds = seconds
        self._turn = asyncio.Semaphore(_AT_ONCE)
        self._asked = 0

    async def make(self, request: PlanRequest, nodes: Mapping[str, Snapshot]) -> CollectivePlan:
        """Return the plan; a caller that is cancelled ends the process.

        Raises:
            BusyError: too many are waiting.
            InputError: it takes too long.
            ShortageError: the planner gets too little memory.
            FabricError: what the planner refused.
        """
        if self._asked >= _AT_ONCE + _WAITING:
            raise BusyError(f"{self._asked} plans are asked for already", hint="ask again later", retry_after_seconds=5)
        self._asked += 1
        try:
            async with self._turn:
                data = await in_thread(
                    lambda: to_json(Question(request=request, nodes=tuple(nodes.items()))), name="plan"
                )
                found = await self._ask(data)
        finally:
            self._asked -= 1
        if found.refusal is not None:
            raise _as_error(found.refusal)
        if found.plan is None:
            raise FabricError("the planner gave no answer", hint="the daemon's log tells more")
        return found.plan

    async def _ask(self, question: bytes) -> Answer:
        # More threads would take the processors of the ranks that this daemon stands beside.
        environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
        process = await asyncio.create_subprocess_exec(
            *_COMMAND,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=environment,
        )
        try:
            async with asyncio.timeout(self._seconds):
                answer, said = await process.communicate(question)
        except TimeoutError as error:
            hint = "ask for fewer ranks, or plan offline: fabricctl plan --from FILE"
            raise InputError(f"the plan took more than {self._seconds:g} s", hint=hint) from error
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        if process.returncode and _lacked_memory(process.returncode, said):
            raise ShortageError(Resource.MEMORY, "there was too little memory for the planner")
        if process.returncode:
            _log.error(
                "a planner ended",
                extra={"facts": {"status": process.returncode, "said": said[-2000:].decode("utf-8", "replace")}},
            )
            raise FabricError(f"the planner ended with status {process.returncode}", hint="the daemon's log tells more")
        return await in_thread(lambda: from_json(answer, Answer, what="the planner's answer"), name="plan")


def _lacked_memory(status: int, said: bytes) -> bool:
    """Whether the kernel ended a planner, as it does when memory is short, or it got too little to begin with."""
    words = (b"MemoryError", b"annot allocate memory", b"failed to map segment")
    return status == -signal.SIGKILL or any(word in said for word in words)


def _as_error(refusal: Refusal) -> FabricError:
    """Return the planner's refusal as an error with its code and status."""
    error = FabricError(refusal.message, hint=refusal.hint)
    error.code, error.http_status = refusal.code, refusal.status
    return error
