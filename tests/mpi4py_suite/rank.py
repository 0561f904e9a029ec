"""One rank of mpi4py's own tests; notes what becomes of each in FOLDER/RANK.txt, as it comes.

    python -m tests.mpi4py_suite.rank client|mpi4py SOURCE FOLDER [more of its arguments]

``client`` has MPI started by :func:`fabric_client.create_communicator`, ``mpi4py`` by the import of ``mpi4py.MPI``, as
under mpiexec. Either way the tests then use ``MPI.COMM_WORLD`` as ever.
"""

import contextlib
import os
import runpy
import sys
import time
import unittest
from pathlib import Path
from typing import Any

#: They start further processes, or join others by a port: this client's process manager refuses both.
DYNAMIC = ("test_spawn", "test_dynproc")


class Notes(unittest.TestResult):
    """Writes a line for each test: what became of it, its name, its seconds, and the last line of what went wrong."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._file = path.open("w", buffering=1)
        self._begun = time.monotonic()

    def startTest(self, test: Any) -> None:  # noqa: N802 - as unittest names it
        super().startTest(test)
        self._begun = time.monotonic()

    def note(self, outcome: str, test: Any, why: str = "") -> None:
        """Write one. A test's name is its own; that of a class that could not be set up reads "setUpClass (...)"."""
        last = why.strip().rpartition("\n")[2][:200]
        took = time.monotonic() - self._begun
        self._file.write(f"{outcome}\t{test.id()}\t{took:.3f}\t{last}\n")

    def addSuccess(self, test: Any) -> None:  # noqa: N802 - as unittest names it
        super().addSuccess(test)
        self.note("passed", test)

    def addFailure(self, test: Any, err: Any) -> None:  # noqa: N802 - as unittest names it
        super().addFailure(test, err)
        self.note("failed", test, self.failures[-1][1])

    def addError(self, test: Any, err: Any) -> None:  # noqa: N802 - as unittest names it
        super().addError(test, err)
        self.note("failed", test, self.errors[-1][1])

    def addSkip(self, test: Any, reason: str) -> None:  # noqa: N802 - as unittest names it
        super().addSkip(test, reason)
        self.note("skipped", test, reason)

    def addExpectedFailure(self, test: Any, err: Any) -> None:  # noqa: N802 - as unittest names it
        super().addExpectedFailure(test, err)
        self.note("passed", test, "as little as expected")

    def addUnexpectedSuccess(self, test: Any) -> None:  # noqa: N802 - as unittest names it
        super().addUnexpectedSuccess(test)
        self.note("failed", test, "unexpected success")

    def end(self) -> None:
        """Say that all tests were run."""
        self._file.write("end\t\t\t\n")


def run_suite(source: Path, notes: Notes, arguments: list[str]) -> None:
    """Run the tests below ``source`` on the MPI that runs, or starts with mpi4py's import."""
    program = runpy.run_path(str(source / "test" / "main.py"), run_name="mpi4py_tests")["TestProgram"]

    class Runner:
        def __init__(self, **options: Any) -> None:
            pass

        def run(self, test: Any) -> Notes:
            test(notes)
            return notes

    excluded = [word for module in DYNAMIC for word in ("-e", module)]
    with contextlib.suppress(SystemExit):  # with the status of the tests
        program(module=None, argv=["main.py", "--no-builddir", *excluded, *arguments], testRunner=Runner)
    notes.end()


def main() -> None:
    """Run as a rank."""
    how, source, folder, *arguments = sys.argv[1:]
    notes = Notes(Path(folder) / f"{os.environ['RANK' if how == 'client' else 'PMI_RANK']}.txt")
    if how == "mpi4py":
        run_suite(Path(source), notes, arguments)
        return
    from fabric_client import create_communicator

    with create_communicator(operation_timeout=None):
        run_suite(Path(source), notes, arguments)


if __name__ == "__main__":
    sys.dont_write_bytecode = True
    main()
