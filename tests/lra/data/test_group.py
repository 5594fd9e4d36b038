"""Words in a group: their products, rules that leave a letter out, and who can be trained."""

from __future__ import annotations

from itertools import chain, combinations, permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lra
import lra.data
from lra.base.errors import UserError
from lra.cli import main
from lra.data import group, registry
from lra.data.arrays import IGNORED
from lra.data.group import GROUPS, Words
from lra.data.prepare import prepare
from lra.data.rules import baselines

SIZES = ("n_train=60", "n_val=30", "n_test=3000")
ORDERS = {"Z2": 2, "Z60": 60, "S3": 6, "S5": 120, "A5": 60}


def words(name: str, *more: str) -> Words:
    made = registry.of(lra.data.configure("group", [f"group={name}", *more]))
    assert isinstance(made, Words)
    return made


@pytest.mark.parametrize("name", GROUPS)
def test_a_group_has_an_identity_inverses_and_an_associative_product(name: str):
    made = group.group(name)
    every = np.arange(ORDERS[name])
    assert made.order == ORDERS[name] == len({*made.names})
    assert (made.product[0] == every).all()
    assert (made.product[:, 0] == every).all()
    assert (made.product[every, made.inverse] == 0).all()
    assert (np.sort(made.product, axis=0) == every[:, None]).all()
    assert (np.sort(made.product, axis=1) == every).all()
    left = made.product[made.product]  # (a b) c
    right = made.product[every[:, None, None], made.product[None]]  # a (b c)
    assert (left == right).all()
    assert (made.product == made.product.T).all() == name.startswith("Z")


def test_letters_act_one_after_another():
    """The product of two permutations moves things as the first one does, and then the second."""
    made = group.group("S3")
    for a, b in permutations(range(6), 2):
        first, second = ([int(x) for x in made.names[i]] for i in (a, b))
        both = "".join(str(second[x - 1]) for x in first)
        assert made.names[made.product[a, b]] == both


def test_without_any_letter_every_product_is_equally_likely():
    """All 60^4 words of four letters of A5: given any of their letters but not all, the product is
    uniform."""
    table = group.group("A5").product.astype(np.uint8)
    two = table.ravel()  # all words of two letters
    products = table[two[:, None], two].reshape(60, 60, 60, 60)
    places = range(4)
    for read in chain.from_iterable(combinations(places, n) for n in places):
        rest = [at for at in places if at not in read]
        rows = products.transpose(*read, *rest).reshape(60 ** len(read), -1)
        step = max(1, 10**6 // rows.shape[1])
        for start in range(0, len(rows), step):
            part = rows[start : start + step].astype(np.int64)
            counts = np.bincount((part + 60 * np.arange(len(part))[:, None]).ravel())
            assert (counts == rows.shape[1] // 60).all()
            assert len(counts) == 60 * len(part)


@pytest.mark.parametrize("name", GROUPS)
def test_labels_are_products_and_test_may_have_longer_words(name: str, tmp_path: Path):
    options = lra.data.configure("group", [f"group={name}", "length=5", "times=2", *SIZES])
    made = prepare(options, max_length=0, data_dir=tmp_path, workers=1)
    table = group.group(name).product
    seen = set()
    for split, length in (("train", 5), ("val", 5), ("test", 10)):
        part = made.split(split)
        ids = part.ids(np.arange(len(part))).astype(int)
        assert (part.lengths(np.arange(len(part))) == length).all()
        assert (ids[:, length:] == 0).all()
        assert part.labels.shape == ids.shape == (len(part), 10)
        for row, labels in zip(ids[:, :length] - 1, part.labels, strict=True):
            state, expected = 0, []
            for letter in row:
                state = table[state, letter]
                expected.append(state)
            if split != "train":
                expected[:-1] = [IGNORED] * (length - 1)
            assert labels.tolist() == expected + [IGNORED] * (10 - length)
        seen.add(ids[:20, :5].tobytes())
    assert len(seen) == 3  # each split has words of its own


@pytest.mark.parametrize(
    ("name", "bag"), [("Z2", 1), ("Z60", 1), ("S3", 1 / 3), ("S5", 1 / 60), ("A5", 1 / 60)]
)
def test_rules_score_chance_and_what_the_order_hides(name: str, bag: float, tmp_path: Path):
    options = lra.data.configure("group", [f"group={name}", *SIZES])
    made = prepare(options, max_length=0, data_dir=tmp_path, workers=1)
    rules = baselines(made, registry.of_facts(made.facts))["rules"]
    chance = 1 / ORDERS[name]
    expected = {"constant": chance, "last half of the places": chance, "letters without order": bag}
    bound = "letters without order"
    if bag < 1:
        expected["product"], bound = 1, "product"
    assert list(rules) == list(expected)
    assert [rule for rule, score in rules.items() if score.get("bound")] == [bound]
    for rule, share in expected.items():
        margin = 4 * (share * (1 - share) / 3000) ** 0.5
        assert rules[rule]["test"] / 100 == pytest.approx(share, abs=margin)
        assert "by" not in rules[rule]


def test_readers_of_a_part_know_nothing_of_the_last_product(tmp_path: Path):
    options = lra.data.configure("group", ["group=A5", "length=8", *SIZES])
    made = prepare(options, max_length=0, data_dir=tmp_path, workers=1)
    task = registry.of_facts(made.facts)
    names = [*task.readers(made.facts["options"])]
    assert len(names) == 5
    assert "last half" not in names  # which is a rule
    for score in baselines(made, task, names)["readers"].values():
        assert score["test"] / 100 == pytest.approx(1 / 60, abs=4 * (1 / 60 / 3000) ** 0.5)


def test_early_products_are_told_apart(tmp_path: Path):
    """The last half of three letters is one letter, so it says nothing from the second on; of the
    first letter it is nothing at all."""
    options = lra.data.configure("group", ["length=3", "scored=each", *SIZES])
    made = prepare(options, max_length=0, data_dir=tmp_path, workers=1)
    rules = baselines(made, registry.of_facts(made.facts))["rules"]
    assert rules["product"]["by"] == {str(at): [3000, 3000] for at in (1, 2, 3)}
    assert (made.split("test").labels != IGNORED).all()
    for right, of in rules["last half of the places"]["by"].values():
        assert right / of == pytest.approx(1 / 6, abs=0.03)


def test_the_last_half_is_read_alone():
    made = words("S5", "length=7")
    ids = np.random.default_rng(0).integers(1, 121, (50, 7))
    answers = made.of_part(ids, 2, last=True)
    other = ids.copy()
    other[:, :4] = np.roll(other[:, :4], 1, axis=0)
    assert (made.of_part(other, 2, last=True)[:, -1] == answers[:, -1]).all()
    assert (answers[:, -1] == made.of_ids(ids[:, 4:])[:, -1]).all()
    assert (answers[:, 1] == ids[:, 1] - 1).all()
    assert made.decode(np.array([1, 2, 120])) == "12345 12354 54321"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("group=S4", "group=S4 is not known; did you mean S5 or S3"),
        ("form=middle", "form=middle is not known; known: end, prefix"),
        ("scored=first", "scored=first is not known; known: each, last"),
        ("form=end scored=each", "scored=each needs form=prefix"),
    ],
)
def test_impossible_options_are_refused(options: str, message: str):
    with pytest.raises(UserError, match=message):
        lra.data.configure("group", options.split())


