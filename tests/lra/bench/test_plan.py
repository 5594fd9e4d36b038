"""`lra plan`: which runs cost the same, what they will cost, and which budget fits."""

from __future__ import annotations

import math
import resource
from collections.abc import Callable

import pytest
from omegaconf import OmegaConf
from rich.console import Console

from lra.bench import plan, steps
from lra.bench.plan import BUDGETS, Plan, RunGroup, at_once, makespan
from lra.bench.worker import measure
from lra.cli import main
from lra.settings.compose import Run
from lra.training.run import train

COSTS = {"start": 10.0, "mean": 2.0, "low": 1.0, "high": 3.0, "evaluation": 0.5, "share": 0.5,
         "peak_mib": 100.0, "room_mib": 1000.0, "disk": 2.0**20}  # fmt: skip


@pytest.fixture
def in_this_process(monkeypatch) -> None:
    monkeypatch.setattr(plan, "ask", lambda cases, meter: list(measure(cases, meter)))
    monkeypatch.setattr(steps, "LEAST_SECONDS", 0.0)


def group(run: Run, runs: int = 1, **more: float) -> RunGroup:
    found = RunGroup([], run, "", {"val": 30, "test": 9}, False, runs=runs, left=runs)
    found.whole = run  # a cached property
    found.costs = COSTS | more
    return found


@pytest.mark.parametrize("word", ["seed=2", "protocol.recipe.lr=0.1", "protocol.recipe.steps=90"])
def test_what_a_step_does_not_depend_on(small: Callable[..., Run], word: str):
    assert plan._step(small()) == plan._step(small(word))


@pytest.mark.parametrize(
    "word",
    ["attention.dwc=conv1d", "model.mlp_dim=32", "protocol.recipe.batch=4", "trainer.threads=2",
     "protocol.data.pad=full", "trainer.precision=bf16-mixed", "compute=report"],
)  # fmt: skip
def test_what_decides_the_cost_of_a_step(small: Callable[..., Run], word: str):
    assert plan._step(small()) != plan._step(small(word))


def test_the_hours_of_a_run(small: Callable[..., Run]):
    """30 steps; 3 evaluations of 4 batches of 8; 2 batches of the test set for two checkpoints."""
    assert group(small()).hours() == (10 + 30 * 2 + (3 * 4 + 2 * 2) * 0.5) / 3600
    both = small("pretrain=masked", "pretrain.recipe.steps=20")
    assert group(both).hours() - group(small()).hours() == pytest.approx(20 * 2 / 3600)
    some = small("protocol.evaluation.dev_batches=1")
    assert group(some).hours("low") == (10 + 30 * 1 + (3 * 1 + 2 * 2) * 0.5) / 3600


def test_runs_side_by_side(small: Callable[..., Run]):
    assert makespan([3, 3, 2], 2) == 5  # and not half of their sum
    one = group(small()).hours()
    two = Plan([group(small(), 4)], 2, True).span()
    assert two.mean == pytest.approx(2 * one)
    crowded = Plan([group(small(), 4)], 4, True)  # each keeps half of the machine busy
    assert crowded.span().mean == pytest.approx(two.mean)
    assert crowded.span().low == pytest.approx(two.low / 2)
    assert "ask for 2.0 times this machine" in "\n".join(crowded.lines())
    others = "\n".join(Plan([group(small(), 4)], 4, False).lines())
    assert "other machines" in others
    assert "up to 100 MiB at once" in others
    packed = "\n".join(Plan([group(small(), 4)], 4, False, packed=4).lines())
    assert "ask for 4.0 times a GPU" in packed
    assert "up to 400 MiB at once" in packed


def test_the_table_shows_brackets(small: Callable[..., Run], capsys):
    named, stopped = group(small()), group(small())
    named.name, stopped.stopped = "task.words=[a,b]", "[Errno 2] no file"
    Console(width=120).print(plan._table([named, stopped]))
    out = capsys.readouterr().out
    assert "task.words=[a,b]" in out
    assert "[Errno 2] no file" in " ".join(out.split())


