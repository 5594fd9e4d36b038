"""Optimisers and schedules by `_target_`: ours, torch's and those of a user's folder."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR

from lra.base import code, groups
from lra.base.disk import read_json
from lra.base.errors import UserError
from lra.report.specs import TableSpec
from lra.report.terminal import comparable
from lra.report.trainings import build as build_table
from lra.results.frame import frame_of
from lra.results.record import load_records
from lra.runs.folder import read_metrics
from lra.runs.search import folder_of
from lra.settings.compose import Run, compose
from lra.settings.experiment import read_experiment
from lra.training import run as runner
from lra.training.module import LRAModule
from lra.training.optimizer import build_optimizer
from lra.training.sam import SAM
from lra.training.schedule import build_schedule
from luna.base import Method, Rate

from ..conftest import SMALL
from .test_optim import recipe, weights

SHORT = ("protocol.recipe.steps=4", "protocol.evaluation.every=2", "trainer.log_every=1")

LION = '''
import torch
from {helper} import direction


class Lion(torch.optim.Optimizer):
    """Chen et al. 2023."""

    def __init__(self, params, lr=1e-4, betas=(0.9, 0.99), weight_decay=0.0):
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure=None):
        loss = closure()
        for group in self.param_groups:
            first, second = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                m = self.state[p].setdefault("m", torch.zeros_like(p))
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.sub_(group["lr"] * direction(m.lerp(p.grad, 1 - first)))
                m.lerp_(p.grad, 1 - second)
        return loss
'''
SCHEDULE = """
def square(step, steps, warmup, power=2):
    return min(1.0, step / warmup) * (1 - step / steps) ** power
"""


@pytest.fixture
def mine(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[tuple[Path, str]]:
    """A user's folder, searched, and the name of its module, which no other test imports."""
    folder, name = tmp_path / "mine", f"lion_{abs(hash(request.node.name))}"
    (folder / "optimizer").mkdir(parents=True)
    (folder / f"{name}.py").write_text(LION.replace("{helper}", f"{name}_helper"), "utf-8")
    helper = "import torch\n\ndirection = torch.sign\n"
    (folder / f"{name}_helper.py").write_text(helper, "utf-8")
    (folder / "optimizer/lion.yaml").write_text(f"_target_: {name}.Lion\nlr: 1e-3\n", "utf-8")
    (folder / "schedule").mkdir()
    (folder / "schedule/square.yaml").write_text(f"_target_: {name}_rate.square\n", "utf-8")
    (folder / f"{name}_rate.py").write_text(SCHEDULE, "utf-8")
    before = [*sys.path]
    with groups.searching(folder):
        yield folder, name
    sys.path[:] = before
    for module in [m for m in sys.modules if m.startswith(name)]:
        del sys.modules[module]
    code.find_source.cache_clear()


def my_run(tmp_path: Path, data_dir: Path, *more: str) -> Run:
    return compose([*SMALL, f"data_dir={data_dir}", f"runs_dir={tmp_path / 'runs'}", *more])


def test_a_run_that_chooses_nothing_is_what_it_was(small):
    run = small()
    assert run.chosen == {}
    assert not {"optimizer", "schedule", "callbacks", "debug"} & run.experiment.settings().keys()
    assert runner.build(run).chosen == ({}, {})
    assert not [part for part in folder_of(run, "x").source.parts if "chosen" in part]
    same = small("optimizer=adamw", "schedule=cosine_floor", "callbacks=none")
    assert same.experiment.identity("x") == run.experiment.identity("x")


def test_three_lines_of_yaml_are_an_optimiser(mine, tmp_path, data_dir):
    """A rate in its file is the recipe's: a record, and a table by rates, have one place for it."""
    run = my_run(tmp_path, data_dir, "optimizer=lion", *SHORT)
    record = read_json(runner.train(run)) or {}
    settings, name = record["settings"], mine[1]
    assert settings["optimizer"] == {"_target_": f"{name}.Lion"}
    assert settings["protocol"]["recipe"]["lr"] == 1e-3
    assert (
        read_experiment(settings, 1).identity(record["data"]["fingerprint"]) == record["identity"]
    )
    first = torch.load(Path(runner.train(run)).parent / "checkpoints/last.ckpt", weights_only=True)
    assert "m" in first["optimizer_states"][0]["state"][0]
    assert read_experiment(settings, 1).settings() == settings


