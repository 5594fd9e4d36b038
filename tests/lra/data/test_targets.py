"""Targets that are numbers or several labels: what is inferred from labels, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from lra import data
from lra.base.errors import UserError
from lra.data import registry

from .targets import BINARY, ONE, RNG, TWO, N, forget, given, prepared, registered


@pytest.fixture(autouse=True)
def _forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    forget(monkeypatch)


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
        (1.7e9 + ONE, {}, "differ too little for numbers of 32 bits: subtract their mean"),
        (
            ONE,
            {"metrics": ["accuracy"]},
            "'accuracy' scores classes, but the task asks for numbers",
        ),
        (BINARY, {"metrics": ["rmse"]}, "'rmse' scores numbers, but the task asks for labels"),
        (ONE, {"metrics": "rmse"}, r"metrics are a list: give \['rmse'\]"),
        (ONE, {"metrics": [lambda answers: 0]}, "metric '<lambda>' lacks name, title, targets"),
        (ONE, {"metrics": ["rsme"]}, "there is no metric 'rsme'; did you mean rmse"),
        ([[0.5, 1]] * 15 + [[0.5]] * 15, {}, "one example has 1 targets, another one 2: give all"),
        ([[0, 1]] * 15 + [[1]] * 15, {"targets": "labels"}, "one example has 1 targets, another"),
        ([[0, 2]] * N, {"targets": "labels"}, r"a place for each label, but one is \[0 2\]"),
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
    assert "given" not in registry.TASKS.added


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
