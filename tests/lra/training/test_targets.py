"""Runs on numbers and on several labels: they learn, resume exactly, answer, and every command that
reads runs reads theirs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import lra
from lra import data
from lra.base.errors import UserError
from lra.bench.train import random_batch
from lra.cli import main
from lra.data import registry
from lra.data.prepare import prepare
from lra.metrics import Answers, Metric, Target, metric
from lra.results.audit import PROVEN, RECOMPUTED, TRUSTED, check_records
from lra.results.record import load_records
from lra.settings.compose import Run
from lra.training import run as runner
from lra.training.progress import notes_on

from ..conftest import SMALL
from .test_checkpoints import Killed, kill_at, only_folder

WORDS = [word for word in SMALL if not word.startswith(("task", "protocol.data", "compute"))]
SHARE, BOTH, WHICH = "share", "both", "which"  # a number, two numbers, three labels


class Close(Metric):
    name, title, unit = "close", "answers within 3", "%"
    targets = ("numbers",)

    def score(self, answers: Answers, target: Target) -> float:
        return 100 * float((np.abs(answers.answers - answers.labels) < 3).mean())


def labels_of(name: str, ids: np.ndarray) -> np.ndarray:
    twos = (ids == 2).mean(1)
    if name == SHARE:
        return 37 + 12 * twos
    if name == BOTH:
        return np.stack([1000 * twos, 0.01 - 0.01 * twos], 1)
    return np.stack([twos > 0.4, twos > 0.6, twos > 0.99], 1)


def register() -> None:
    rng = np.random.default_rng(0)
    metrics: dict[str, Any] = {SHARE: ["rmse", "r2", Close], BOTH: ["r2"], WHICH: ["f1"]}
    for name, several in metrics.items():
        parts = []
        for n in (160, 40, 40):
            ids = 1 + (rng.random((n, 12)) < rng.random((n, 1)))
            parts.append((ids, labels_of(name, ids)))
        data.from_arrays(name, *parts, metrics=several)


@pytest.fixture(autouse=True)
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    """The three tasks, known to this test alone."""
    metric.suited("numbers")  # imports all that are ours, which happens once
    monkeypatch.setattr(registry.TASKS, "added", {})
    monkeypatch.setattr(metric.METRICS, "added", dict(metric.METRICS.added))
    register()


def run_of(folder: Path, name: str, *words: str) -> Run:
    places = [f"data_dir={folder / 'data'}", f"runs_dir={folder / 'runs'}"]
    return lra.compose([*WORDS, "compute=off", f"task={name}", *places, *words])


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of every task two methods with one seed each."""
    folder = tmp_path_factory.mktemp("targets")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry.TASKS, "added", {})
        register()
        for name in (SHARE, BOTH, WHICH):
            for attention in ("linear", "softmax"):
                lra.train(run_of(folder, name, f"attention={attention}"))
    return folder


def record_of(runs: Path, name: str) -> lra.Record:
    (record,) = (r for r in load_records([runs / "runs" / name]) if r.attention == "linear")
    return record


def test_training_on_numbers_ends_below_the_best_constant(runs: Path):
    record = record_of(runs, SHARE)
    assert record["metric"]["name"] == "rmse"
    assert record.score < 0.5 * record.floor
    assert record.stage["metrics"]["r2"] > 0.7
    steps, scores = zip(*record["curve"], strict=True)
    assert record["dev.score"] == pytest.approx(min(scores), abs=1e-6)  # which has six digits
    assert record["dev.step"] == steps[np.argmin(scores)]
    assert "right" not in record.stage
    assert "predicted" not in record.stage


def test_columns_of_any_size_train_alike(runs: Path):
    """The second has a hundred-thousandth of the first one's spread."""
    answers = lra.load(record_of(runs, BOTH)).evaluate()
    for given, wanted in zip(answers.answers.T, answers.labels.T, strict=True):
        assert np.corrcoef(given, wanted)[0, 1] > 0.8
    assert record_of(runs, BOTH)["data.target"]["spread"][0] > 1e4 * 0.02


def test_training_on_labels_ends_above_the_best_constant(runs: Path):
    record = record_of(runs, WHICH)
    assert record.score > record.floor + 5


