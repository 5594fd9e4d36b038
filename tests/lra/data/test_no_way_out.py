"""Chains, overwritten keys and pictures: labels are what they claim, and the premises of the proofs
that nothing less will do hold in what is drawn."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import chi2_contingency, chisquare

import lra.data
from lra.base.errors import UserError
from lra.data import registry
from lra.data.arrays import IGNORED, SPLITS, Prepared
from lra.data.forgetting import latest_odds
from lra.data.prepare import prepare
from lra.data.recall import largest_share
from lra.data.rules import baselines
from tests.lra.data.kit import differences

SMALL = ("n_train=40", "n_val=20", "n_test=20")
HOPS = ("hops=3", "chains=4", "keys=15", "values=5")
FORGETTING = ("asked=3", "writes=3", "others=2", "keys=9", "values=7")
SPATIAL = ("rows=4", "columns=5", "down=1", "right=3", "asked=6", "colours=3")
WHOLE = 6 * 5 * 4 / (12 * 11 * 10)  # a chain of three pairs is in the last six of twelve
IN_HALF = latest_odds(3, 3, 2)[8:].sum()  # a latest write is in the last seven of fifteen
SURE = 1e-4  # a premise is refuted below this probability; the seeds are fixed


def prepared(tmp_path: Path, task: str, *words: str) -> Prepared:
    options = lra.data.configure(task, [*SMALL, *words])
    return prepare(options, max_length=0, data_dir=tmp_path, workers=1)


def questions(made: Prepared) -> Iterator[tuple[str, list[int], list[int]]]:
    for name in SPLITS:
        split = made.split(name)
        index = np.arange(len(split))
        for ids, labels in zip(split.ids(index).tolist(), split.labels[index], strict=True):
            yield name, ids, labels.tolist()


def drawn(task: str, *words: str, blocks: int = 20) -> tuple[np.ndarray, np.ndarray]:
    options = lra.data.configure(task, [*words, "seed=7"])
    made = [registry.of(options).block(options, i) for i in range(blocks)]  # type: ignore[attr-defined]
    ids, labels = map(np.concatenate, zip(*made, strict=True))
    return ids.astype(np.int64), labels


def one_question(labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """One random question of each example, its place and its label: they are independent."""
    noise = np.random.default_rng(1).random(labels.shape)
    at = np.where(labels == IGNORED, -1, noise).argmax(axis=1)
    return at, labels[np.arange(len(labels)), at]


def dependence(a: np.ndarray, b: np.ndarray) -> float:
    """The probability of such a table if a and b are independent."""
    counts = np.zeros((a.max() + 1, b.max() + 1))
    np.add.at(counts, (a, b), 1)
    counts = counts[counts.sum(axis=1) > 0][:, counts.sum(axis=0) > 0]
    return float(chi2_contingency(counts).pvalue)


def uneven(a: np.ndarray, bins: int) -> float:
    return float(chisquare(np.bincount(a, minlength=bins)).pvalue)


# ---------------------------------------------------------------------- labels


def test_a_chain_is_followed_to_its_end(tmp_path: Path) -> None:
    made, asked_in_train = prepared(tmp_path, "hops", *HOPS), set()
    for name, ids, labels in questions(made):
        slots = list(zip(ids[::2], ids[1::2], strict=True))
        leads, rest = dict(slots[:12]), slots[12:]
        assert len(leads) == 12
        assert labels[:12] == [IGNORED] * 12
        assert all(2 <= key < 17 <= end < 37 for key, end in leads.items())
        assert len({key for key, _ in rest}) == 4
        for (key, empty), label in zip(rest, labels[12:], strict=True):
            assert empty == 1
            hops = 1
            while leads[key] < 32:
                key, hops = leads[key] - 15, hops + 1
            assert leads[key] - 32 == label
            if name == "train":
                asked_in_train.add(hops)
            else:
                assert hops == 3
    assert asked_in_train == {1, 2, 3}
    without = prepared(tmp_path, "hops", *HOPS, "practice=false")
    examples = [tuple(ids) for _, ids, _ in questions(without)]
    assert len(set(examples)) == len(examples) == 80  # val and test are not those of train again


def test_the_latest_write_counts(tmp_path: Path) -> None:
    for _, ids, labels in questions(prepared(tmp_path, "forgetting", *FORGETTING)):
        slots = list(zip(ids[::2], ids[1::2], strict=True))
        writes, rest = slots[:15], slots[15:]
        keys = [key for key, _ in writes]
        assert labels[:15] == [IGNORED] * 15
        assert len({key for key, _ in rest}) == 3
        for (key, empty), label in zip(rest, labels[15:], strict=True):
            assert empty == 1
            assert keys.count(key) == 3
            assert dict(writes)[key] - 11 == label  # a dict keeps the latest
        assert sorted(keys.count(k) for k in {*keys} - {k for k, _ in rest}) == [2, 2, 2]


def test_a_cell_asks_for_the_one_in_its_direction(tmp_path: Path) -> None:
    signs = {1: (1, 1), 2: (-1, -1), 3: (1, -1), 4: (-1, 1)}
    for _, ids, labels in questions(prepared(tmp_path, "spatial", *SPATIAL)):
        assert sum(label != IGNORED for label in labels) == 6
        for at, (cell, label) in enumerate(zip(ids, labels, strict=True)):
            mark = (cell - 1) // 3
            assert (mark > 0) == (label != IGNORED)
            if mark:
                down, right = signs[mark]
                other = (at // 5 + down) % 4 * 5 + (at % 5 + 3 * right) % 5
                assert (ids[other] - 1) % 3 == label


# ---------------------------------------------------------------------- rules


def test_the_largest_share_is_that_of_all_sequences() -> None:
    for draws, values in product((1, 2, 5), (2, 3, 6)):
        every = product(range(values), repeat=draws)
        most = [max(map(s.count, s)) for s in every]
        assert largest_share(draws, values) == pytest.approx(np.mean(most) / draws, abs=1e-12)


@pytest.mark.parametrize(
    ("task", "words", "expected"),
    [
        (
            "hops",
            HOPS,
            {
                "most frequent value": largest_share(4, 5),
                "last half of the places, else most frequent": WHOLE
                + (1 - WHOLE) * largest_share(4, 5),
                "chain": 1,
            },
        ),
        (
            "forgetting",
            FORGETTING,
            {
                "most frequent value": None,
                "value by place": None,
                "most frequent value of the key": largest_share(3, 7),
                "last half of the places": IN_HALF + (1 - IN_HALF) / 7,
                "latest value": 1,
            },
        ),
        (
            "spatial",
            SPATIAL,
            {
                "most frequent other colour": largest_share(19, 3),
                "one distance": 3 / 5 + 2 / 5 / 3,
                # Of columns 0, 1, 2 and 3, 4 only column 2 needs the other distance, to the right.
                "one distance in each half": 9 / 10 + 1 / 10 / 3,
                "cell": 1,
            },
        ),
    ],
)
def test_rules_score_what_the_formulas_say(
    task: str, words: tuple[str, ...], expected: dict[str, float | None], tmp_path: Path
) -> None:
    made = prepared(tmp_path, task, *words, "n_test=4000")
    rules = baselines(made, registry.of_facts(made.facts))["rules"]
    assert list(rules) == ["constant", *expected]  # readers are no rules
    assert [name for name, rule in rules.items() if rule.get("bound")] == [list(expected)[-1]]
    scores = [rule["test"] for rule in rules.values()]
    assert scores == sorted(scores)
    for name, share in expected.items():
        if share is not None:  # four standard deviations of 4,000 answers or more
            margin = 4 * (share * (1 - share) / 4000) ** 0.5
            assert rules[name]["test"] / 100 == pytest.approx(share, abs=margin)
    assert not differences(made.folder)


@pytest.mark.parametrize(("task", "words"), [("hops", HOPS), ("forgetting", FORGETTING)])
def test_the_last_half_is_read_without_the_first(task: str, words: tuple[str, ...]) -> None:
    """Of hops its values count too, wherever they are: other keys lead to them here."""
    options = lra.data.configure(task, [*words])
    made = registry.of(options)
    read = made.follow_part if task == "hops" else made.latest_of_part  # type: ignore[attr-defined]
    answers = partial(read, quarters=2, last=True)
    ids, labels = drawn(task, *words, blocks=1)
    pairs, asked = int((labels[0] == IGNORED).sum()), labels != IGNORED
    first, last = slice(0, pairs + pairs % 2, 2), slice(pairs + pairs % 2, 2 * pairs)
    for changed, axis, same in ((first, 1, True), (last, 0, False)):
        other = ids.copy()
        other[:, changed] = np.roll(other[:, changed], 1, axis=axis)
        assert (answers(other)[asked] == answers(ids)[asked]).all() == same


@pytest.mark.parametrize(
    ("task", "words", "pairs"),
    [
        ("recall", ("pairs=16", "keys=32"), 16),
        ("recall", ("pairs=16", "keys=32", "form=interleaved", "filler=5"), 16),
        ("hops", HOPS, 12),
        ("forgetting", FORGETTING, 15),
    ],
)
def test_readers_of_a_part_score_what_they_can_know(
    task: str, words: tuple[str, ...], pairs: int, tmp_path: Path
) -> None:
    made = prepared(tmp_path, task, *words, "n_test=3000")
    of = registry.of_facts(made.facts)
    readers = baselines(made, of, [*of.readers(made.facts["options"])])["readers"]
    assert len(readers) == (6 if task == "recall" else 5)
    for name, score in readers.items():
        end, words_of = name.split(" ", 1)
        kept = pairs * {"quarter": 1, "half": 2, "three quarters": 3}[words_of] // 4
        if task == "recall":
            share = kept / pairs
            least, most = share, share + (1 - share) * 0.25  # and the usual value elsewhere
        elif task == "hops":
            share = float(np.prod([(kept - i) / (12 - i) for i in range(3)]))
            least = most = share + (1 - share) * largest_share(4, 5)
        else:
            odds = latest_odds(3, 3, 2)
            least = odds[-kept:].sum() if end == "last" else 0
            most = 1 if end == "first" else least + (1 - least) / 7
            least = most if end == "last" else least
        margin = 4 * 0.5 / 3000**0.5
        assert least - margin < score["test"] / 100 < most + margin, name


# ---------------------------------------------------------------------- premises of the proofs


def test_fewer_hops_and_places_say_nothing_about_a_chain() -> None:
    ids, labels = drawn("hops", *HOPS)
    at, label = one_question(labels)
    row, slots = np.arange(len(ids)), ids.reshape(len(ids), -1, 2)
    asked = key = slots[row, at, 0]
    for _ in range(2):  # the slot of each pair is found by its key
        place = (slots[:, :12, 0] == key[:, None]).argmax(axis=1)
        assert dependence(slots[row, place, 1], label) > SURE  # what this hop leads to
        key = slots[row, place, 1] - 15
    place = (slots[:, :12, 0] == key[:, None]).argmax(axis=1)
    assert (slots[row, place, 1] - 32 == label).all()
    assert uneven(label, 5) > SURE
    assert uneven(place, 12) > SURE
    assert dependence(asked, label) > SURE
    first = (slots[:, :12, 0] == asked[:, None]).argmax(axis=1)
    assert dependence(first, place) < SURE  # two pairs are at two places, which is noticed
    assert dependence(place, at) > SURE
    values = np.sort(slots[:, :12, 1], axis=1)[:, -4:]  # as a rule without order sees them
    distinct = (np.diff(values, axis=1) > 0).all(axis=1)
    rank = (values < label[:, None] + 32).sum(axis=1)[distinct]
    assert uneven(rank, 4) > SURE  # which of the chains' values is asked


def test_without_order_each_write_may_be_the_latest() -> None:
    ids, labels = drawn("forgetting", *FORGETTING)
    at, label = one_question(labels)
    row, slots = np.arange(len(ids)), ids.reshape(len(ids), -1, 2)
    own = slots[:, :15, 0] == slots[row, at, 0][:, None]
    places = np.nonzero(own)[1].reshape(len(ids), 3)
    values = slots[row[:, None], places, 1] - 11
    assert (values[:, -1] == label).all()
    odds = latest_odds(3, 3, 2)
    assert odds.sum() == pytest.approx(1)
    assert odds.max() < 1 / 9 + 1e-9  # the bound of the proof
    seen = np.bincount(places[:, -1], minlength=15)[2:]
    assert chisquare(seen, odds[2:] * len(ids)).pvalue > SURE
    ranks = values.argsort(axis=1).argsort(axis=1)[:, -1]
    distinct = (np.diff(np.sort(values, axis=1), axis=1) > 0).all(axis=1)
    assert uneven(ranks[distinct], 3) > SURE
    for less in (values[:, 0], values[:, 1], places[:, -1], slots[row, at, 0], slots[:, 14, 0]):
        assert dependence(less, label) > SURE
    last = slots[:, 14, 1] - 11  # the last write of all is the answer as often as the odds say
    share = odds[14] + (1 - odds[14]) / 7
    assert (last == label).mean() == pytest.approx(share, abs=4 * (0.25 / len(ids)) ** 0.5)


def test_one_row_or_column_says_nothing_about_a_cell() -> None:
    ids, labels = drawn("spatial", *SPATIAL)
    at, label = one_question(labels)
    row, (marks, colours) = np.arange(len(ids)), np.divmod(ids - 1, 3)
    mark = marks[row, at] - 1
    v, h = np.array([(1, 1), (-1, -1), (1, -1), (-1, 1)])[mark].T
    down, right = (at // 5 + v) % 4, (at % 5 + 3 * h) % 5
    assert (colours[row, down * 5 + right] == label).all()
    assert uneven(down * 5 + right, 20) > SURE  # no cell is the right one more often
    assert uneven(mark, 4) > SURE
    same_row, same_column = at // 5 * 5 + right, down * 5 + at % 5
    for place in (at, same_row, same_column, np.zeros_like(at), np.full_like(at, 19)):
        elsewhere = place != down * 5 + right
        assert dependence(colours[row, place][elsewhere], label[elsewhere]) > SURE
    whole_row = (colours.reshape(-1, 4, 5)[row, at // 5] * 3 ** np.arange(5)).sum(axis=1)
    assert dependence(whole_row, label) > SURE
    whole_column = (colours.reshape(-1, 4, 5)[row, :, at % 5] * 3 ** np.arange(4)).sum(axis=1)
    assert dependence(whole_column, label) > SURE


@pytest.mark.parametrize(
    ("task", "words", "message"),
    [
        ("hops", "chains=40", "hops=2 times chains=40 needs as many different keys, not keys=64"),
        ("forgetting", "asked=40", "asked=40 needs twice as many different keys, not keys=64"),
        ("spatial", "down=8", "down=8 is not below rows=8"),
        ("spatial", "right=9", "right=9 is not below columns=8"),
        ("spatial", "directions=5", "directions=5 is above 4"),
        ("spatial", "asked=65", "asked=65 is above the number of cells"),
    ],
)
def test_impossible_options_are_refused(task: str, words: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        lra.data.configure(task, words.split())
