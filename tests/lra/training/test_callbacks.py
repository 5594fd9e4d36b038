"""Callbacks that a run may choose: averages, early stopping, gradient norms, and a user's own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
import torch

import lra
from lra.base.disk import read_json
from lra.base.errors import UserError
from lra.base.hydras import targets_in
from lra.results.record import read_record
from lra.runs.folder import read_metrics
from lra.runs.search import folder_of
from lra.settings.compose import Run
from lra.sweeps.status import of_folder
from lra.training import run as runner
from lra.training.callbacks import EMA
from lra.training.module import LRAModule

from ..synthetic import selected
from .test_checkpoints import Killed, assert_same, kill_at, only_folder

SHORT = ("protocol.recipe.steps=4", "protocol.evaluation.every=2", "trainer.log_every=1")


def own(name: str, *more: str) -> tuple[str, ...]:
    """The words for a callback of this file."""
    return (f"+callbacks.{name}._target_={__name__}.{name}", *more)


def weights_in(folder: Path, name: str) -> dict[str, torch.Tensor]:
    return torch.load(folder / f"checkpoints/{name}.ckpt", weights_only=True)["state_dict"]


SEEN: list[dict[str, torch.Tensor]] = []


class Watching(pl.Callback):
    """Keeps the weights behind each step."""

    def on_train_batch_end(self, trainer: pl.Trainer, module: Any, *_: Any) -> None:
        SEEN.append({name: p.detach().clone() for name, p in module.named_parameters()})


def average(decay: float, first: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The average as its definition has it."""
    mean = {name: value.double() for name, value in first.items()}
    for step, weights in enumerate(SEEN, 1):
        keep = min(decay, (1 + step) / (10 + step))
        mean = {k: keep * v + (1 - keep) * weights[k].double() for k, v in mean.items()}
    return mean


@pytest.mark.parametrize("select", ["last", "best"])
def test_the_average_is_tested_and_the_weights_go_on(small, select: str):
    """best.ckpt has the average, and last.ckpt the weights with the average beside them."""
    words = ("callbacks=ema", "callbacks.ema.decay=0.5", f"protocol.evaluation.select={select}")
    words += ("protocol.recipe.steps=6", "protocol.evaluation.every=6", "trainer.log_every=1")
    run = small(*words, *own("Watching"))
    first = {name: p.detach() for name, p in runner.build(run).named_parameters()}
    SEEN.clear()
    folder = runner.train(run).parent
    expected, last, best = (
        average(0.5, first),
        weights_in(folder, "last"),
        weights_in(folder, "best"),
    )
    for name, value in expected.items():
        torch.testing.assert_close(best[name].double(), value, rtol=1e-5, atol=1e-6)
        assert torch.equal(last[name], SEEN[-1][name])
    assert max(float((best[k] - last[k]).abs().max()) for k in expected) > 1e-3
    record = read_json(folder / "result.json") or {}
    assert record["stages"]["last"] == record["stages"]["best"]
    trained = lra.load(folder)
    given = dict(trained.network.named_parameters())
    assert all(torch.equal(given[k.removeprefix("network.")], best[k]) for k in expected)
    assert trained.score(trained.evaluate()) == record["score"]


def test_training_is_the_same_with_and_without_an_average(small):
    """Only what is evaluated differs."""
    rows = [
        [row["train_loss"] for row in read_metrics(runner.train(run).with_name("metrics.csv"))]
        for run in (small(*SHORT), small(*SHORT, "callbacks=ema"))
    ]
    assert rows[0] == rows[1]
    assert small(*SHORT).experiment != small(*SHORT, "callbacks=ema").experiment


SCORES = {5: 30.0, 10: 50.0, 15: 50.0, 20: 40.0, 25: 90.0, 30: 90.0}


def test_the_rule_of_early_stopping(small, monkeypatch, capsys):
    """Two evaluations without a better score; an equal one is not better, and that the next one
    would have been the best is not known."""
    usual = LRAModule.on_validation_epoch_end

    def scored(module: LRAModule) -> None:
        usual(module)
        if not module.trainer.testing and module.trainer.global_step in SCORES:
            score = SCORES[module.trainer.global_step]
            module.evaluated["dev"] = {"score": score, "right": int(score), "scored": 100}

    monkeypatch.setattr(LRAModule, "on_validation_epoch_end", scored)
    words = ("callbacks=early_stopping", "callbacks.early_stopping.patience=2")
    record = read_record(runner.train(small(*words, "protocol.evaluation.every=5")))
    said = capsys.readouterr().out
    assert "the score on dev has not become better than 50.00 % for 2 evaluations" in said
    assert [step for step, _ in record["curve"]] == [5, 10, 15, 20]
    assert (record["stages"]["last"]["step"], selected(record)["step"]) == (20, 10)
    assert record["steps"] == 30


