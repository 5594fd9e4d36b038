"""Work spread over processes, and its progress."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

import pytest

from lra.base.errors import UserError
from lra.data import parallel
from lra.data.parallel import ordered_map, track
from tests.lra.conftest import SMALL, command

from . import jobs


@pytest.mark.parametrize("workers", [1, 2])
def test_results_come_in_order_from_endless_work(workers: int) -> None:
    found = list(
        itertools.islice(ordered_map(jobs.slow_for_even, itertools.count(), workers=workers), 20)
    )
    assert [i for i, _ in found] == list(range(20))
    processes = {pid for _, pid in found}
    assert (os.getpid() in processes) == (workers == 1)
    assert len(processes) <= workers


def test_a_dead_worker_is_reported() -> None:
    with pytest.raises(UserError, match="a worker process died"):
        list(ordered_map(jobs.dies_at_three, range(9), workers=2))


def test_a_worker_that_nobody_stops_ends_with_the_others() -> None:
    """The executor does not stop a worker that it started while another was dying."""
    code = f"""
from multiprocessing.process import BaseProcess
from {jobs.__name__} import dies_at_once_or_talks
from lra.data.parallel import ordered_map
BaseProcess.terminate = lambda self: None
list(ordered_map(dies_at_once_or_talks, range(9), workers=2))
"""
    done = command("-c", code, timeout=60)
    assert done.returncode == 1
    assert "UserError: a worker process died" in done.stderr


def test_work_that_nobody_needs_holds_nobody_up() -> None:
    """A worker that is stopped while it writes its result leaves half of it in the pipe."""
    code = f"""
import itertools
from {jobs.__name__} import large
from lra.data.parallel import ordered_map
for _ in range(4):
    results = ordered_map(large, itertools.count(), workers=2)
    next(results)
    results.close()
"""
    assert command("-c", code, timeout=60).returncode == 0


def test_a_script_without_a_main_guard_trains(tmp_path: Path) -> None:
    """Workers do not run it again."""
    words = [word for word in SMALL if not word.startswith("task")]
    words += [
        "task=listops",
        "task.n_train=100",
        "task.n_val=20",
        "task.n_test=20",
        "task.min_length=5",
        "task.max_length=60",
        "protocol.recipe.steps=1",
        f"data_dir={tmp_path / 'data'}",
        f"runs_dir={tmp_path / 'runs'}",
    ]
    script = tmp_path / "script.py"
    script.write_text(
        "import lra, lra.data.listops.task, lra.data.prepare\n"
        "print('once')\n"
        "lra.data.listops.task.FEW, lra.data.prepare.cores = 10, lambda: 2\n"
        f"print(lra.train(lra.compose({words})).score)\n",
        encoding="utf-8",
    )
    done = command(str(script), timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("once") == 1


def test_progress_is_a_line_now_and_then(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert list(track("abc", "counting", 3)) == ["a", "b", "c"]
    assert capsys.readouterr().err == ""  # done before the first line was due
    monkeypatch.setattr(parallel, "EVERY", 0)
    list(track("ab", "counting", 2000))
    list(track("a", "reading"))
    assert capsys.readouterr().err.splitlines() == [
        "  counting: 1 of 2,000",
        "  counting: 2 of 2,000",
        "  reading: 1",
    ]
