"""Runs a command line within the tests' own process."""

import sys
from collections.abc import Callable

import pytest

Told = tuple[int, str, str]


def told(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, program: Callable[[], int], *words: object
) -> Told:
    """Return exit status, standard output and standard error of a program that reads ``sys.argv``."""
    monkeypatch.setattr(sys, "argv", ["program", *map(str, words)])
    status = program()
    said = capsys.readouterr()
    return status, said.out, said.err
