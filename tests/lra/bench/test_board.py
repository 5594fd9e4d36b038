"""`lra leaderboard`: order, budget, and what is missing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lra.bench import board
from lra.bench.board import Cell, in_order, summary, work_off
from lra.cli import main
from lra.sweeps import sweep
from lra.sweeps.sweep import Outcome

Capture = pytest.CaptureFixture[str]
COSTS = {"text": 8.0, "listops": 1.0, "image": 2.0}


def cells() -> list[Cell]:
    return [
        Cell([], task, method, seed, COSTS[task] * factor)
        for task in COSTS
        for method, factor in (("softmax", 3), ("luna", 1))
        for seed in (1, 2)
    ]


def test_one_seed_of_all_comes_first_and_of_these_text_and_image():
    order = [cell.name for cell in in_order(cells())]
    assert [name.rpartition(" ")[2] for name in order] == ["1"] * 6 + ["2"] * 6
    assert order[:6] == [
        "image luna seed 1",
        "image softmax seed 1",
        "text luna seed 1",
        "text softmax seed 1",
        "listops luna seed 1",
        "listops softmax seed 1",
    ]


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now


def test_what_does_not_fit_is_left_out_and_what_is_cheaper_is_done(monkeypatch: pytest.MonkeyPatch):
    """A run takes twice what was estimated, as the first one shows."""
    clock, limits = Clock(), list[float]()
    monkeypatch.setattr(board, "time", clock)

    def do(cell: Cell, left: float) -> str:
        limits.append(left)
        clock.now += 2 * cell.seconds
        return "done"

    monkeypatch.setattr(board, "_do", do)
    monkeypatch.setattr(board, "_is_finished", lambda cell: cell.name == "text softmax seed 2")
    states = work_off(in_order(cells()), 50.0)
    done = [name for name, state in states.items() if state == "done"]
    # image 4 and 12, text 16 of 34 left, then 48 that do not fit into 18; listops 2 and 6; image 4
    assert done == [
        "image luna seed 1",
        "image softmax seed 1",
        "text luna seed 1",
        "listops luna seed 1",
        "listops softmax seed 1",
        "image luna seed 2",
        "listops luna seed 2",
    ]
    assert clock.now <= 50
    assert limits[0] == 50
    text = summary(in_order(cells()), states)
    assert "board: 7 done, 4 beyond the hours, 1 finished before" in text
    assert "text: 2 of 2 methods, 0 with more than one seed\n" in text
    assert states["text softmax seed 1"] == "beyond the hours"
    assert "listops: 2 of 2 methods, 1 with more than one seed" in text


def test_it_is_the_sweep_and_goes_on(
    overrides: list[str], monkeypatch: pytest.MonkeyPatch, capsys: Capture
):
    """With the words of a sweep, a limit for each run, and what it cannot download left out."""
    seen: list[Any] = []

    def attempt(run: Any, words: list[str], label: str) -> Outcome:
        seen.append((run, words))
        cut = run.attention["name"] == "softmax"
        reason = "interrupted at its limit of 3 minutes; run .." if cut else ""
        return Outcome(words, "failed" if cut else "done", reason)

    monkeypatch.setattr(sweep, "attempt", attempt)
    words = [w for w in overrides if not w.startswith(("attention=", "task"))]
    asked = ["attention=uniform,softmax", "task=listops,text", "task.source=published", "seed=1"]
    asked = [*words, *asked, "shard=1/1"]
    assert main(["leaderboard", "--hours", "0.05", *asked, "task.source=tiny"]) == 0
    out = capsys.readouterr().out
    assert {run.task.name for run, _ in seen} == {"listops", "text"}
    assert all(0 < run.limit_minutes <= 3 for run, _ in seen)
    assert not any(word.startswith("shard") for _, given in seen for word in given)
    assert "2 done, 2 begun" in out
    assert main(["leaderboard", "--hours", "1", *words, "task=text", "attention=uniform"]) == 2
    said = capsys.readouterr()
    assert "left out: text is not prepared" in said.out
    assert "no run of this board can begin" in said.err
    assert main(["leaderboard", "--hours", "0", *asked]) == 2


@pytest.mark.rest
def test_a_board_in_a_minute(overrides: list[str], tmp_path: Path, capsys: Capture):
    """At a thousandth of the steps, twice: the second time all of it has finished before."""
    words = [w for w in overrides if not w.startswith(("attention=", "protocol.recipe.steps"))]
    more = ["task=listops", "attention=uniform,linear", "seed=1,2", "steps_share=0.001"]
    # Of no time at all, it knows what was done.
    for hours, state in (("0.2", "4 done"), ("0.2", "4 finished before"), ("1e-9", "4 finished")):
        assert main(["leaderboard", "--hours", hours, *words, *more]) == 0
        out = capsys.readouterr().out
        assert f"board: {state}" in out
        assert "listops: 2 of 2 methods, 2 with more than one seed" in out
    assert len([*tmp_path.rglob("result.json")]) == 4