def test_lion_moves_every_weight_by_the_rate(mine, tmp_path, data_dir):
    run = my_run(tmp_path, data_dir, "optimizer=lion", "schedule=constant", *SHORT)
    run.protocol.recipe.warmup = 0
    before = {name: p.detach().clone() for name, p in runner.build(run).named_parameters()}
    folder = runner.train(replace(run, protocol=replace(run.protocol))).parent
    after = torch.load(folder / "checkpoints/last.ckpt", weights_only=True)["state_dict"]
    moved = torch.cat([(after[k] - before[k]).abs().flatten() for k in before])
    assert moved.max() == pytest.approx(4e-3, rel=1e-3)


def test_the_code_of_a_users_module_is_that_of_the_run(mine, tmp_path, data_dir):
    """And of a file beside it that it imports; a comment is not."""
    folder, name = mine

    def name_of_run() -> str:
        return folder_of(my_run(tmp_path, data_dir, "optimizer=lion"), "x").name

    first, file, helper = name_of_run(), folder / f"{name}.py", folder / f"{name}_helper.py"
    file.write_text(file.read_text("utf-8") + "\n# a comment\n", "utf-8")
    assert name_of_run() == first
    helper.write_text("import torch\n\ndirection = torch.tanh\n", "utf-8")
    assert (second := name_of_run()) != first
    file.write_text(file.read_text("utf-8").replace("1 - second", "second"), "utf-8")
    assert name_of_run() not in (first, second)
    assert {n.partition("-")[0] for n in (first, second, name_of_run())} == {
        first.partition("-")[0]
    }


def test_a_function_is_a_schedule(mine, tmp_path, data_dir):
    """It gets steps and warm-up as the budget has scaled them."""
    words = ("schedule=square", "protocol.recipe.steps=8", "protocol.evaluation.every=4")
    run = my_run(tmp_path, data_dir, *words, "protocol.recipe.warmup=2", "trainer.log_every=1")
    result = runner.train(run)
    rows = [row for row in read_metrics(result.with_name("metrics.csv")) if row["train_loss"]]
    # A row is written behind its step, where the rate is that of the next one.
    expected = [0.01 * min(1, s / 2) * (1 - s / 8) ** 2 for s in range(1, 9)]
    assert [float(row["lr"]) for row in rows] == pytest.approx(expected, rel=1e-5)
    other = my_run(tmp_path, data_dir, *words, "+schedule.power=3", "protocol.recipe.warmup=2")
    same = my_run(
        tmp_path, data_dir, *words, "protocol.recipe.warmup=2", "protocol.recipe.schedule=rsqrt"
    )
    identities = [r.experiment.identity("x") for r in (run, same, other)]
    assert identities[0] == identities[1] != identities[2]


class Capped(Method):
    rates: ClassVar = {"slow": Rate(highest=0.1), "table": Rate(decay=False)}

    def __init__(self) -> None:
        super().__init__(seed=0)
        self.name = "capped"
        self.slow, self.table, self.other = weights(), weights(), weights()


def test_the_rates_of_a_method_hold_for_any_optimiser():
    rule = recipe("constant", warmup=0, weight_decay=0.5)
    sgd = {"_target_": "torch.optim.SGD", "momentum": 0.9}
    optimizer = build_optimizer(Capped(), rule, sgd)
    groups_of = optimizer.param_groups
    assert [group["weight_decay"] for group in groups_of] == [0.5, 0.5, 0.0]
    assert [group["momentum"] for group in groups_of] == [0.9] * 3
    build_schedule(optimizer, rule)
    assert [group["lr"] for group in groups_of] == pytest.approx([1, 0.1, 1])
    rsqrt = {"_target_": f"{__name__}.halves"}
    optimizer = build_optimizer(Capped(), rule, sgd)
    schedule = build_schedule(optimizer, rule, rsqrt)
    seen = []
    for _ in range(2):
        seen.append([group["lr"] for group in optimizer.param_groups])
        optimizer.step()
        schedule.step()
    # Scaled: the peak, 2, is at the highest rate.
    assert seen == [pytest.approx([2, 0.1, 2]), pytest.approx([1, 0.05, 1])]


def halves(step: int) -> float:
    return 2 * 0.5**step


