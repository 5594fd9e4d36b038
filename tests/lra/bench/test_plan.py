"""`lra plan`: which runs cost the same, what they will cost, and which budget fits."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from omegaconf import OmegaConf

from lra.bench import plan
from lra.bench.plan import Plan, RunGroup, cost_key, jobs_at_once
from lra.cli import main
from lra.settings.compose import Run
from lra.training.run import train

COSTS = {"start": 10.0, "mean": 2.0, "low": 1.0, "high": 3.0, "evaluation": 0.5, "share": 0.5,
         "peak": 100.0, "room": 1000.0, "disk": 1.0}  # fmt: skip


def group(run: Run, runs: int = 1, **more: float) -> RunGroup:
    return RunGroup([], run, {"val": 30, "test": 9}, set(), runs=runs, left=runs,
                    costs=COSTS | more)  # fmt: skip


@pytest.mark.parametrize(
    ("word", "same"),
    [("seed=2", True), ("protocol.recipe.lr=0.1", True), ("protocol.recipe.steps=90", False),
     ("attention.dwc=conv1d", False), ("model.mlp_dim=32", False), ("trainer.threads=2", False),
     ("protocol.recipe.batch=4", False), ("protocol.data.pad=full", False)],
)  # fmt: skip
def test_which_runs_cost_the_same(small: Callable[..., Run], word: str, same: bool):
    assert (cost_key(small()) == cost_key(small(word))) is same


def test_the_hours_of_a_run(small: Callable[..., Run]):
    """30 steps; 3 evaluations of 4 batches of 8; 2 batches of the test set for two checkpoints."""
    one = group(small())
    assert one.hours() == pytest.approx((10 + 30 * 2 + (3 * 4 + 2 * 2) * 0.5) / 3600)
    assert one.hours(share=0.5) == pytest.approx((10 + 15 * 2 + (6 + 4) * 0.5) / 3600)
    both = group(small("pretrain=masked", "pretrain.recipe.steps=20"))
    assert both.hours() - one.hours() == pytest.approx(20 * 2 / 3600)
    some = group(small("protocol.evaluation.dev_batches=1"))
    assert some.hours("low") == pytest.approx((10 + 30 * 1 + (3 * 1 + 2 * 2) * 0.5) / 3600)


def test_runs_side_by_side_share_the_machine(small: Callable[..., Run]):
    one = group(small()).hours()
    two = Plan([group(small(), 4)], 2, 2)
    assert two.hours("mean") == pytest.approx(2 * one)
    crowded = Plan([group(small(), 4)], 4, 4)  # each keeps half of the machine busy
    assert crowded.hours("mean") == pytest.approx(2 * one)
    assert Plan([group(small(), 1)], 4, 1).hours("mean") == pytest.approx(one)


def test_what_does_not_fit_is_said(small: Callable[..., Run]):
    assert "NOT FIT" not in "\n".join(Plan([group(small(), peak=600.0)], 2, 2).lines())
    memory = Plan([group(small(), 2, peak=600.0)], 2, 2).lines()[2]
    assert memory == "memory at once: up to 1,200 MiB, 1,000 MiB are free; they DO NOT FIT"
    assert Plan([group(small(), disk=2.0**50)], 1, 1).lines()[1].endswith("they DO NOT FIT")


def test_the_largest_budget_that_fits(small: Callable[..., Run]):
    planned = Plan([group(small("protocol.recipe.steps=30000"), 2)], 1, 1)
    hours = planned.hours("high", 0.1)
    assert planned.proposal(hours * 1.0001).startswith("budget=0.1: ")
    assert planned.proposal(hours * 0.999).startswith("budget=0.099: ")
    assert planned.proposal(1e6).startswith("budget=1: ")
    assert planned.proposal(1e-3).startswith("no budget fits into 0.001 hours; the smallest is")


def test_how_many_jobs_a_launcher_does_at_once():
    def ask(target: str, **launcher: object) -> tuple[int, int]:
        return jobs_at_once(OmegaConf.create({"_target_": target, **launcher}), 9)

    assert ask("BasicLauncher") == (1, 1)
    assert ask("LaptopLauncher", n_jobs=4) == (4, 4)
    assert ask("LocalLauncher") == (9, 9)
    assert ask("SlurmLauncher", array_parallelism=8) == (8, 1)
    for gpus, packed in ((1, 1), (0, 1), (0.25, 4), (0.01, 9)):
        assert ask("RayLauncher", remote={"num_gpus": gpus}) == (packed, packed)


def test_a_sweep_is_measured(in_this_process, small, overrides, capsys):
    for seed in (1, 2):
        train(small("attention=uniform", f"seed={seed}"))
    words = [*(w for w in overrides if not w.startswith("attention=")), "seed=1,2"]
    assert main(["plan", "-m", *words, "attention=linear,uniform", "--hours", "1"]) == 0
    out = capsys.readouterr().out
    assert "2 of 4 runs are finished and cost nothing" in out
    rows = {line.split()[0]: line.split() for line in out.splitlines() if "attention=" in line}
    assert [rows[f"attention={name}"][1:3] for name in ("linear", "uniform")] == [
        ["2", "30"],
        ["0", "30"],
    ]
    assert "for 2 runs, 1 at once" in out
    assert "made-up" not in out
    assert "budget=1: " in out
    assert main(["plan", *words[:-1], "attention=uniform"]) == 0
    assert capsys.readouterr().out.endswith("1 of 1 runs are finished and cost nothing\n")


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
    assert main(["plan", *overrides, "--jobs", "0"]) == 2
    assert "--jobs must be greater than 0" in capsys.readouterr().err
    assert plan.free_mib() > 0
