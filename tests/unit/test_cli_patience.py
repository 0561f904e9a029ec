"""A command that lasts says so on a terminal, once, and nowhere else."""

import io
import threading
from types import SimpleNamespace

import pytest

from fabric_client.cli import patience


class Terminal(io.StringIO):
    def __init__(self, *, is_one: bool) -> None:
        super().__init__()
        self.is_one = is_one
        self.written = threading.Event()

    def isatty(self) -> bool:
        return self.is_one

    def write(self, text: str) -> int:
        self.written.set()
        return super().write(text)


@pytest.mark.parametrize(
    ("command", "is_terminal", "told"),
    [
        ("plan", True, "fabricctl plan: at work since 0.01 s (Ctrl-C ends it)\n"),
        ("plan", False, ""),
        ("watch", True, ""),
        (None, True, ""),  # it is not known yet whether it is "watch"
    ],
)
def test_it_is_told_on_a_terminal_and_once(monkeypatch, command, is_terminal, told):
    terminal = Terminal(is_one=is_terminal)
    monkeypatch.setattr(patience.sys, "stderr", terminal)
    monkeypatch.setattr(patience, "_SECONDS", 0.01)
    with patience.told_when_long(SimpleNamespace(invoked_subcommand=command)):
        terminal.written.wait(5 if told else 0.1)
    assert terminal.getvalue() == told


def test_a_quick_one_says_nothing(monkeypatch):
    terminal = Terminal(is_one=True)
    monkeypatch.setattr(patience.sys, "stderr", terminal)
    before = threading.active_count()
    with patience.told_when_long(SimpleNamespace(invoked_subcommand="plan")):
        pass
    assert terminal.getvalue() == ""
    for thread in threading.enumerate()[before:]:
        thread.join(5)