def test_a_class_of_torch_is_a_schedule():
    rule = recipe("constant", warmup=0, steps=20)
    options = {"_target_": "torch.optim.lr_scheduler.CosineAnnealingLR", "T_max": "{steps}"}
    optimizer = build_optimizer(nn.ParameterList([weights()]), rule)
    schedule = build_schedule(optimizer, rule, options)
    other = torch.optim.SGD([weights()], lr=1.0)
    expected = CosineAnnealingLR(other, T_max=20)
    for _ in range(20):
        assert optimizer.param_groups[0]["lr"] == other.param_groups[0]["lr"]
        for part in (optimizer, schedule, other, expected):
            part.step()


def test_a_schedule_above_the_highest_rate_is_refused(small):
    """A class may do with the groups what it likes, and s4d's state allows 1e-3."""
    words = ("attention=s4d", "+schedule._target_=torch.optim.lr_scheduler.OneCycleLR")
    run = small(*words, "+schedule.max_lr=0.1", "+schedule.total_steps='{steps}'")
    with pytest.raises(UserError, match=r"OneCycleLR gives .* at most: write the schedule as"):
        runner.train(run)


def test_adamw_by_its_name_is_the_default(small):
    """Chosen by its name, it trains bit by bit as the recipe's does."""
    named = small("+optimizer._target_=torch.optim.AdamW", *SHORT)
    named.optimizer.update(betas=tuple(named.protocol.recipe.betas), eps=named.protocol.recipe.eps)
    losses = []
    for run in (small(*SHORT), named):
        rows = read_metrics(runner.train(run).with_name("metrics.csv"))
        losses.append([(row["train_loss"], row["dev_loss"], row["lr"]) for row in rows])
    assert losses[0] == losses[1]
    named.optimizer.clear()  # `small` gives one run to all tests


# ---------------------------------------------------------------------- SAM


