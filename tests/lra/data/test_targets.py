"""Targets that are numbers or several labels: what is inferred and refused, stored, counted, loaded
and answered by rules."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import pytest
import torch

from lra import data
from lra.base.errors import UserError
from lra.data import registry
from lra.data.arrays import Prepared, Split
from lra.data.device import DeviceLoader
from lra.data.loader import Loader
from lra.data.prepare import find_or_prepare
from lra.data.rules import baselines
from lra.data.verify import verify
from lra.metrics import Answers, Metric, metric

from .test_loader import rules

N = 30
IDS = [[1, 2, 1, 2]] * N
RNG = np.random.default_rng(0)
ONE = RNG.normal(size=N)
BINARY = RNG.integers(0, 2, (N, 3))
TWO = RNG.normal(37, 12, (N, 2))


@pytest.fixture(autouse=True)
def _forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_registered", {})
    metric.suited("numbers")  # imports all that are ours, which happens once
    monkeypatch.setattr(metric, "_registered", dict(metric._registered))


def prepared(tmp_path: Path, name: str = "given") -> Prepared:
    return find_or_prepare(data.configure(name), max_length=0, data_dir=tmp_path / "data")


def given(labels: Any, ids: Any = None, **more: Any) -> data.Task:
    return data.from_arrays("given", (IDS if ids is None else ids, labels), **more)()


# ---------------------------------------------------------------------- what is asked


@pytest.mark.parametrize(
    ("labels", "ids", "asked"),
    [
        ([0, 1, 2] * 10, None, ("classes", 3, False)),
        ([True, False] * 15, None, ("classes", 2, False)),
        (ONE, None, ("numbers", 1, False)),
        ([float(i) for i in range(N)], None, ("numbers", 1, False)),  # a float is a number
        (ONE[:, None], None, ("numbers", 1, False)),  # a column is a number each
        (TWO, None, ("numbers", 2, False)),
        (TWO.tolist(), None, ("numbers", 2, False)),
        (RNG.normal(size=(N, 4)), None, ("numbers", 4, False)),  # as wide as the ids
        (BINARY, None, ("labels", 3, False)),
        (BINARY.astype(bool), None, ("labels", 3, False)),
        ([[0, 1, 2, 1]] * N, None, ("classes", 3, True)),
        ([[0, 1, -100, 1]] * N, None, ("classes", 2, True)),
        ([[0, 1]] * 15 + [[0]] * 15, [[1, 2]] * 15 + [[1]] * 15, ("classes", 2, True)),
        (BINARY, [[1] * (3 + i % 2) for i in range(N)], ("labels", 3, False)),
        (BINARY, [("a", "b")] * N, ("labels", 3, False)),
    ],
)
def test_what_is_asked_follows_from_the_labels(labels: Any, ids: Any, asked: tuple[Any, ...]):
    task = given(labels, ids)
    assert (task.asks, task.classes, task.per_token) == asked


@pytest.mark.parametrize(
    ("labels", "targets", "asked"),
    [
        ([[0, 1, 1, 0]] * 29 + [[1, 0, 0, 1]], "tokens", ("classes", 2, True)),
        ([[0, 1, 1, 0]] * 29 + [[1, 0, 0, 1]], "labels", ("labels", 4, False)),
        ([[0, 1, 1, 0]] * 15 + [[1, 0, 0, 1]] * 15, "numbers", ("numbers", 4, False)),
        ([0.0, 1.0, 2.0] * 10, "classes", ("classes", 3, False)),
        ([0, 5, 9] * 10, "numbers", ("numbers", 1, False)),
        ([[1.0, 0.0, 1.0]] * N, "labels", ("labels", 3, False)),
        ([[1], [0]] * 15, "labels", ("labels", 1, False)),
    ],
)
def test_targets_says_it_where_it_is_not_clear(labels: Any, targets: str, asked: tuple[Any, ...]):
    task = given(labels, targets=targets, metrics=["rmse"] if targets == "numbers" else ())
    assert (task.asks, task.classes, task.per_token) == asked


@pytest.mark.parametrize(
    ("labels", "more", "problem"),
    [
        ([[0, 1, 1, 0]] * N, {}, r'4 ids and 4 labels, all 0 or 1: say targets="tokens" for one'),
        (ONE, {"targets": "number"}, "targets cannot be 'number'; did you mean numbers"),
        ([1.0] * N, {}, "train split all targets are 1, so that R2 says nothing: use rmse or mae"),
        ([*ONE[1:], np.nan], {}, "a target is nan, which is no finite number of 32 bits"),
        ([*ONE[1:], np.inf], {}, "a target is inf, which is no finite number of 32 bits"),
        ([*ONE[1:], 1e39], {}, r"a target is 1e\+39, which is no finite number"),
        (1.7e9 + ONE, {}, "differ too little to be told apart in 32 bits: subtract their mean"),
        (
            ONE,
            {"metrics": ["accuracy"]},
            "'accuracy' scores classes, but the task asks for numbers",
        ),
        (BINARY, {"metrics": ["rmse"]}, "'rmse' scores numbers, but the task asks for labels"),
        (ONE, {"metrics": ["rsme"]}, "there is no metric 'rsme'; did you mean rmse"),
        ([[0.5, 1]] * 15 + [[0.5]] * 15, {}, "one example has 1 targets, another one 2: give all"),
        ([[0, 1]] * 15 + [[1]] * 15, {"targets": "labels"}, "one example has 1 targets, another"),
        ([[0, 2]] * N, {"targets": "labels"}, r"rows of labels hold 0 and 1, but one is \[0 2\]"),
        ([[0, 2]] * N, {}, 'more or fewer labels than ids: .* targets="labels" or targets="numb'),
        ([[0, 1]] * N, {"targets": "tokens"}, "more or fewer labels than ids: give one per id"),
        ([[0, 1]] * N, {"targets": "classes"}, 'several classes: say targets="tokens" for one'),
        ([0.5, 1] * 15, {"targets": "classes"}, "whole numbers from 0 on, but one is 0.5"),
        ([-1, 1] * 15, {}, "whole numbers from 0 on, but one is -1"),
        ([[-7, 1, 1, 2]] * N, {}, "whole numbers from 0 on, but one is -7"),
        ([[1, 2], [[3], [4, 5]]] * 15, {}, "labels must be whole numbers .classes., other numbers"),
        (np.zeros((N, 3), int), {"metrics": ["average_precision"]}, "split no example has a label"),
        ([["a"]] * N, {}, "labels must be whole numbers"),
    ],
)
def test_what_cannot_be_targets_is_refused(labels: Any, more: dict[str, Any], problem: str):
    with pytest.raises(UserError, match=problem):
        given(labels, **more)
    assert "given" not in registry._registered


def test_pairs_have_no_label_per_id():
    with pytest.raises(UserError, match="pairs cannot have a label per id"):
        given([[0, 1]] * N, [("a", "b")] * N, targets="tokens")


def test_a_dataset_of_columns_has_targets_too(tmp_path: Path):
    """Of which a test set that is hidden has -1, and others have negative numbers."""
    columns = {"text": [f"a {i}" for i in range(N)], "label": ONE.tolist()}
    hidden = columns | {"label": [-1.0] * N}
    task = data.from_hf("given", {"train": columns, "test": hidden}, metrics=["rmse"])()
    assert (task.asks, task.metric_names) == ("numbers", ["rmse"])
    assert prepared(tmp_path).facts["splits"]["test"]["examples"] == 3
    rows = {"text": columns["text"], "label": BINARY.tolist()}
    assert data.from_hf("given", {"train": rows}, targets="labels")().asks == "labels"


def test_columns_of_a_file_are_numbers_of_an_example(tmp_path: Path):
    table = pd.DataFrame({"text": [f"a {i}" for i in range(N)], "x": ONE, "y": TWO[:, 0]})
    table.to_csv(tmp_path / "table.csv")
    tables = {"train": pd.read_csv(tmp_path / "table.csv")}
    task = data.from_hf("given", tables, label=("x", "y"))()
    assert (task.asks, task.classes) == ("numbers", 2)
    stored = np.concatenate([prepared(tmp_path).split(s).labels for s in ("train", "val", "test")])
    wanted = table[["x", "y"]].to_numpy(np.float32)
    assert np.array_equal(np.sort(stored, 0), np.sort(wanted, 0))
    with pytest.raises(UserError, match="split train has no column 'z'"):
        data.from_hf("given", tables, label=("x", "z"))


# ---------------------------------------------------------------------- what a task class says


class Mean(data.Task):
    """The mean of four ids, in a picture, stacked, or alone."""

    name = "mean"
    classes, vocab, max_length = 1, 9, 4
    asks = "numbers"
    encoding: ClassVar[dict[str, str]] = {"code": "1"}

    def label(self, ids: np.ndarray) -> Any:
        return ids.mean()

    def splits(self, options: Any, job: Any) -> Iterator[data.RawSplit]:
        rng = np.random.default_rng(0)
        for split in ("train", "val", "test"):
            rows = rng.integers(1, 9, (N, 4))
            yield data.RawSplit(split, [data.Example(x, self.label(x)) for x in rows], N)


def registered(**changes: Any) -> type[data.Task]:
    return data.register(type("Changed", (Mean,), changes))


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"asks": "number"}, "task 'mean': there is no target 'number'; did you mean numbers"),
        ({"per_token": True}, "task 'mean' asks for numbers per token: only classes can be"),
        ({"metrics": ("f1",)}, "task 'mean': metric 'f1' scores labels, but the task asks for num"),
        ({"centre": (0.0, 1.0)}, "task 'mean': centre of the targets must be one finite number"),
        ({"spread": (0.0,)}, "task 'mean': spread of the targets must be above 0"),
    ],
)
def test_a_class_that_contradicts_itself_is_refused(changes: dict[str, Any], problem: str):
    with pytest.raises(UserError, match=problem):
        registered(**changes)


@pytest.mark.parametrize(
    ("changes", "label", "problem"),
    [
        ({}, np.nan, "an example of train has the target nan, which is no finite number"),
        ({}, [1.0, 2.0], "an example of train has 2 targets; mean asks for 1"),
        ({}, "high", "an example of train has label high, which is no number"),
        ({}, 4.0, "in mean's train split all targets are 4, so that R2 says nothing"),
        ({"asks": "labels", "classes": 2}, [0, 2], "train has label 2; labels of mean are whole"),
        (
            {"asks": "labels", "classes": 2},
            [1],
            "an example of train has 1 targets; mean asks for 2",
        ),
        ({"asks": "classes", "classes": 2}, [0, 1], "train has 2 targets; mean asks for 1"),
        ({"asks": "classes", "classes": 300}, 1, "mean has more than 256 classes, the most that"),
    ],
)
def test_an_example_that_does_not_fit_leaves_nothing(
    changes: dict[str, Any], label: Any, problem: str, tmp_path: Path
):
    registered(label=lambda self, ids: label, **changes)
    with pytest.raises(UserError, match=problem):
        prepared(tmp_path, "mean")
    assert not [*(tmp_path / "data").rglob("*.npy")]


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
    from lra.data.rules import Rule, by_key, first_tokens

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