@pytest.mark.parametrize("name", [SHARE, WHICH])
def test_a_killed_run_ends_like_one_that_never_was(
    name: str, runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    run = run_of(tmp_path, name, "attention=linear")
    for hook, step in (("on_train_batch_end", 9), ("on_validation_end", 20)):
        with monkeypatch.context() as patch:
            kill_at(patch, hook, step)
            with pytest.raises(Killed):
                runner.train(run)
    runner.train(run)
    ours, theirs = lra.records(only_folder(run))[0], record_of(runs, name)
    for key in ("score", "stages", "dev", "curve", "floor", "answers.packed"):
        assert ours[key] == theirs[key], key


# ---------------------------------------------------------------------- asked afterwards


@pytest.mark.parametrize("name", [SHARE, BOTH, WHICH])
def test_a_loaded_network_answers_as_it_was_tested(name: str, runs: Path):
    record = record_of(runs, name)
    trained = lra.load(record)
    answers = trained.evaluate()
    assert answers.digests() == {key: record[f"answers.{key}"] for key in answers.digests()}
    assert trained.score(answers) == record.score
    rows = trained.prepared.split("test").ids(np.arange(40))
    predicted = trained.predict(list(rows))
    if name == WHICH:
        assert np.array_equal(predicted.labels, answers.answers > 0)
        assert np.array_equal(predicted.labels, predicted.probabilities > 0.5)
        assert (predicted.classes, predicted.numbers) == (None, None)
    else:
        np.testing.assert_allclose(predicted.numbers, answers.answers, rtol=1e-5)
        assert predicted.numbers.shape == answers.labels.shape
        assert (predicted.classes, predicted.probabilities, predicted.labels) == (None,) * 3


@pytest.mark.parametrize(
    ("name", "fields"), [(SHARE, {"numbers"}), (WHICH, {"probabilities", "labels"})]
)
def test_commands_answer_in_the_units_of_the_data(
    name: str, fields: set[str], runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    folder = str(record_of(runs, name).folder)
    np.save(tmp_path / "rows.npy", np.array([[1] * 12, [2] * 12]))
    assert main(["predict", folder, str(tmp_path / "rows.npy")]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row.keys() - {"example"} for row in rows] == [fields] * 2
    if name == SHARE:
        assert rows[0]["numbers"] + 5 < rows[1]["numbers"]
    assert main(["evaluate", folder, "--split", "val"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("dev RMSE " if name == SHARE else "dev F1 ")
    assert ("answers within 3 " in said) == (name == SHARE)
    assert main(["export", folder, "--to", str(tmp_path / "net")]) == 0
    card = (tmp_path / "net" / "README.md").read_text(encoding="utf-8")
    assert f"predict(examples).{'numbers' if name == SHARE else 'labels'}`" in card


def test_records_are_recomputed_with_and_without_the_code_of_the_task(
    runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    found = load_records([runs / "runs"])
    assert check_records(found, runs / "data", reevaluate=True) == {PROVEN: 6}
    monkeypatch.setattr(registry.TASKS, "added", {})
    metric.METRICS.added.pop("close")
    assert check_records(load_records([runs / "runs"]), runs / "data") == {RECOMPUTED: 6}


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda f: f["stages"]["last"].update(score=1.0), "its test RMSE is 1, but"),
        (lambda f: f["stages"]["last"]["metrics"].update(r2=0.99), "its test R2 is 0.99, but"),
        (lambda f: f["stages"]["last"].update(loss=3.0), "its test loss is 3, but"),
        (lambda f: f["data"]["target"].update(spread=[1.0]), "its test loss is"),
        (lambda f: f.update(floor=0.1), "its floor is 0.1, but"),
    ],
)
def test_numbers_that_do_not_follow_from_the_answers_are_found(
    change: Callable[[dict[str, Any]], None], problem: str, runs: Path
):
    record = record_of(runs, SHARE)
    facts = json.loads(json.dumps(record.facts))
    facts["select"] = "last"
    facts["stages"]["last"] = dict(facts["stages"][record["select"]])
    change(facts)
    facts["score"] = facts["stages"]["last"]["score"]
    with pytest.raises(UserError, match=problem):
        check_records([lra.Record(facts, record.path)], runs / "data")


def test_a_score_of_an_unknown_metric_is_trusted(runs: Path, monkeypatch: pytest.MonkeyPatch):
    record = record_of(runs, SHARE)
    facts = json.loads(json.dumps(record.facts))
    facts["metric"]["name"] = "gone"
    monkeypatch.setattr(registry.TASKS, "added", {})
    assert check_records([lra.Record(facts, record.path)], runs / "data") == {TRUSTED: 1}


@pytest.mark.parametrize("name", [SHARE, BOTH, WHICH])
def test_tables_comparisons_and_figures_read_them(
    name: str, runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    folder = str(runs / "runs" / name)
    title = {SHARE: "RMSE", BOTH: "R2", WHICH: "F1"}[name]
    assert main(["table", "--runs", folder, "--format", "md"]) == 0
    assert f"Test {title}" in capsys.readouterr().out
    assert main(["compare", "linear", "softmax", "--runs", folder]) == 0
    assert capsys.readouterr().out.count(title) >= 1
    assert main(["figures", "--runs", folder, "--out", str(tmp_path)]) == 0
    assert [*tmp_path.glob("*.png")]
    (tmp_path / "records").mkdir()
    target = tmp_path / "records" / f"{name}.jsonl"
    assert main(["records", "export", str(target), "--runs", folder]) == 0
    copies = load_records([target])
    assert [r.score for r in copies] == [r.score for r in load_records([folder])]
    assert check_records(copies, runs / "data") == {PROVEN: 2}


def test_pretraining_begins_a_run_on_numbers(tmp_path: Path):
    run = run_of(tmp_path, SHARE, "attention=linear", "pretrain=masked")
    record = lra.train(run)
    assert record["pretraining.steps"] > 0
    assert record.score < record.floor


@pytest.mark.parametrize("name", [SHARE, BOTH, WHICH])
def test_a_step_on_random_targets_has_a_loss(name: str, tmp_path: Path):
    """What `lra plan` and `lra bench train` measure."""
    run = run_of(tmp_path, name)
    batch = random_batch(run, torch.device("cpu"))
    loss = runner.build(run).training_step(batch, 0)
    assert 0 < float(loss.detach()) < float("inf")


@pytest.mark.parametrize("targets", ["classes", "tokens", "numbers", "labels"])
def test_notes_on_equal_labels_and_on_a_large_batch(tmp_path: Path, targets: str) -> None:
    ids = np.random.default_rng(0).integers(1, 4, (20, 12))
    shape = {"classes": (20,), "tokens": (20, 12), "numbers": (20,), "labels": (20, 3)}[targets]
    dtype = float if targets == "numbers" else int
    varied, equal = np.zeros(shape, dtype), np.ones(shape, dtype)
    varied[::2] = 1
    said = []
    for name, labels in (("differ", varied), ("same", equal)):
        more = {"metrics": ["rmse"]} if targets == "numbers" else {}  # equal ones have no R2
        parts = [(ids, varied), (ids, varied), (ids, labels)]
        data.from_arrays(name, *parts, targets=targets, **more)
        run = run_of(tmp_path, name, "protocol.recipe.batch=21")
        prepared = prepare(run.task, max_length=0, data_dir=tmp_path / "data")
        said.append(list(notes_on(run, prepared)))
    repeats = "a batch of 21 repeats the 20 training examples"
    assert said[0] == [repeats]
    assert said[1] == [
        repeats,
        "all labels of the test examples are the same, so the score tells nothing",
    ]


@pytest.mark.parametrize(
    ("train", "test", "note"),
    [
        ([1, 2] * 10, [1, 2], "class 0 never occurs: number the classes from 0 on, without gaps"),
        ([0, 1] * 10, [0, 2], "class 2 is in the test examples and in no training example"),
        ([0, 1] * 10, [0, 1], None),
    ],
)
def test_notes_on_classes_that_training_never_sees(
    tmp_path: Path, train: list[int], test: list[int], note: str | None
):
    rows = np.random.default_rng(0).integers(1, 4, (20, 12))
    data.from_arrays("gaps", (rows, train), (rows[:2], train[:2]), (rows[:2], test))
    run = run_of(tmp_path, "gaps")
    prepared = prepare(run.task, max_length=0, data_dir=tmp_path / "data")
    assert [said for said in notes_on(run, prepared) if said.startswith("class")] == (
        [note] if note else []
    )
