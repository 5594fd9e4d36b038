"""Targets that are numbers or several labels: stored, counted, loaded, and answered by rules."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lra import data
from lra.base.errors import UserError
from lra.data.arrays import Split
from lra.data.device import DeviceLoader
from lra.data.loader import Loader
from lra.data.rules import Rule, baselines, by_key, first_tokens
from lra.data.verify import verify
from lra.metrics import Answers, Metric, metric

from .targets import BINARY, IDS, ONE, TWO, Mean, N, forget, given, prepared, registered
from .test_loader import rules


@pytest.fixture(autouse=True)
def _forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    forget(monkeypatch)


# ---------------------------------------------------------------------- stored, counted, loaded


@pytest.mark.parametrize(
    ("labels", "dtype", "shape"),
    [(ONE, np.float32, ()), (TWO, np.float32, (2,)), (BINARY, np.uint8, (3,))],
)
def test_labels_come_back_as_they_were_given(
    labels: np.ndarray, dtype: type, shape: tuple[int, ...], tmp_path: Path
):
    ids = [[1 + i, 1] for i in range(N)]  # which example is which
    part = ids, labels
    data.from_arrays("given", part, part, part)
    split = prepared(tmp_path).split("val")
    assert (split.labels.dtype, split.labels.shape) == (dtype, (N, *shape))
    assert np.array_equal(split.labels, labels.astype(dtype))
    assert {line.status for line in verify(prepared(tmp_path).folder)} == {"ok", "unknown"}

    loader = Loader(split, 7, rules=rules())
    batch = loader.batch(np.array([4, 2]))
    assert batch.labels.dtype == torch.float32
    assert torch.equal(batch.labels, torch.from_numpy(labels[[4, 2]]).float())
    held = DeviceLoader(split, 7, rules=rules(), device=torch.device("cpu")).batch(np.array([4, 2]))
    assert torch.equal(held.labels, batch.labels)
    assert held.labels.dtype == batch.labels.dtype


def test_the_statistics_of_targets_are_those_of_the_data(tmp_path: Path):
    part = IDS, TWO
    task = data.from_arrays("given", part, part, part)()
    facts = prepared(tmp_path).facts["splits"]["val"]
    stored = TWO.astype(np.float32).astype(float)
    assert facts["targets"]["mean"] == pytest.approx(stored.mean(0))
    assert facts["targets"]["spread"] == pytest.approx(stored.std(0))
    assert facts["targets"]["least"] == stored.min(0).tolist()
    assert facts["targets"]["largest"] == stored.max(0).tolist()
    assert "labels" not in facts
    assert (task.centre, task.spread) == tuple(map(tuple, (facts["targets"][k] for k in KEYS)))
    part = IDS, BINARY
    data.from_arrays("given", part, part, part)
    assert prepared(tmp_path).facts["splits"]["val"]["with_label"] == BINARY.sum(0).tolist()


KEYS = ("mean", "spread")


def test_a_constant_target_has_spread_1():
    """Of which the mean of 0.1 in 32 bits is not exactly 0.1."""
    task = given(np.column_stack([ONE, np.full(N, 0.1)]), metrics=["rmse"])
    assert task.spread[1] == 1
    assert task.centre[1] == pytest.approx(0.1)


def test_data_are_told_apart_by_every_digit_and_by_what_is_asked():
    def code(labels: Any, **more: Any) -> dict[str, str]:
        return given(labels, **more).encoding

    rows = [[0, 1, 1, 0]] * 15 + [[1, 0, 0, 1]] * 15
    codes = [code(ONE), code(ONE + 1e-3), code(ONE, metrics=["rmse"])]
    codes += [code(rows, targets=t, metrics=m) for t, m in (("tokens", ()), ("labels", ()))]
    codes += [code(rows, targets="numbers", metrics=["rmse"])]
    assert len({tuple(sorted(c.items())) for c in codes}) == len(codes)
    assert code(ONE) == codes[0]


def test_the_code_of_an_own_metric_is_part_of_the_data():
    """Else an edited metric would find the run, and the score, of the one before."""

    def made(limit: float) -> dict[str, str]:
        def score(self: Metric, answers: Answers, target: Any) -> float:
            return 100 * float((np.abs(answers.answers - answers.labels) < self.limit).mean())

        facts = {"name": "close", "title": "close", "targets": ("numbers",), "limit": limit}
        close = type("Close", (Metric,), facts | {"score": score})
        return given(ONE, metrics=[close, "rmse"]).encoding

    assert made(0.1) == made(0.1) != made(0.2)
    assert given(ONE, metrics=["rmse"]).encoding["metrics"] == "rmse"


def test_classes_have_the_code_that_they_had():
    """So that nothing is prepared again, and no record loses its data."""
    part = [[1, 2], [3]], [0, 2]
    digest = hashlib.sha256()
    for _ in range(3):
        digest.update(b"".join(np.array(x, "<i8").tobytes() + b"|" for x in part[0]))
        digest.update(b"".join(np.array(y, "<i8").tobytes() + b";" for y in part[1]))
    task = data.from_arrays("given", part, part, part)
    assert task.encoding == {"code": digest.hexdigest()[:16]}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"grid": (2, 2), "vocab": 256},
        {"stack": 2},
        {"dual": True, "label": lambda self, ids: ids.sum()},
    ],
)
def test_pictures_stacks_and_pairs_have_numbers_too(changes: dict[str, Any], tmp_path: Path):
    if changes.get("dual"):
        splits = Mean.splits

        def pairs(self: Mean, options: Any, job: Any) -> list[data.RawSplit]:
            return [
                s._replace(examples=[x._replace(ids=(x.ids, x.ids[:2])) for x in s.examples])
                for s in splits(self, options, job)
            ]

        changes = changes | {"splits": pairs}
    registered(**changes)
    made = prepared(tmp_path, "mean")
    train = made.split("train")
    batch = Loader(train, 5, rules=rules()).batch(np.arange(5))
    assert torch.equal(batch.labels, torch.from_numpy(train.labels[:5].copy()))
    one = (np.array([1, 2, 3, 4]),) * 2 if made.layout.dual else np.array([1, 2, 3, 4])
    held = Split.held(made.layout, 4, [one])
    assert Loader(held, 1, rules=rules()).batch(np.array([0])).labels.isnan().tolist() == [True]
    assert len(train.sequences(10, held=True)) > 0


# ---------------------------------------------------------------------- rules and words


@pytest.mark.parametrize(
    ("changes", "least"),
    [
        ({}, 0.9),
        ({"grid": (2, 2), "vocab": 256}, 0.9),
        ({"classes": 2, "label": lambda self, ids: np.array([ids.mean(), 40 - ids.sum()])}, 0.9),
        ({"asks": "labels", "classes": 3, "label": lambda self, ids: ids[:3] > 4}, 60),
        ({"asks": "labels", "classes": 2, "label": lambda self, ids: [ids[0] > 4, True]}, 80),
    ],
)
def test_linear_rules_answer_what_is_asked(changes: dict[str, Any], least: float, tmp_path: Path):
    """Numbers that are linear in counts or pixels are found; so are labels, better than by the best
    constant, also where one of them is always there."""
    registered(**changes)
    made = prepared(tmp_path, "mean")
    scores = baselines(made, made.layout)["rules"]
    constant, best = scores.pop("constant"), max(score["test"] for score in scores.values())
    assert constant["test"] == made.floor(metric.get(made.layout.metric_names[0]))
    assert best > least
    assert best > constant["test"]


def test_rules_that_count_labels_refuse_numbers(tmp_path: Path):
    rules = {"key": Rule("", by_key(lambda ids: ids[:, 0])), "first": Rule("", first_tokens(2, 9))}
    registered(rules=lambda self, options: rules)
    made = prepared(tmp_path, "mean")
    for name in rules:
        with pytest.raises(UserError, match="answers with classes, but task 'mean' asks for numb"):
            baselines(made, made.layout, [name])


def test_a_metric_of_probabilities_has_a_constant_and_no_other_rule(tmp_path: Path):
    registered(
        asks="classes", classes=9, metrics=("bits_per_byte",), label=lambda self, ids: ids[0]
    )
    made = prepared(tmp_path, "mean")
    scores = baselines(made, made.layout)["rules"]
    assert list(scores) == ["constant"]
    assert scores["constant"]["test"] == made.floor(metric.get("bits_per_byte"))
    with pytest.raises(UserError, match="'bag' gives no probabilities, which bits per byte scores"):
        baselines(made, made.layout, ["bag"])


def test_lra_data_says_what_targets_are(lra_data: Callable[..., tuple[int, str, str]]):
    registered(label=lambda self, ids: 37 + 12 * ids.mean())
    code, out, err = lra_data("check", "mean")
    assert code == 0, err
    assert "ok       test: the targets are not all the same" in out
    warned = next(line for line in out.splitlines() if "warning" in line)
    assert ": set centre and spread of the task" in warned
    assert "mean, 1 number" not in out
    assert "1 number, 4 ids" in lra_data("list")[1]
    assert "targets from 5" in lra_data("prepare", "mean")[1]
    assert "mean train 0   label " in lra_data("show", "mean")[1]
    assert "R2 of each rule" in lra_data("baseline", "mean")[1]
    registered(label=lambda self, ids: 37 + 12 * ids.mean(), centre=(90.0,), spread=(14.0,))
    assert "warning" not in lra_data("check", "mean")[1]


def test_lra_data_says_what_labels_are(lra_data: Callable[..., tuple[int, str, str]]):
    facts: dict[str, Any] = {"asks": "labels", "classes": 3}
    registered(label=lambda self, ids: [1, 0, ids[0] > 4], **facts)
    code, out, err = lra_data("check", "mean")
    assert code == 0, err
    assert "ok       train: some examples have other labels" in out
    assert "3 labels, 4 ids" in lra_data("list")[1]
    assert "most frequent label 100.0%, rarest 0.0%" in lra_data("prepare", "mean")[1]
    shown = lra_data("show", "mean", "--index", "0-9")[1]
    assert "label 0   " in shown
    assert "label 0, 2   " in shown
    registered(label=lambda self, ids: [1, 0, 1], **facts)
    code, out, _ = lra_data("check", "mean")
    assert code
    assert out.count(": some examples have other labels") == out.count("differs ") == 3


def test_examples_without_labels_are_refused_in_a_sentence():
    rows = np.ones((10, 4), np.int64)
    with pytest.raises(UserError, match=r"train is examples and their labels, two of them"):
        data.from_arrays("unlabelled", rows)  # type: ignore[arg-type]
    with pytest.raises(UserError, match=r"test is examples and their labels"):
        data.from_arrays("unlabelled", (rows, np.zeros(10)), test=rows)  # type: ignore[arg-type]


def test_a_label_that_would_make_a_million_classes_is_refused():
    rows = np.ones((10, 4), np.int64)
    with pytest.raises(UserError, match=r"a label is 1,000,000,000,000, which would make as many"):
        data.from_arrays("many", (rows, [10**12, *range(9)]))


def test_a_metric_that_was_typed_without_a_source_is_refused_in_a_sentence():
    typed: dict[str, object] = {}
    code = "class Typed(Metric):\n    name = 'typed'\n    def score(self, *_):\n        return 0"
    exec(code, {"Metric": Metric, "__name__": "nowhere"}, typed)
    rows = np.ones((10, 4), np.int64)
    with pytest.raises(UserError, match=r"Typed was typed where Python keeps no source"):
        data.from_arrays("typed", (rows, [0, 1] * 5), metrics=[typed["Typed"]])  # type: ignore
