"""One rank of the benchmark: ``python -m fabric_client.cli.bench_worker '{"collective": "all_reduce"}'``.

Runs wherever ``create_communicator()`` finds its rank in the environment; needs no command line's extras.
"""

import sys

from fabric_client.cli.bench_measure import Row, measure
from fabric_client.cli.bench_options import BenchOptions
from fabric_client.cli.bench_table import HEADER, report, row_text, summary, title, wrong_elements
from fabric_client.create import create_communicator
from fabricd.errors import FabricError
from fabricd.model.codec import from_json, to_json
from fabricd.units import format_size


def run_rank(options: BenchOptions) -> int:
    """Measure as one rank; rank 0 prints. Return the exit status: 1 when a result was wrong."""
    rows: list[Row] = []
    with create_communicator(engine=options.engine) as comm:
        options.check(comm.size)
        prints = comm.rank == 0
        if prints and not options.json:
            _write(title(comm, options), HEADER)
        for row in measure(comm, options, _progress if prints and sys.stderr.isatty() else _no_progress):
            rows.append(row)
            if prints and not options.json:
                _write(row_text(row))
        if prints:
            _write(to_json(report(comm, options, rows)).decode() if options.json else summary(rows))
    return 1 if wrong_elements(rows) else 0


def _write(*texts: str) -> None:
    if sys.stderr.isatty():
        sys.stderr.write("\r\033[K")  # the line of progress
        sys.stderr.flush()
    sys.stdout.write("".join(text + "\n" for text in texts))
    sys.stdout.flush()


def _progress(number: int, total: int, size: int) -> None:
    sys.stderr.write(f"\r\033[K{number + 1} of {total}: {format_size(size)}")
    sys.stderr.flush()


def _no_progress(number: int, total: int, size: int) -> None:
    """Say nothing: nobody watches."""


def main() -> int:
    """Run with the options of the first argument, JSON."""
    try:
        options = from_json(sys.argv[1] if len(sys.argv) > 1 else "{}", BenchOptions, what="argument")
        return run_rank(options)
    except FabricError as error:
        sys.stderr.write(f"fabricctl bench: {error}\n")
        return error.exit_status
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
