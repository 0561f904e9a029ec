"""``python -m tests.contract.long_programs``: random programs for as long as asked, over one engine.

    python -m tests.contract.long_programs --engine gloo --size 4 --seconds 600

Ranks meet through a daemon of this program's. Prints the seed, and what each rank tells at its end: wrong results, how
many were checked, and descriptors, threads, memory (resident, and in use) and shared memory after the first programs
and after the last.
"""

import argparse
import secrets
import sys
import tempfile
from pathlib import Path

from tests.contract.subject import SUBJECTS
from tests.support.daemon import daemon
from tests.support.ranks import new_group, ranks

#: For the start, the last program and the end.
_MORE_SECONDS = 120.0


def main() -> int:
    """Return 0 when all was well, and 1 when not."""
    parser = argparse.ArgumentParser(prog="python -m tests.contract.long_programs", description="Random programs.")
    parser.add_argument("--engine", choices=sorted(SUBJECTS), default="mpi")
    parser.add_argument("--size", type=int, default=3, help="ranks (default 3)")
    parser.add_argument("--seed", type=int, default=None, help="what happens; drawn and printed by default")
    parser.add_argument("--programs", type=int, default=100_000, help="how many at most")
    parser.add_argument("--first", type=int, default=0, help="begin with this one of the seed's")
    parser.add_argument("--seconds", type=float, default=60.0, help="begin no new one after so long (default 60)")
    options = parser.parse_args()
    seed = secrets.randbits(32) if options.seed is None else options.seed
    print(f"# seed {seed}", flush=True)
    words = ["-m", "tests.contract.rank_programs", options.engine]
    words += [str(word) for word in (seed, options.programs, options.seconds, options.first)]
    with (
        tempfile.TemporaryDirectory(prefix="fabricd-programs-") as folder,
        daemon(Path(folder)) as running,
        ranks(Path(folder), options.size, words, new_group(running.url)) as job,
    ):
        ended = job.wait(options.seconds + _MORE_SECONDS)
    well = True
    for rank in ended:
        print(f"rank {rank.rank}: status {rank.status} {rank.out}\n{rank.err}", flush=True)
        well = well and rank.status == 0 and rank.json()["wrong"] == []
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main())
