"""The process in which a daemon's plan is made: one question on standard input, one answer on standard output, the end.

Planning takes a processor for seconds and loads numpy and scipy; here it can be ended at any time, and what it took
is given back.
"""

import os
import resource
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from fabricd.errors import FabricError, InputError
from fabricd.model.codec import from_json, to_json
from fabricd.model.collective import CollectivePlan
from fabricd.model.plan_request import PlanRequest
from fabricd.model.snapshot import Snapshot

_MEMORY_BYTES = 4 << 30
_NICENESS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What the process reads."""

    request: PlanRequest
    nodes: tuple[tuple[str, Snapshot], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """An error of ours, to be raised by who asked."""

    code: str
    status: int
    message: str
    hint: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What the process writes: one of the two."""

    plan: CollectivePlan | None = None
    refusal: Refusal | None = None


def answer(question: bytes) -> bytes:
    """Return the answer to one question."""
    from fabricd.plan.job_plan import plan_job

    asked = from_json(question, Question)
    try:
        found = Answer(plan=plan_job(asked.request, dict(asked.nodes)))
    except FabricError as error:
        refusal = Refusal(code=error.code, status=error.http_status, message=error.message, hint=error.hint)
        found = Answer(refusal=refusal)
    except MemoryError:
        hint = "ask for fewer ranks, or plan offline: fabricctl plan --from FILE"
        told = f"the plan needs more than {_MEMORY_BYTES >> 30} GiB of memory"
        found = Answer(refusal=Refusal(code=InputError.code, status=InputError.http_status, message=told, hint=hint))
    return to_json(found)


def main() -> None:
    """Answer, and end."""
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    os.nice(_NICENESS)
    with suppress(OSError):  # where memory is short, a plan is asked for again, and the daemon is not
        Path("/proc/self/oom_score_adj").write_text("500")
    sys.stdout.buffer.write(answer(sys.stdin.buffer.read()))


if __name__ == "__main__":
    main()