STOPPED = ("callbacks=[ema,early_stopping,grad_norm]", "optimizer=sam", "schedule=cosine")
STOPPED += ("callbacks.early_stopping.patience=2", "callbacks.early_stopping.least=0.9")
# The first evaluation is the best, so it stops behind the third, at step 21.
STOPPED += ("protocol.evaluation.every=7", "protocol.recipe.steps=35", "callbacks.ema.decay=0.9")
MOMENTS = [
    *(("on_train_batch_end", step) for step in (2, 7, 8, 13)),
    ("on_validation_end", 14),
    ("on_train_batch_end", 20),
    ("on_validation_end", 21),
]


def test_a_killed_run_with_all_of_them_ends_like_one_that_never_was(
    small, tmp_path, monkeypatch, capsys
):
    """Average, optimiser, patience and rows of metrics go on bit for bit; a run that was cut behind
    its stop does not go on at all."""
    whole = small(*STOPPED, f"runs_dir={tmp_path / 'whole'}")
    runner.train(whole)
    run = small(*STOPPED)
    for hook, step in MOMENTS:
        with monkeypatch.context() as patch:
            kill_at(patch, hook, step)
            with pytest.raises(Killed):
                runner.train(run)
    runner.train(run)
    assert_same(only_folder(run), only_folder(whole))
    assert (read_json(only_folder(run) / "result.json") or {})["stages"]["last"]["step"] == 21
    files = [only_folder(each) / "checkpoints/last.ckpt" for each in (run, whole)]
    last = [torch.load(file, weights_only=True) for file in files]
    for part in ("optimizer_states", "lr_schedulers", "callbacks"):
        assert str(last[0][part]) == str(last[1][part])


def test_gradient_norms_move_nothing(small, tmp_path):
    """Same folder, same losses; the numbers are those before clipping."""
    words = ("protocol.recipe.clip_at=1e-3", *SHORT)
    run, watched = small(*words), small(*words, "callbacks=grad_norm", f"runs_dir={tmp_path / 'b'}")
    assert run.experiment == watched.experiment
    assert folder_of(run, "x").name == folder_of(watched, "x").name
    rows = [read_metrics(runner.train(r).with_name("metrics.csv")) for r in (run, watched)]
    for plain, more in zip(*rows, strict=True):
        assert plain.items() - {("seconds", plain["seconds"])} <= more.items()
    norms = [float(row["grad_norm"]) for row in rows[1] if row["train_loss"]]
    assert len(norms) == 4
    assert min(norms) > 0.1
    assert not [row["grad_norm"] for row in rows[1] if row["dev_loss"] and row["grad_norm"]]


@pytest.mark.parametrize(("optimizer", "passes"), [("adamw", 1), ("sam", 2)])
def test_norms_are_those_of_all_gradients(small, monkeypatch, optimizer: str, passes: int):
    """In the first pass of a step, where there are two."""
    seen: list[float] = []
    step = LRAModule.on_before_optimizer_step

    def watching(self: Any, optimizer: Any) -> None:
        flat = torch.cat([p.grad.flatten() for p in self.parameters() if p.grad is not None])
        seen.append(float(flat.norm()))
        step(self, optimizer)

    monkeypatch.setattr(LRAModule, "on_before_optimizer_step", watching)
    words = ("callbacks=grad_norm", "protocol.recipe.steps=40", "protocol.evaluation.every=40")
    run = small(*words, f"optimizer={optimizer}")
    rows = read_metrics(runner.train(run).with_name("metrics.csv"))
    assert len(seen) == 40 * passes
    seen = seen[::passes]
    shown = [(float(r["grad_norm"]), float(r["grad_norm_max"])) for r in rows if r["train_loss"]]
    pairs = [seen[i : i + 2] for i in range(0, 40, 2)]
    assert shown == [pytest.approx((sum(pair) / 2, max(pair)), rel=1e-5) for pair in pairs]


@pytest.mark.filterwarnings("ignore:Be aware that when using")  # which a run filters itself
def test_a_resumed_run_may_leave_out_what_moves_nothing(small, monkeypatch):
    with monkeypatch.context() as patch:
        kill_at(patch, "on_train_batch_end", 14)
        with pytest.raises(Killed):
            runner.train(small("callbacks=grad_norm"))
    runner.train(small())
    rows = read_metrics(only_folder(small()) / "metrics.csv")
    filled = [int(row["step"]) for row in rows if row["grad_norm"]]
    assert filled == [2, 4, 6, 8, 10, 12]


# ---------------------------------------------------------------------- a user's own


class Noisy(pl.Callback):
    """Moves results, and forgets what it was at."""

    def __init__(self, size: float = 0.1, folder: str = ""):
        self.size, self.folder, self.steps = size, folder, 0

    def on_train_batch_end(self, trainer: pl.Trainer, module: Any, *_: Any) -> None:
        self.steps += 1
        with torch.no_grad():
            for p in module.parameters():
                p.mul_(1 - self.size / self.steps)


