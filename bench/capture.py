"""What a capture costs, for every machine of the suite: size, and time beside that of the probes alone.

Each replay is compared with the machine that it was recorded from: a difference ends the sweep with status 1.

    python bench/capture.py [MACHINE ...]
"""

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

sys.path.insert(0, str(Path(__file__).parents[1]))

from fabricd.capture import finished, from_text, record, redacted, to_text
from fabricd.probe.runner import take_snapshot
from tests.support import machine
from tests.support.golden import without_place
from tests.support.machine_run import FAST, context_of

T = TypeVar("T")
COLUMNS = "{:24} {:>6} {:>8} {:>6} {:>8} {:>8} {:>8} {:>8} {:>8}"


def main(names: list[str]) -> int:
    print(COLUMNS.format("machine", "files", "KB", "lines", "probes", "+record", "replay", "redact", "read"))
    different = [name for name in names if not swept(name)]
    print(f"{len(names) - len(different)} of {len(names)} replays are the machine {' '.join(different)}")
    return bool(different)


def swept(name: str) -> bool:
    with tempfile.TemporaryDirectory(prefix="fabricd-bench-", dir=FAST) as folder:
        context, probes, root = context_of(machine.load(name), Path(folder))
        probing, _ = timed(lambda: take_snapshot(context, probes=probes))
        recording, (kept, live) = timed(lambda: record(context, probes=probes))
        replaying, capture = timed(lambda: finished(kept, live))
    redacting, told = timed(lambda: redacted(capture))
    text = to_text(told)
    reading, _ = timed(lambda: from_text(text.encode(), what=name))
    times = [f"{seconds * 1000:.0f} ms" for seconds in (probing, recording - probing, replaying, redacting, reading)]
    print(COLUMNS.format(name, len(kept.entries), len(text) // 1000, text.count("\n"), *times), flush=True)
    return without_place(live, str(root)) == without_place(capture.snapshot)


def timed(work: Callable[[], T]) -> tuple[float, T]:
    begun = time.perf_counter()
    done = work()
    return time.perf_counter() - begun, done


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or machine.names()))
