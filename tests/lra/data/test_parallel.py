"""Work in processes, and what is seen of it."""

from __future__ import annotations

import io
import itertools
import os
import sys
import time

import pytest

from lra.config import UserError
from lra.data import progress
from lra.data.parallel import cores, ordered_map
from lra.data.progress import Progress


def slow_for_even(i: int) -> tuple[int, int]:
    time.sleep(0.02 * (i % 2 == 0))
    return i, os.getpid()


def fails_at_three(i: int) -> int:
    if i == 3:
        raise ValueError("three")
    return i


def dies_at_three(i: int) -> int:
    if i == 3:
        os._exit(9)
    return i


@pytest.mark.parametrize("workers", [1, 2])
def test_results_come_in_order_from_endless_work(workers: int) -> None:
    found = list(
        itertools.islice(ordered_map(slow_for_even, itertools.count(), workers=workers), 20)
    )
    assert [i for i, _ in found] == list(range(20))
    processes = {pid for _, pid in found}
    assert (os.getpid() in processes) == (workers == 1)
    assert len(processes) <= workers


@pytest.mark.parametrize("workers", [1, 2])
def test_an_error_arrives_in_its_place(workers: int) -> None:
    found = ordered_map(fails_at_three, range(9), workers=workers)
    assert list(itertools.islice(found, 3)) == [0, 1, 2]
    with pytest.raises(ValueError, match="three"):
        next(found)


def test_a_dead_worker_is_reported() -> None:
    with pytest.raises(UserError, match="a worker process died"):
        list(ordered_map(dies_at_three, range(9), workers=2))


def test_no_workers_at_all() -> None:
    with pytest.raises(UserError, match="workers=0 is out of range"):
        next(ordered_map(slow_for_even, range(3), workers=0))
    assert 1 <= cores() <= (os.cpu_count() or 1)


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
