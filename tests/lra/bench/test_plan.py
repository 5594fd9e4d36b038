"""`lra plan`: which runs cost the same, and what they will cost."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from omegaconf import OmegaConf

from lra.bench import plan
from lra.bench.plan import RunGroup, cost_key, jobs_at_once, totals
from lra.cli import main
from lra.settings.compose import Run
from lra.training.run import train

COSTS = {
    "start": 10.0,
    "step": 2.0,
    "evaluation": 0.5,
    "share": 0.5,
    "val": 30,
    "test": 9,
    "peak": 100.0,
    "room": 1000.0,
}


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "in_new_process", lambda function, *arguments: function(*arguments))


def group(run: Run, left: int = 1, **more: float) -> RunGroup:
    return RunGroup([], run, left, costs=COSTS | more)


@pytest.mark.parametrize(
    ("word", "same"),
    [
        ("seed=2", True),
        ("protocol.recipe.lr=0.1", True),
        ("protocol.recipe.steps=90", False),
        ("attention.dwc=conv1d", False),
        ("trainer.threads=2", False),
        ("protocol.recipe.batch=4", False),
    ],
)
def test_which_runs_cost_the_same(small: Callable[..., Run], word: str, same: bool):
    assert (cost_key(small()) == cost_key(small(word))) is same


def test_the_seconds_of_a_run(small: Callable[..., Run]):
    """30 steps; 3 evaluations of 4 batches of 8; 2 batches of the test set for two checkpoints."""
    one = group(small()).seconds
    assert one == 10 + 30 * 2 + (3 * 4 + 2 * 2) * 0.5
    both = group(small("pretrain=masked", "pretrain.recipe.steps=20")).seconds
    assert both - one == 20 * 2
    some = group(small("protocol.evaluation.dev_batches=1"), step=1).seconds
    assert some == 10 + 30 * 1 + (3 * 1 + 2 * 2) * 0.5


def test_runs_side_by_side_share_the_machine(small: Callable[..., Run]):
    run = small()  # 78 s
    assert totals([group(run)], 4, 1).startswith("0:01:18 for 1 runs, 4")
    assert totals([group(run, 4)], 2, 2).startswith("0:02:36 for 4 runs")
    # Four of them, each of which keeps half of the machine busy.
    assert totals([group(run, 4)], 4, 4).startswith("0:02:36 for 4 runs")
    assert "NOT FIT" not in totals([group(run, peak=600.0)], 2, 2)
    memory = totals([group(run, 2, peak=600.0)], 2, 2).splitlines()[1]
    assert memory == "memory at once: up to 1,200 of 1,000 MiB; they DO NOT FIT"


def test_how_many_jobs_a_launcher_does_at_once():
    def ask(target: str, **launcher: object) -> tuple[int, int]:
        return jobs_at_once(OmegaConf.create({"_target_": target, **launcher}), 9)

    assert ask("BasicLauncher") == (1, 1)
    assert ask("LaptopLauncher", n_jobs=4) == (4, 4)
    assert ask("SlurmLauncher", array_parallelism=8) == (8, 1)


def test_a_sweep_is_measured(in_this_process, small, overrides, capsys):
    train(small("attention=linear", "seed=1"))
    words = [*(w for w in overrides if not w.startswith("attention=")), "seed=1,2"]
    assert main(["plan", "-m", *words, "attention=linear,uniform"]) == 0
    out = capsys.readouterr().out
    assert "finished, no cost: 1 of 4 runs" in out
    rows = [line.split() for line in out.splitlines() if "attention=" in line]
    assert [(row[:2], row[-1]) for row in rows] == [
        (["1", "30"], "attention=linear"),
        (["2", "30"], "attention=uniform"),
    ]
    assert "for 3 runs, 1 at once" in out
    assert "made-up" not in out
    assert main(["plan", *words[:-1], "seed=1", "attention=linear"]) == 0
    assert capsys.readouterr().out == "finished, no cost: 1 of 1 runs\n"


def test_unprepared_data_are_replaced_by_made_up_ids(in_this_process, overrides, tmp_path, capsys):
    assert main(["plan", *overrides, f"data_dir={tmp_path / 'none'}"]) == 0
    assert "made-up ids and no evaluation: listops" in capsys.readouterr().out
    assert not (tmp_path / "none").exists()


def test_runs_that_cannot_start_are_refused(in_this_process, overrides, capsys):
    words = [w for w in overrides if not w.startswith("compute=")]
    assert main(["plan", *words, "attention=luna", "compute.reference={parameters: 1}"]) == 2
    assert "error: nothing could be measured: " in capsys.readouterr().err
    assert main(["plan", *overrides, "seed=1,2"]) == 2
    assert "add --multirun" in capsys.readouterr().err
