"""Examples whose tokens are numbers: stored, read in batches, refused, learned."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import lra
from lra import data
from lra.base.config import Mask, Pad
from lra.base.errors import UserError
from lra.data.arrays import Prepared
from lra.data.device import DeviceLoader
from lra.data.loader import Loader
from lra.data.prepare import find_or_prepare, prepare
from lra.data.rules import baselines
from lra.data.verify import verify

from .test_loader import rules

FEW = {"batch": 8, "steps": 20, "every": 10, "warmup": 2}


def series(n: int = 60, channels: int = 2, *, seed: int = 0) -> tuple[list[np.ndarray], list[int]]:
    """Of different lengths; the second class has a larger first channel."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 2, n).tolist()
    rows = [rng.normal(5, 3, (rng.integers(4, 12), channels)) for _ in labels]
    for row, label in zip(rows, labels, strict=True):
        row[:, 0] += 40 * label
    return rows, labels


@pytest.fixture
def prepared(tmp_path: Path) -> Prepared:
    data.from_arrays("series_here", series(), settings=FEW)
    return prepare(data.configure("series_here"), max_length=0, data_dir=tmp_path)


def test_what_is_stored_is_what_was_given(prepared: Prepared):
    rows, labels = series()
    given = {(row.astype(np.float32).tobytes(), y) for row, y in zip(rows, labels, strict=True)}
    found = set()
    for name in ("train", "val", "test"):
        split = prepared.split(name)
        index = np.arange(len(split))
        numbers, lengths = split.ids(index), split.lengths(index)
        assert numbers.shape == (len(split), split.width, 2)
        assert numbers.dtype == np.float32
        for x, n, y in zip(numbers, lengths, split.labels, strict=True):
            found.add((np.ascontiguousarray(x[:n]).tobytes(), int(y)))
            assert not x[n:].any()
    assert found == given
    assert all(check.status in ("ok", "unknown") for check in verify(prepared.folder))


def test_they_are_scaled_by_the_training_examples(prepared: Prepared):
    split = prepared.split("train")
    index = np.arange(len(split))
    lengths = split.lengths(index)
    real = np.concatenate([x[:n] for x, n in zip(split.ids(index), lengths, strict=True)])
    scale = prepared.layout.scale
    assert scale is not None
    np.testing.assert_allclose(scale.centre, real.mean(0, dtype=np.float64), rtol=1e-6)
    np.testing.assert_allclose(scale.spread, real.std(0, dtype=np.float64), rtol=1e-6)


@pytest.mark.parametrize("pad", list(Pad))
@pytest.mark.parametrize("mask", [Mask.length, Mask.none])
def test_batches_are_padded_and_masked_by_their_lengths(prepared: Prepared, mask: Mask, pad: Pad):
    split = prepared.split("train")
    options: dict[str, Any] = {"rules": rules(mask.name, pad.name, pad_to=80), "steps": 9}
    held = DeviceLoader(split, 8, device=torch.device("cpu"), **options)
    for batch, on_device in zip(Loader(split, 8, **options), held, strict=True):
        assert batch.ids.shape == (8, 80 if pad is Pad.full else 64, 2)
        assert batch.ids.dtype == torch.float32
        assert (batch.mask is None) == (mask is Mask.none)
        if batch.mask is not None:
            assert batch.mask.shape == batch.ids.shape[:2]
            assert not batch.ids[~batch.mask].any()
            assert batch.ids[batch.mask].all()
        for ours, theirs in zip(batch, on_device, strict=True):
            assert (ours is None and theirs is None) or torch.equal(ours, theirs)


def test_id_0_is_no_padding_where_there_are_no_ids(prepared: Prepared):
    with pytest.raises(UserError, match="mask=nonzero takes id 0 for padding"):
        Loader(prepared.split("train"), 8, rules=rules("nonzero"))


@pytest.mark.parametrize(
    ("examples", "complaint"),
    [
        ([[0.5, 1.5], [np.nan, 1.0]] * 10, "has a number that is no finite one of 32"),
        ([[0.5, 1.5], [1e300, 1.0]] * 10, "no finite one of 32 bits"),
        ([[[0.5, 1.0]], [[0.5, 1.0, 2.0]]] * 10, r"must be numbers, \(tokens, 2\)"),
        ([[[0.5, 1.0]], "a text"] * 10, r"must be numbers, \(tokens, 2\)"),
        ([[[0.5, 1.0]], [[[0.5, 1.0]]]] * 10, r"must be numbers, \(tokens, 2\)"),
    ],
)
def test_numbers_that_are_refused(examples: list[Any], complaint: str):
    with pytest.raises(UserError, match=complaint):
        data.from_arrays("wrong_series", (examples, [0, 1] * 10))


def test_other_numbers_are_other_data(tmp_path: Path):
    rows, labels = series()
    prints = []
    for change in (0.0, 0.25):
        rows[3][1, 1] += change
        data.from_arrays("changed_series", (rows, labels))
        made = prepare(data.configure("changed_series"), max_length=0, data_dir=tmp_path)
        prints.append(made.fingerprint)
    assert prints[0] != prints[1]


def test_a_network_learns_them_and_predicts(tmp_path: Path):
    data.from_arrays("learned_series", series(120), settings=FEW | {"steps": 60})
    places = [f"data_dir={tmp_path / 'data'}", f"runs_dir={tmp_path / 'runs'}"]
    words = ["task=learned_series", "attention=linear", "compute=report", *places]
    words += ["protocol.recipe.lr=1e-2", "model.dropout=0"]
    run = lra.compose(words)
    assert run.protocol.style.input.name == "numbers"
    record = lra.train(run)
    assert record.score > 80
    trained = lra.load(record, data_dir=run.data_dir)
    assert trained.evaluate().digests() == {
        key: record[f"answers.{key}"] for key in trained.evaluate().digests()
    }
    rows, labels = series(20, seed=1)
    assert (trained.predict(rows).classes == labels).mean() > 0.8
    with pytest.raises(UserError, match=r"task 'learned_series' must be numbers, \(tokens, 2\)"):
        trained.predict([[1.0, 2.0]])
    with pytest.raises(UserError, match=r"reads numbers: use another pretrain"):
        lra.train(lra.compose([*words, "pretrain=masked"]))


def test_a_linear_rule_of_features(tmp_path: Path):
    """Of a difference that the mean of a channel shows, and of one that only its steps show."""
    rng = np.random.default_rng(3)
    labels = rng.integers(0, 2, 200)
    smooth = np.sort(rng.normal(size=(200, 16)), 1)
    rough = rng.permuted(smooth, axis=1)
    stepped = np.where(labels[:, None] == 1, rough, smooth)
    for name, (rows, ys) in {"by_mean": series(200), "by_steps": (stepped, labels)}.items():
        task = data.from_arrays(name, (rows, ys))
        options = data.configure(name)
        made = find_or_prepare(options, max_length=0, data_dir=tmp_path)
        scores = baselines(made, task(), None)
        assert list(scores["rules"]) == ["constant", "features"]
        assert scores["rules"]["features"]["test"] > 90
        assert scores["rules"]["constant"]["test"] < 75


def test_what_looks_for_ids_says_that_there_are_none(prepared: Prepared):
    from lra.data.hunt import hunt

    with pytest.raises(UserError, match="a hunt looks for ids"):
        hunt(prepared, data.of_facts(prepared.facts))