def test_sam_is_adamw_at_the_gradient_of_the_worst_place_nearby():
    w, rho = torch.tensor([1.0, -2.0, 3.0], dtype=torch.float64), 0.1
    p, q = nn.Parameter(w.clone()), nn.Parameter(w.clone())
    sam, adamw = SAM([p], rho=rho, lr=0.1), torch.optim.AdamW([q], lr=0.1)
    seen = []

    def closure() -> Any:
        sam.zero_grad()
        seen.append(p.detach().clone())
        loss = (p**4).sum()
        loss.backward()
        return loss

    for _ in range(3):
        here = q.detach().clone()
        loss = sam.step(closure)
        gradient = 4 * here**3
        nearby = here + rho * gradient / gradient.norm()
        q.grad = 4 * nearby**3
        adamw.step()
        assert float(loss.detach()) == pytest.approx(float((here**4).sum()))
        torch.testing.assert_close(seen[-1], nearby, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(p.detach(), q.detach(), rtol=1e-12, atol=1e-12)
    assert len(seen) == 6


@pytest.mark.parametrize(("rho", "same"), [("1e-9", True), ("0.5", False)])
def test_both_passes_of_a_step_draw_one_dropout(small, monkeypatch, rho: str, same: bool):
    """So they have one loss where rho is tiny; metrics count the first."""
    losses: list[float] = []
    step = LRAModule.training_step

    def seeing(self: Any, *batch: Any) -> Any:
        losses.append(float((loss := step(self, *batch)).detach()))
        return loss

    monkeypatch.setattr(LRAModule, "training_step", seeing)
    run = small("optimizer=sam", f"optimizer.rho={rho}", "model.dropout=0.5", *SHORT)
    rows = read_metrics(runner.train(run).with_name("metrics.csv"))
    first, second = losses[::2], losses[1::2]
    assert len(first) == len(second) == 4
    assert (first == pytest.approx(second, rel=1e-5)) == same
    shown = [float(row["train_loss"]) for row in rows if row["train_loss"]]
    assert shown == pytest.approx(first, rel=1e-5)


# ---------------------------------------------------------------------- what is refused

WRONG = {
    "no class": (["+optimizer.lr=1"], r"optimizer has no _target_, the place of its class"),
    "no package": (
        ["+optimizer._target_=nosuch.Lion"],
        r"optimizer\._target_=nosuch\.Lion cannot be imported \(No module named 'nosuch'\)",
    ),
    "no place": (["+optimizer._target_=Lion"], r"optimizer\._target_=Lion is no place"),
    "a misspelt class": (
        ["+optimizer._target_=torch.optim.Adamm"],
        r"there is no 'Adamm' in torch\.optim; did you mean .*Adam",
    ),
    "no optimiser": (
        ["+optimizer._target_=torch.nn.Linear"],
        r"optimizer=torch\.nn\.Linear is no torch",
    ),
    "an unknown option": (
        ["optimizer=sgd", "+optimizer.momentun=0.9"],
        r"optimizer\.momentun is not an option of SGD; did you mean momentum\?",
    ),
    "an unknown option of SAM, most of which are AdamW's": (
        ["optimizer=sam", "+optimizer.rhoo=0.9"],
        r"optimizer\.rhoo is not an option of SAM; did you mean rho",
    ),
    "a wrong value": (["optimizer=sgd", "optimizer.momentum=-1"], r"Invalid momentum value"),
    "a wrong rho": (["optimizer=sam", "optimizer.rho=0"], r"rho must be greater than 0"),
    "a rate that is none": (["optimizer=sgd", "+optimizer.lr=fast"], r"optimizer\.lr=fast must be"),
    "a rate out of range": (
        ["optimizer=sgd", "+optimizer.lr=-1"],
        r"protocol\.recipe\.lr=-1\.0 is",
    ),
    "no decay": (
        ["+optimizer._target_=torch.optim.LBFGS", "protocol.recipe.weight_decay=0.1"],
        r"LBFGS takes no weight_decay, but protocol\.recipe\.weight_decay is 0\.1: set it to 0",
    ),
    "betas": (["optimizer=sgd", "schedule=onecycle"], r"onecycle moves betas, which this"),
    "a schedule by the score": (
        ["+schedule._target_=torch.optim.lr_scheduler.ReduceLROnPlateau"],
        r"follows a score, which a step does not have",
    ),
    "no schedule": (["+schedule._target_=torch.nn.Linear"], r"neither a function of the step nor"),
    "a negative factor": (
        [f"+schedule._target_={__name__}.negative"],
        r"gives -1 at step 0: it must return a number from 0 on",
    ),
    "an unknown option of a schedule": (
        [f"+schedule._target_={__name__}.negative", "+schedule.powr=1"],
        r"schedule\.powr is not an option of negative",
    ),
    "CUDA graphs": (["optimizer=sam", "trainer.compile=graphs"], r"CUDA graphs overwrite"),
    "fsdp": (["optimizer=sam", "trainer.strategy=fsdp"], r"strategy=fsdp divides: use ddp"),
}


def negative(step: int) -> float:
    return -1


@pytest.mark.parametrize("what", WRONG)
def test_what_cannot_be_used_is_one_sentence_before_anything_is_prepared(tmp_path, what: str):
    words, sentence = WRONG[what]
    with pytest.raises(UserError, match=sentence) as error:
        runner.train(my_run(tmp_path, tmp_path / "none", *words))
    assert len(str(error.value).splitlines()) == 1
    assert not (tmp_path / "none").exists()
    assert not (tmp_path / "runs").exists()


def test_float16_and_two_passes_are_refused(small, monkeypatch):
    monkeypatch.setattr(runner, "check_device", lambda run: None)  # there is no GPU here
    with pytest.raises(UserError, match=r"which trainer\.precision=16-mixed cannot: use bf16"):
        runner.train(small("optimizer=sam", "trainer.precision=16-mixed"))


# ---------------------------------------------------------------------- tables


def test_runs_of_two_optimisers_share_no_table_unless_asked(small, tmp_path):
    for words in (SHORT, (*SHORT, "optimizer=sgd"), (*SHORT, "optimizer=sam")):
        runner.train(small(*words))
    runs = frame_of(load_records([tmp_path / "runs"]))
    assert {*runs["optimizer"]} == {
        "none",
        "SGD(momentum=0.9,nesterov=True)",
        "SAM(betas=[0.9, 0.98],eps=1e-08,rho=0.05)",
    }
    assert len([*comparable(runs)]) == 3
    [(group, _)] = comparable(runs, ["optimizer"])
    table = build_table(TableSpec(name="t", title="t", vary=("optimizer",)), group)
    assert {*table.rows.index} == {f"linear optimizer={name}" for name in runs["optimizer"]}
