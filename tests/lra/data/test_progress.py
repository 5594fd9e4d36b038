"""Progress: lines off a terminal, a bar on it."""

from __future__ import annotations

import io
import sys

import pytest

from lra.data import progress
from lra.data.progress import Progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_off_a_terminal_is_lines(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with Progress("counting", 3) as quiet:
        assert list(quiet.track("abc")) == ["a", "b", "c"]
    assert capsys.readouterr().err == ""  # done before the first line was due
    monkeypatch.setattr(progress, "EVERY", 0)
    with Progress("counting", 3) as lines:
        list(lines.track("ab"))
        list(lines.track("c"))
    with Progress("reading", None) as open_ended:
        list(open_ended.track("ab"))
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
    monkeypatch.setattr(progress, "REFRESH", 0)
    with Progress("counting", 2) as bar:
        list(bar.track("ab"))
    assert "counting" in terminal.getvalue()
    assert "2/2" in terminal.getvalue()
