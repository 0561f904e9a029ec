"""A wall clock for one program, which a test sets forth and back; the monotonic clocks go on as they are."""

import struct
from pathlib import Path

from tests.support.c_library import built

_SOURCES = Path(__file__).parent.parent / "clock"
_LIBRARY = "libtestclock.so"


class WallClock:
    """The clock.

    Args:
        file: holds how far it is off; made.

    Attributes:
        environment: of the programs that go by it.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        file.write_bytes(struct.pack("d", 0.0))
        library = built(_SOURCES, _LIBRARY) / _LIBRARY
        self.environment = {"LD_PRELOAD": str(library), "TEST_CLOCK_FILE": str(file)}

    def set(self, seconds: float) -> None:
        """Put it so many seconds ahead of the true time; 0 for right again."""
        with self._file.open("r+b") as file:
            file.write(struct.pack("d", seconds))
