"""What is closed when a command has ended. A process runs one command."""

from contextlib import ExitStack

at_end = ExitStack()
