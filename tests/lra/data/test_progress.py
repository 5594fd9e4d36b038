"""Progress: lines off a terminal, a bar on it."""

from __future__ import annotations

import io
import sys

import pytest

from lra.data import progress
from lra.data.progress import track


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_off_a_terminal_is_lines(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert list(track("abc", "counting", 3)) == ["a", "b", "c"]
    assert capsys.readouterr().err == ""  # done before the first line was due
    monkeypatch.setattr(progress, "EVERY", 0)
    list(track("abc", "counting", 3))
    list(track("ab", "reading"))
    first, second, third, fourth, fifth = capsys.readouterr().err.splitlines()
    assert first.startswith("  counting: 1/3  ")
    assert second.startswith("  counting: 2/3  ")
    assert third.startswith("  counting: 3/3  ")
    assert third.endswith("/s  0 s left")
    assert fourth.startswith("  reading: 1  ")
    assert fifth.startswith("  reading: 2  ")


def test_progress_on_a_terminal_is_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    assert list(track("ab", "counting", 2)) == ["a", "b"]
    assert "counting" in terminal.getvalue()
    assert "2/2" in terminal.getvalue()