TINY = (
    "task=group",
    "task.length=4",
    "task.times=2",
    "task.n_train=64",
    "task.n_val=16",
    "task.n_test=16",
    "protocol=recall",
    "protocol.recipe.steps=4",
    "protocol.recipe.warmup=1",
    "protocol.recipe.batch=16",
    "protocol.evaluation.every=2",
    "model=probe",
    "model.d_model=16",
    "model.qkv_dim=16",
    "model.mlp_dim=16",
    "trainer=cpu",
    "trainer.threads=1",
    "compute=report",
)


@pytest.mark.parametrize(
    "words",
    [
        ("attention=linear",),
        ("attention=deltanet", "attention.negative=true"),
        ("attention=linformer", "task.form=end"),
    ],
)
def test_a_run_scores_one_letter_a_word(words: tuple[str, ...], tmp_path: Path):
    where = (f"data_dir={tmp_path}", f"runs_dir={tmp_path / 'runs'}")
    record = lra.train(lra.compose([*TINY, *words, *where]))
    assert record.stage["scored"] == 16
    assert record["data.width"] == 8


def test_each_place_is_told_apart_in_tables(tmp_path: Path, capsys: Any):
    where = (f"data_dir={tmp_path}", f"runs_dir={tmp_path / 'runs'}")
    lra.train(lra.compose([*TINY, *where, "task.scored=each", "attention=linear"]))
    capsys.readouterr()
    words = ["table", "--runs", str(tmp_path / "runs"), "--rungs", "--notes", "--format", "md"]
    assert main(words) == 0
    out = capsys.readouterr().out
    assert "## By place" in out
    assert "| row | place 1 | place 2 | 3 to 4 | 5 to 7 | last place |" in out
    assert "| examples | 16 | 16 | 16 | 16 | 16 |" in out


def test_by_prefix_an_attention_needs_a_causal_form(tmp_path: Path):
    where = (f"data_dir={tmp_path}", f"runs_dir={tmp_path / 'runs'}")
    with pytest.raises(UserError, match="no token of this task may see those behind it"):
        lra.train(lra.compose([*TINY, *where, "attention=linformer"]))
