"""The probes beside recall: their examples are what they claim, and the bound is Bayes' rule."""

from __future__ import annotations

from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import norm

import lra.data
from lra.base.errors import UserError
from lra.data import registry
from lra.data.arrays import IGNORED, SPLITS, Prepared
from lra.data.prepare import prepare
from lra.data.rules import baselines
from lra.data.single import MARGIN, Single, mark_weights
from tests.lra.data.kit import differences

THREE = partial(product, repeat=3)
SMALL = ("n_train=40", "n_val=20", "n_test=20")


def prepared(tmp_path: Path, task: str, *words: str) -> Prepared:
    options = lra.data.configure(task, [*SMALL, *words])
    return prepare(options, max_length=0, data_dir=tmp_path, workers=1)


def single(*words: str) -> tuple[Single, Any]:
    options = lra.data.configure("single", list(words))
    task = registry.of(options)
    assert isinstance(task, Single)
    return task, options


def test_bayes_rule_scores_what_the_enumerated_posterior_scores() -> None:
    task, _ = single("tokens=3", "questions=1", "marks=4", "values=2", "strength=3")
    noise, marked = mark_weights(4, 3)
    inputs = np.array([(*m, *v) for m in THREE(range(4)) for v in THREE(range(2))])
    marks, values = inputs[:, None, :3], inputs[:, 3:]
    at_place = np.eye(3, dtype=bool)  # of each input, its probability if token 0, 1 or 2 is asked
    of_each = np.where(at_place, (marked / marked.sum())[marks], (noise / noise.sum())[marks])
    joint = of_each.prod(axis=-1) / 3 / 2**3
    answers = np.stack([(joint * (values == v)).sum(axis=1) for v in range(2)], axis=1)
    assert answers.sum() == pytest.approx(1)
    best = answers.max(axis=1).sum()
    slots = np.stack([3 + marks[:, 0], 7 + values], axis=-1).reshape(-1, 6)
    ids = np.pad(slots, ((0, 0), (0, 2)), constant_values=[[0, 0], [0, 1]])
    ids[:, -1] = 2
    rule = task.heaviest(ids, marked / noise)[:, -1]
    assert answers[np.arange(len(ids)), rule].sum() == pytest.approx(best)


def test_marks_are_drawn_as_the_theory_says() -> None:
    """With as many values as this, the label says which token is asked."""
    task, options = single("tokens=4", "questions=2", "values=20000", "strength=4")
    x = np.linspace(-MARGIN, 2 + MARGIN, 64)
    for weights, mean in zip(mark_weights(64, 4), (0, 2), strict=True):
        wanted = norm.pdf(x, mean)
        np.testing.assert_allclose(weights / weights.sum(), wanted / wanted.sum(), atol=1e-9)
    ids, labels = task.block(options, 0)
    slots = ids.reshape(len(ids), 6, 3).astype(int)
    assert (slots[:, 4:] == [[1, 1, 2], [1, 1, 3]]).all()
    for question in range(2):
        marks = x[slots[:, :4, question] - 4 - 64 * question]
        asked = slots[:, :4, 2] - (4 + 2 * 64) == labels[:, [4 + question]]
        assert abs(marks[asked].mean() - 2) < 0.15 > abs(marks[~asked].mean())
        assert asked.mean(axis=0) == pytest.approx(0.25, abs=0.06)  # at no place more often
    assert (labels[:, :4] == IGNORED).all()


def test_the_bound_is_above_every_rule(tmp_path: Path) -> None:
    made = prepared(tmp_path, "single", "n_test=2000", "n_val=500")
    rules = baselines(made, registry.of_facts(made.facts))["rules"]
    scores = [rule["test"] for rule in rules.values()]
    assert list(rules) == ["constant", "most frequent value", "linear weights", "Bayes"]
    assert scores == sorted(scores)
    assert [name for name, rule in rules.items() if rule.get("bound")] == ["Bayes"]
    assert not differences(made.folder)


@pytest.mark.parametrize("form", ["stacked", "interleaved"])
def test_a_fuzzy_label_is_the_value_of_the_whole_key(form: str, tmp_path: Path) -> None:
    words = ("pairs=6", "queries=4", "filler=2", "keys=3", "size=2", "values=5")
    made = prepared(tmp_path, "fuzzy", *words, f"form={form}")
    for split in map(made.split, SPLITS):
        index = np.arange(len(split))
        for ids, labels in zip(split.ids(index), split.labels[index], strict=True):
            slots = ids.reshape(12, 3).tolist()
            table = {tuple(key): value - 8 for *key, value in slots[:6]}
            assert len(table) == 6
            assert all(a in range(2, 5) and b in range(5, 8) for a, b in table)
            wanted = [table[tuple(k)] if v == 1 else IGNORED for *k, v in slots]
            assert (labels.reshape(12, -1)[:, 0] == wanted).all()
            assert (labels != IGNORED).sum() == 4


def test_one_table_holds_for_all_examples_to_be_memorised(tmp_path: Path) -> None:
    made, table = prepared(tmp_path, "memorise", "keys=30", "values=7", "asked=8"), {}
    for split in map(made.split, SPLITS):
        index = np.arange(len(split))
        ids, labels = split.ids(index), split.labels[index]
        assert (ids[:, 1::2] == 1).all()
        assert (labels[:, ::2] == IGNORED).all()
        for key, label in zip(ids[:, ::2].ravel(), labels[:, 1::2].ravel(), strict=True):
            assert table.setdefault(int(key), label) == label
    assert sorted(table) == list(range(2, 32))
    assert baselines(made, registry.of_facts(made.facts))["rules"]["table"]["test"] == 100


@pytest.mark.parametrize(
    ("task", "words", "message"),
    [
        ("single", "strength=-1", "strength=-1.0 is out of range"),
        ("single", "strength=nan", "strength=nan is out of range"),
        ("fuzzy", "keys=100 size=3", "size=3 tokens of keys=100 make more than"),
        ("fuzzy", "keys=2 size=3 pairs=9", "needs as many different keys, not keys=8"),
    ],
)
def test_impossible_options_are_refused(task: str, words: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        lra.data.configure(task, words.split())