def killed(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        kill_at(patch, "on_train_batch_end", 14)
        with pytest.raises(Killed):
            runner.train(run)


def test_an_own_callback_is_part_of_the_run(small):
    plain, noisy = small(*SHORT), small(*SHORT, *own("Noisy", "+callbacks.Noisy.size=0.2"))
    assert noisy.experiment.settings()["callbacks"] == {
        "Noisy": {"_target_": f"{__name__}.Noisy", "size": 0.2}
    }
    assert "the chosen callbacks Noisy" in folder_of(noisy, "x").source.parts
    rows = [read_metrics(runner.train(r).with_name("metrics.csv")) for r in (plain, noisy)]
    assert rows[0][-1]["dev_loss"] != rows[1][-1]["dev_loss"]


def test_one_that_says_that_it_moves_nothing_is_not(small):
    plain, noisy = small(), small(*own("Noisy", "+callbacks.Noisy.moves_results=false"))
    assert plain.experiment == noisy.experiment
    assert folder_of(plain, "x").name == folder_of(noisy, "x").name


def test_one_that_keeps_no_state_is_refused_on_resume(small, monkeypatch, capsys):
    run = small(*own("Noisy"))
    killed(run, monkeypatch)
    assert "note: callbacks.Noisy keeps no state: this run cannot" in capsys.readouterr().out
    with pytest.raises(UserError, match=r"callbacks\.Noisy keeps no state, so .* remove .*last"):
        runner.train(run)
    (only_folder(run) / "checkpoints/last.ckpt").unlink()
    runner.train(run)


@pytest.mark.parametrize("mark", ["stateless=true", "moves_results=false"])
def test_one_that_needs_no_state_is_resumed(small, monkeypatch, mark: str):
    run = small(*own("Noisy", f"+callbacks.Noisy.{mark}"))
    killed(run, monkeypatch)
    assert runner.train(run).exists()


def test_the_folder_of_the_run_can_be_an_option(small):
    run = small(*SHORT, *own("Noisy", "+callbacks.Noisy.folder='{folder}/more'"))
    folder = folder_of(run, "x")
    trainer = runner.trainer_for(folder)
    [noisy] = [c for c in trainer.callbacks if isinstance(c, Noisy)]
    assert noisy.folder == f"{folder.path}/more"


class Silent(pl.Callback):
    columns = ("nothing",)


class Holding(pl.Callback):
    """Is given another object."""

    def __init__(self, inner: Any):
        self.inner = inner


def test_an_option_can_be_an_object_itself(small):
    """Its code counts too."""
    noisy = f"{{_target_:{__name__}.Noisy,size:0.5}}"
    run = small(*own("Holding", f"+callbacks.Holding.inner={noisy}"))
    [holding] = [
        c for c in runner.trainer_for(folder_of(run, "x")).callbacks if isinstance(c, Holding)
    ]
    assert holding.inner.size == 0.5
    assert [*targets_in(run.callbacks)] == [f"{__name__}.{name}" for name in ("Holding", "Noisy")]
    wrong = small(*own("Holding", "+callbacks.Holding.inner={_target_:nosuch.X}"))
    with pytest.raises(UserError, match=r"_target_=nosuch\.X cannot be imported"):
        runner.train(wrong)


def strange(size: float) -> int:
    return 3


WRONG = {
    "no package": (["+callbacks.x._target_=nosuch.X"], r"callbacks\.x\._target_=nosuch\.X cannot"),
    "no class": (["callbacks=ema", "callbacks.ema._target_=lra.training.callbacks.Ema"], r"'Ema'"),
    "no callback": (own("strange", "+callbacks.strange.size=1"), r"strange is no callback: derive"),
    "columns without values": (own("Silent"), r"Silent has columns of metrics\.csv, but no row"),
    "an unknown option": (
        ["callbacks=ema", "+callbacks.ema.decya=0.9"],
        r"callbacks\.ema\.decya is not an option of EMA; did you mean decay\?",
    ),
    "a wrong value": (["callbacks=ema", "callbacks.ema.decay=1"], r"decay=1 is out of range: it"),
    "no patience": (
        ["callbacks=early_stopping", "callbacks.early_stopping.patience=0"],
        r"patience=0 is out of range: it must be at least 1",
    ),
    "a claim that is false": (
        ["callbacks=ema", "+callbacks.ema.moves_results=false"],
        r"callbacks\.ema\.moves_results must be true",
    ),
    "a claim that is none": (
        ["callbacks=ema", "+callbacks.ema.moves_results=perhaps"],
        r"moves_results=perhaps must be true or false",
    ),
    "two of a class": (
        ["callbacks=ema", "+callbacks.second={_target_:lra.training.callbacks.EMA,decay:0.5}"],
        r"two callbacks keep their state as 'EMA'",
    ),
    "fsdp": (["callbacks=ema", "trainer.strategy=fsdp"], r"callbacks\.ema needs all weights in"),
    "no debug": (["debug=slow"], r"unknown debug 'slow'; did you mean|known: fast"),
    "no batch": (["debug=fast", "debug.test_batches=0"], r"debug\.test_batches=0 is out of range"),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_cannot_be_used_is_one_sentence_before_anything_is_prepared(
    small, tmp_path, what: str
):
    words, sentence = WRONG[what]
    with pytest.raises(UserError, match=sentence) as error:
        runner.train(small(*words, f"data_dir={tmp_path / 'none'}"))
    assert len(str(error.value).splitlines()) == 1
    assert not (tmp_path / "none").exists()
    assert not (tmp_path / "runs").exists()


def test_an_average_keeps_float32_of_smaller_weights():
    module: Any = torch.nn.Linear(2, 2, dtype=torch.bfloat16)
    callback = EMA()
    callback.on_train_start(None, module)  # type: ignore[arg-type]
    assert {value.dtype for value in callback.average.values()} == {torch.float32}


# ---------------------------------------------------------------------- debug


Debugged = Callable[..., tuple[dict[str, Any], Path]]


@pytest.fixture
def debugged(small, tmp_path) -> Debugged:
    def go(name: str, *more: str) -> tuple[dict[str, Any], Path]:
        """The settings of SMALL go over those of debug, so these are given again."""
        places = (f"runs_dir={tmp_path / 'runs'}", *more)
        result = runner.train(small(f"debug={name}", *places))
        return read_json(result) or {}, result

    return go


def test_a_debug_run_is_in_no_table(debugged, small, tmp_path):
    facts, result = debugged("one_batch", *SHORT)
    assert result.name == "debug.json"
    assert facts["settings"]["debug"]["name"] == "one_batch"
    assert facts["identity"] != small(*SHORT).experiment.identity(facts["data"]["fingerprint"])
    assert selected(facts)["examples"] == 8
    assert not lra.records(tmp_path / "runs")
    [state] = of_folder(tmp_path / "runs")
    assert state.state == "done"


def test_overfit_trains_on_the_same_batches_until_their_loss_is_small(debugged, monkeypatch):
    seen: set[bytes] = set()
    step = LRAModule.training_step

    def watching(self: Any, batch: Any, *rest: Any) -> Any:
        seen.update(row.numpy().tobytes() for row in batch.ids)
        return step(self, batch, *rest)

    monkeypatch.setattr(LRAModule, "training_step", watching)
    words = ("protocol.data.pad=full", "protocol.recipe.steps=90", "model.dropout=0.0")
    words += ("protocol.evaluation.every=90", "protocol.recipe.schedule=constant")
    _, result = debugged("overfit", *words)
    assert len(seen) == 16
    rows = read_metrics(result.with_name("metrics.csv"))
    losses = [float(row["train_loss"]) for row in rows if row["train_loss"]]
    assert losses[-1] < 0.5 * losses[0]


@pytest.mark.parametrize("name", ["overfit", "one_batch", "fast"])
def test_debug_makes_any_run_small(name: str):
    """Behind an experiment too, and it is set apart by its folder."""
    from lra.settings.compose import compose

    run = compose([f"debug={name}", "experiment=demo"])
    assert run.runs_dir == "runs/debug"
    assert run.debug is not None
    assert run.protocol.recipe.steps <= 100
    assert run.protocol.evaluation.dev_batches in (1, 2)


@pytest.mark.rest
def test_two_processes_average_and_climb_as_one_does(small, train, tmp_path):
    """SAM climbs along the gradient of the whole batch, and both stop at one step."""
    words = ("optimizer=sam", "callbacks=[ema,early_stopping,grad_norm]", "model.dropout=0")
    words += ("model.attention_dropout=0", "callbacks.early_stopping.patience=1")
    words += ("callbacks.early_stopping.least=0.9",)
    runner.train(small(*words))
    two = ("trainer=ddp", "trainer.accelerator=cpu", f"runs_dir={tmp_path / 'two'}")
    done = train(*words, *two)
    assert done.returncode == 0, done.stderr
    rows = [read_metrics(next((tmp_path / d).rglob("metrics.csv"))) for d in ("runs", "two")]
    assert [row["step"] for row in rows[0]] == [row["step"] for row in rows[1]]
    assert rows[0][-1]["step"] == "20"
    for one, other in zip(*rows, strict=True):
        for key in ("train_loss", "dev_loss", "grad_norm"):
            if one[key]:
                assert float(one[key]) == pytest.approx(float(other[key]), rel=1e-3), one["step"]