def test_what_does_not_fit_is_said(small: Callable[..., Run]):
    def lines(runs: int, **more: float) -> str:
        return "\n".join(Plan([group(small(), runs, **more)], 2, True).lines())

    assert "NOT FIT" not in lines(1, peak_mib=600)
    assert "up to 1,200 MiB at once, 1,000 MiB are free; they DO NOT FIT" in lines(2, peak_mib=600)
    assert "they DO NOT FIT" in lines(1, disk=2.0**70)


def test_the_largest_budget_that_fits(small: Callable[..., Run]):
    planned = Plan([group(small("protocol.recipe.steps=30000"), 2)], 1, True)
    hours = planned.span(0.1).high
    assert planned.budget(hours).startswith("budget=0.1: ")
    assert planned.budget(hours * 0.999).startswith("budget=0.099: ")
    assert planned.budget(1e6).startswith("budget=1: ")
    assert planned.budget(1e-3).startswith("no budget fits into 0.001 hours; the smallest is")
    assert sorted(BUDGETS) == BUDGETS


def test_how_many_jobs_a_launcher_does_at_once():
    def ask(target: str, **launcher: object) -> tuple[int, bool, int]:
        return at_once(OmegaConf.create({"_target_": target, **launcher}), 9)

    assert ask("hydra._internal.core_plugins.basic_launcher.BasicLauncher") == (1, True, 1)
    assert ask("hydra_plugins.lra_launchers.LaptopLauncher", n_jobs=4) == (4, True, 1)
    assert ask("hydra_plugins.lra_launchers.LocalLauncher") == (9, True, 1)
    assert ask("hydra_plugins.lra_launchers.SlurmLauncher", array_parallelism=8) == (8, False, 1)
    ray = "hydra_plugins.lra_launchers.RayLauncher"
    for gpus, packed in ((1, 1), (2, 1), (0, 1), (0.25, 4), (0.3, 3), (0.01, 9)):
        assert ask(ray, remote={"num_gpus": gpus}) == (packed, False, packed)


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
    assert all(float(row[3]) > 0 and float(row[-1].replace(",", "")) > 10 for row in rows.values())
    assert "for 2 runs, 1 at once" in out
    assert "made-up" not in out
    assert "budget=1: " in out
    assert main(["plan", *words[:-1], "attention=uniform"]) == 0
    assert capsys.readouterr().out.endswith("1 of 1 runs are finished and cost nothing\n")


def test_a_single_run_without_data_is_measured_with_made_up_ids(
    in_this_process, overrides, tmp_path, capsys
):
    words = [*overrides, f"data_dir={tmp_path / 'none'}"]
    assert main(["plan", *words]) == 0
    out = capsys.readouterr().out
    assert "listops linear" in out
    assert "made-up ids of full length: listops" in out
    assert "without evaluation" not in out  # of the bundled miniature the size is known
    assert not (tmp_path / "none").exists()


def test_a_run_that_cannot_start_is_named(in_this_process, overrides, monkeypatch, capsys):
    def full(*_: object) -> None:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory")

    words = [w for w in overrides if not w.startswith("compute=")]
    assert main(["plan", *words, "attention=luna", "compute.reference={parameters: 1}"]) == 2
    assert "error: nothing could be measured: " in capsys.readouterr().err
    monkeypatch.setattr(steps.FirstSteps, "_costs", full)
    assert main(["plan", *overrides]) == 2
    assert "needs more memory than is free" in capsys.readouterr().err
    assert main(["plan", *overrides, "seed=1,2"]) == 2
    assert "add --multirun" in capsys.readouterr().err
    assert main(["plan", *overrides, "--jobs", "0"]) == 2
    assert "--jobs must be greater than 0" in capsys.readouterr().err


def test_a_measurement_may_not_take_more_memory_than_is_free():
    before = resource.getrlimit(resource.RLIMIT_DATA)
    with steps._memory_limit(2.0**30):
        assert resource.getrlimit(resource.RLIMIT_DATA)[0] == 2**50
    assert resource.getrlimit(resource.RLIMIT_DATA) == before
    assert 0 < steps.free_mib() <= math.inf
