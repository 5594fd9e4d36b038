"""Recall: what is asked was given, the answer is at the right token and nowhere in sight."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import lra.data
from lra.base.disk import read_json
from lra.base.errors import UserError
from lra.data import mqar, registry
from lra.data.arrays import IGNORED, SPLITS, Prepared
from lra.data.loader import Loader
from lra.data.prepare import find_or_prepare
from lra.results import audit
from lra.results import record as records
from lra.settings.compose import Run, compose
from lra.training.run import build
from tests.lra.data.kit import differences

from ..synthetic import selected

KEYS, VALUES, PAIRS, QUERIES, FILLER = 9, 5, 6, 4, 3
WORDS = (
    f"pairs={PAIRS}",
    f"queries={QUERIES}",
    f"filler={FILLER}",
    f"keys={KEYS}",
    f"values={VALUES}",
    "n_train=40",
    "n_val=20",
    "n_test=20",
)
KEY, VALUE = range(2, 2 + KEYS), range(2 + KEYS, 2 + KEYS + VALUES)  # ids; 1 is an empty place


def prepared(tmp_path: Path, *words: str) -> Prepared:
    options = lra.data.configure("recall", [*WORDS, *words])
    return find_or_prepare(options, max_length=0, data_dir=tmp_path)


@pytest.mark.parametrize("form", ["stacked", "interleaved"])
def test_every_label_is_the_value_of_the_key_at_its_token(form: str, tmp_path: Path) -> None:
    made = prepared(tmp_path, f"form={form}")
    per_slot = 1 if form == "stacked" else 2
    orders = set()
    for split in map(made.split, SPLITS):
        index = np.arange(len(split))
        for ids, labels in zip(split.ids(index).tolist(), split.labels[index], strict=True):
            slots = list(zip(ids[::2], ids[1::2], strict=True))
            given, rest = dict(slots[:PAIRS]), slots[PAIRS:]
            assert len(given) == PAIRS  # no key is given twice
            assert all(k in KEY and v in VALUE for k, v in given.items())
            asked = [key for key, value in rest if value == 1]
            assert len(set(asked)) == len(asked) == QUERIES
            assert all(key == 1 and value in VALUE for key, value in rest if value != 1)
            expected = [IGNORED] * (len(slots) * per_slot)
            for at, (key, value) in enumerate(slots):
                if value == 1:
                    expected[at * per_slot] = given[key] - VALUE[0]
            assert labels.tolist() == expected
            orders.add(tuple(list(given).index(key) for key in asked))
    assert len(orders) > 50  # neither which keys are asked nor their order is a habit
    assert sorted(set().union(*orders)) == list(range(PAIRS))
    assert not differences(made.folder)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("pairs=10", "pairs=10 needs as many different keys, not keys=9"),
        ("queries=7", "queries=7 is not between 1 and pairs=6"),
        ("values=1", "values=1 is out of range: it must be at least 2"),
        ("form=stack", "form=stack is not known"),
        ("pairs=1 queries=1 keys=8 values=2 filler=0", "only 16 exist"),
        ("filler=65533", "filler=65533 is above 65,532"),
    ],
)
def test_an_ill_posed_task_is_refused(words: str, message: str) -> None:
    with pytest.raises(UserError) as refused:
        lra.data.configure("recall", [*WORDS, *words.split()])
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


# ---------------------------------------------------------------------- zoology's

ZOOLOGY = json.loads((Path(__file__).parent / "golden/zoology.json").read_text(encoding="utf-8"))
THEIRS = ("source=zoology", "form=interleaved", "keys=9", "values=10", "pairs=3", "filler=2")


def sha256(array: np.ndarray) -> str:
    return hashlib.sha256(np.ascontiguousarray(array.astype("<i8")).tobytes()).hexdigest()


@pytest.mark.parametrize("case", ZOOLOGY["cases"], ids=lambda case: f"seed {case['seed']}")
def test_the_numbers_are_those_of_zoology_s_own_code(case: dict[str, Any]) -> None:
    keys, n, pairs = case["vocab_size"] // 2 - 1, case["input_seq_len"], case["num_kv_pairs"]
    sizes = mqar.Sizes(pairs, n // 2 - pairs, keys, keys + 1, case["power_a"])
    ids, labels = mqar.draw(sizes, case["seed"], case["num_examples"])
    theirs = np.where(labels == IGNORED, -100, labels + keys + 1)  # the id of the value
    if "inputs" in case:
        assert ids.tolist() == case["inputs"]
        assert theirs.tolist() == case["labels"]
    else:
        assert (sha256(ids), sha256(theirs)) == (case["inputs_sha256"], case["labels_sha256"])


def test_each_split_has_the_seed_that_zoology_gives_it(tmp_path: Path) -> None:
    """The task stores what is drawn, with the numbers of an id in its vocabulary."""
    train, test = ZOOLOGY["seeds_of_123"]
    assert mqar.seeds(123).items() >= {"train": train, "test": test}.items()
    sizes = ("n_train=30", "n_val=20", "n_test=20")
    options = lra.data.configure("recall", [*THEIRS, "seed=123", *sizes])
    made = find_or_prepare(options, max_length=0, data_dir=tmp_path)
    task = registry.of(options)
    assert task.vocab == 20
    for name, seed in mqar.seeds(123).items():
        split = made.split(name)
        ids, labels = mqar.draw(mqar.Sizes(3, 5, 9, 10), seed, len(split))
        index = np.arange(len(split))
        assert np.array_equal(split.ids(index), ids)
        assert np.array_equal(split.labels[index], labels)
    assert task.decode(np.array([3, 18, 5, 14, 5, 0, 0, 0])) == "k2=v8 k4=v4 k4? -"
    assert not differences(made.folder)
    rules = task.readers(made.facts["options"])
    assert rules  # they read these ids too
    everything = task.of_part(split.ids(index), 4, last=False)
    asked = split.labels[index] != IGNORED
    assert np.array_equal(everything[asked], split.labels[index][asked])
    half = task.of_part(split.ids(index), 2, last=True)
    assert 0 < (half[asked] == split.labels[index][asked]).mean() < 1


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("form=stacked", "source=zoology is form=interleaved"),
        ("values=9", "source=zoology has one value more than keys: values=10"),
        ("power=0", "source=zoology has a power above 0 and at most 1, not power=0"),
        ("seed=4294967296", "source=zoology takes a seed below 2^32"),
        ("pairs=10", "pairs=10 needs as many different keys, not keys=9"),
        ("queries=2", "queries is read by source=generated only"),
    ],
)
def test_what_zoology_does_not_know_is_refused(word: str, message: str) -> None:
    with pytest.raises(UserError) as refused:
        lra.data.configure("recall", [*THEIRS, word])
    assert message in str(refused.value)


# ---------------------------------------------------------------------- training


def run_of(tmp_path: Path, *words: str) -> Run:
    where = (f"data_dir={tmp_path / 'data'}", f"runs_dir={tmp_path / 'runs'}")
    return compose(["experiment=recall", "trainer=cpu", "compute=off", *where, *words])


SMALL = tuple(
    f"task.{word}"
    for word in ("pairs=4", "keys=8", "values=4", "n_train=2000", "n_val=50", "n_test=50")
)


def test_softmax_recalls_where_a_mean_over_tokens_cannot(tmp_path: Path) -> None:
    """A target at a wrong token, or a value in sight of its question, would end one of the two."""
    words = ("protocol.recipe.steps=150", "protocol.evaluation.every=50")
    scores = {
        name: lra.train(run_of(tmp_path, *SMALL, *words, f"attention={name}")).score / 100
        for name in ("softmax", "uniform")
    }
    assert scores["softmax"] > 0.99
    assert scores["uniform"] < 0.6  # the most frequent of four values, better than 0.25
    for record in map(read_json, (tmp_path / "runs").rglob("result.json")):
        assert selected(record)["examples"] == 50
        assert selected(record)["scored"] == sum(selected(record)["predicted"]) == 50 * 4
    found = records.load_records([tmp_path / "runs"])
    assert audit.check_records(found, tmp_path / "data", reevaluate=True) == {audit.PROVEN: 2}


@pytest.mark.parametrize("form", ["stacked", "interleaved"])
def test_padding_is_neither_seen_nor_scored(form: str, tmp_path: Path) -> None:
    words = (*SMALL, f"task.form={form}", "protocol.data.mask=length", "attention=softmax")
    losses = []
    for pad_to in (16, 40):
        run = run_of(tmp_path, *words, f"protocol.data.pad_to={pad_to}")
        made = find_or_prepare(run.task, max_length=16, data_dir=run.data_dir)
        batch = Loader(made.split("val"), 8, rules=run.protocol.data).batch(np.arange(8))
        module = build(run)
        tokens = pad_to // (2 if form == "stacked" else 1)
        assert batch.labels.shape == (8, tokens)
        assert (batch.labels != IGNORED).sum() == 8 * 4
        losses.append(module.training_step(batch, 0))
        assert module.network(batch.ids, batch.mask).shape == (8, tokens, 4)
    if form == "stacked":  # the other has positions, whose table would be drawn anew
        torch.testing.assert_close(*losses, rtol=1e-5, atol=1e-6)
