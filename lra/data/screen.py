"""Which single tokens, and which two, say something of a label, among all places of an example?

All are looked at on some of the training answers, by the mutual information of a token and the
label above what chance gives; tables of the best are then fitted to all of them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from lra.data.learners import Fitted, Problem, best_table
from lra.data.views import (
    Asked,
    Seen,
    View,
    around,
    columns,
    first,
    last,
    seen,
    tokens,
    vocabulary_of,
)

Read = Callable[[Seen], np.ndarray]  # ids (B, columns)
ROWS, MOST_IDS = 8192, 2**25  # answers that are looked at, and their ids
FARTHEST = 512  # tokens before and behind the one that is asked about
KEPT = 64  # places, or pairs of them, of which tables are made
MOST_PAIRS = 2**17  # that are looked at; of more places only the best are paired
BUCKETS = 16  # codes of ids and of labels in pairs: the most frequent ones, and the others
MARKERS = 64  # ids that may mark the token behind them
BINS = 4  # of a number that is asked


class Column(NamedTuple):
    name: str
    read: Read  # (B, 1)
    tokens: int = 1  # that it reads


def _read(problem: Problem, found: Sequence[Column]) -> list[np.ndarray]:
    view = View("", tokens(*(one.read for one in found)))
    return [columns(part, view)[0] for part in problem.parts]


def _of_screened(problem: Problem, found: Sequence[Column]) -> Fitted | None:
    if not found:
        return None
    fitted = best_table(problem, [one.name for one in found], _read(problem, found), 1)
    tokens = {one.name: one.tokens for one in found}
    return fitted and fitted._replace(tokens=tokens[fitted.reads])


def at_any_place(problem: Problem) -> Fitted | None:
    return _of_screened(problem, best_places(problem))


def behind_a_marker(problem: Problem) -> Fitted | None:
    return _of_screened(problem, best_markers(problem))


def at_two_places(problem: Problem) -> Fitted | None:
    pairs = best_pairs(problem)
    singles = [*dict.fromkeys(itertools.chain(*pairs))]
    if not pairs:
        return None
    at = {one: i for i, one in enumerate(singles)}
    among = [(at[one], at[other]) for one, other in pairs]
    names = [one.name for one in singles]
    return best_table(problem, names, _read(problem, singles), 2, among)


def best_places(problem: Problem) -> list[Column]:
    """Give the places that say most."""
    few = some(problem.train)
    labels, sizes = codes_of_labels(problem, few)
    found = []
    for places, ids in _families(problem.train, few):
        gains = [_gain(ids[:, i], labels, sizes) for i in range(ids.shape[1])]
        found += [*zip(gains, places, strict=True)]
        if not problem.in_time():
            break
    return _best(found)


def best_pairs(problem: Problem) -> list[tuple[Column, Column]]:
    """Give the pairs of places that say most together. Of more than some hundred places only those
    are paired that say most by themselves: two that say nothing alone are then missed."""
    few = some(problem.train)
    labels, _ = codes_of_labels(problem, few, BUCKETS)
    families = [*_families(problem.train, few)]
    places = [column for names, _ in families for column in names]
    ids = np.hstack([part for _, part in families])
    most = int((2 * MOST_PAIRS) ** 0.5)
    if len(places) > most:
        full, sizes = codes_of_labels(problem, few)
        alone = [_gain(ids[:, i], full, sizes) for i in range(ids.shape[1])]
        kept = np.sort(np.argsort(alone, kind="stable")[::-1][:most])
        places, ids = [places[i] for i in kept], ids[:, kept]
    codes = np.stack([_buckets(ids[:, i]) for i in range(ids.shape[1])], axis=1)
    found = []
    for a in range(len(places) - 1):
        gains = _pair_gains(codes[:, a], codes[:, a + 1 :], labels[:, 0])
        found += [(gain, (a, a + 1 + b)) for b, gain in enumerate(gains)]
        found = sorted(found, key=lambda one: -one[0])[:KEPT]
        if not problem.in_time():
            break
    return [(places[a], places[b]) for _, (a, b) in found]


def best_markers(problem: Problem) -> list[Column]:
    """Give the tokens behind the first, and behind the last, place of an id that say most."""
    train, few = problem.train, some(problem.train)
    if train.split.layout.stack > 1 or train.split.layout.dual or train.split.layout.grid:
        return []
    labels, sizes = codes_of_labels(problem, few)
    count = np.zeros(train.split.layout.vocab, np.int64)
    for block in seen(few):
        count += np.bincount(block.ids[block.real].ravel(), minlength=len(count))
    count[0] = 0
    markers = np.argsort(-count, kind="stable")[: min(MARKERS, int((count > 0).sum()))]
    found = []
    for marker, which in itertools.product(markers.tolist(), ("first", "last")):
        column = Column(f"the token behind the {which} {marker}", _behind(marker, which), 2)
        ids = np.concatenate([column.read(block) for block in seen(few)])
        found.append((_gain(ids[:, 0], labels, sizes), column))
        if not problem.in_time():
            break
    return _best(found)


def _best(found: Sequence[tuple[float, Column]]) -> list[Column]:
    return [column for _, column in sorted(found, key=lambda one: -one[0])[:KEPT]]


def _behind(marker: int, which: str) -> Read:
    def read(s: Seen) -> np.ndarray:
        is_it = (s.ids[..., 0] == marker) & s.real  # (B, 1, tokens)
        if which == "last":
            at = is_it.shape[2] - 1 - is_it[..., ::-1].argmax(axis=2)
        else:
            at = is_it.argmax(axis=2)
        at = np.where(is_it.any(axis=2), at, -2)  # whose next one is outside
        return s.at(at[..., None] + 1)

    return read


# ---------------------------------------------------------------------- what is looked at


def some(train: Asked) -> Asked:
    """Give some of the training answers, evenly chosen."""
    tokens = train.split.width * (1 + train.split.layout.dual)
    most = max(512, min(ROWS, MOST_IDS // tokens))
    if len(train.labels) <= most:
        return train
    at = np.arange(most) * len(train.labels) // most
    place = None if train.place is None else train.place[at]
    return Asked(train.split, train.example[at], place, train.labels[at])


def _families(train: Asked, few: Asked) -> Iterator[tuple[list[Column], np.ndarray]]:
    """Yield every place by its distance from the start, from the end, and from the token that is
    asked about: what each is called, and codes (n, places) of the ids there."""
    layout, numbers = train.split.layout, vocabulary_of(train)
    n = train.split.width // layout.stack
    same = len(np.unique(few.split.lengths(few.example))) == 1
    families = [("token {n}", range(n), lambda t: first(1, skip=t), first(n))]
    if not (same or layout.causal):
        name = "token {n} from the end"
        families.append((name, range(n), lambda t: last(1, skip=t), last(n)))
    if train.place is not None:
        far = min(n - 1, FARTHEST)
        offsets = range(-far, 1 if layout.causal else far + 1)
        read = around(far, offsets[-1])
        families.append(("", offsets, lambda t: around(-t, t), read))
    for name, places, one, every in families:
        ids = np.concatenate([every(block) for block in seen(few)])
        names = [_called(name, t) for t in places]
        yield [*_columns(names, [one(t) for t in places], layout)], numbers[ids]


def _called(name: str, place: int) -> str:
    if name or not place:
        return name.format(n=place + 1) or "the token asked about"
    return f"token {abs(place)} {'before' if place < 0 else 'after'} the one asked about"


def _columns(names: list[str], reads: list[Read], layout: object) -> Iterator[Column]:
    """Yield a column for each id of each token, in the order in which a reader gives them."""
    sides = (" of the first", " of the second") if layout.dual else ("",)  # type: ignore[attr-defined]
    stack = layout.stack  # type: ignore[attr-defined]
    for s, side in enumerate(sides):
        for name, read in zip(names, reads, strict=True):
            for i in range(stack):
                told = f"{name}{side}" + (f", id {i + 1}" if stack > 1 else "")
                yield Column(told, _one(read, s * stack + i))


def _one(read: Read, column: int) -> Read:
    return lambda s: read(s)[:, column : column + 1]


# ---------------------------------------------------------------------- what it says


def codes_of_labels(problem: Problem, part: Asked, most: int = 0) -> tuple[np.ndarray, list[int]]:
    """Number what is asked, each output by itself: codes (n, outputs) and how many each has. At
    most so many codes of the first output, if `most` is given."""
    rows = np.asarray(part.labels).reshape(len(part.labels), -1)
    if problem.target.name == "numbers":
        edges = np.quantile(rows, np.arange(1, BINS) / BINS, axis=0)
        rows = (rows[None] > edges[:, None]).sum(axis=0)
    codes = np.stack([np.unique(column, return_inverse=True)[1] for column in rows.T], axis=1)
    if most:
        codes = np.stack([_buckets(column) for column in codes.T], axis=1)
    return codes, [int(column.max()) + 1 for column in codes.T]


def _buckets(codes: np.ndarray) -> np.ndarray:
    """Number the most frequent codes; all others share one number."""
    count = np.bincount(codes)
    number = np.full(len(count), BUCKETS - 1)
    order = np.argsort(-count, kind="stable")[: BUCKETS - 1]
    number[order] = np.arange(len(order))
    return number[codes]


def _gain(ids: np.ndarray, labels: np.ndarray, sizes: list[int]) -> float:
    """By how many standard deviations the mutual information is above what chance gives."""
    ids = np.unique(ids, return_inverse=True)[1]
    total = 0.0
    for column, size in zip(labels.T, sizes, strict=True):
        joint = np.bincount(ids * size + column, minlength=(int(ids.max()) + 1) * size)
        total += float(_above_chance(joint.reshape(1, -1, size))[0])
    return total


def _pair_gains(one: np.ndarray, others: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """The same of one place together with each of the others: codes (n,) and (n, places)."""
    cells, places = BUCKETS**3, others.shape[1]
    key = (one[:, None] * BUCKETS + others) * BUCKETS + labels[:, None]
    key = key + cells * np.arange(places)
    joint = np.bincount(key.ravel(), minlength=cells * places)
    return _above_chance(joint.reshape(places, BUCKETS**2, BUCKETS))


def _above_chance(joint: np.ndarray) -> np.ndarray:
    """The G statistic of tables (tables, ids, labels), as standard deviations of its chance."""
    rows, columns = joint.sum(axis=2), joint.sum(axis=1)
    n = rows.sum(axis=1)
    parts = [_entropy_sum(part) for part in (joint.reshape(len(joint), -1), rows, columns)]
    statistic = 2 * (parts[0] - parts[1] - parts[2] + n * np.log(np.maximum(n, 1)))
    free = ((rows > 0).sum(axis=1) - 1) * ((columns > 0).sum(axis=1) - 1)
    return (statistic - free) / np.sqrt(2 * np.maximum(free, 1))


def _entropy_sum(counts: np.ndarray) -> np.ndarray:
    """Sum c log c over a row: (rows,)."""
    each = np.arange(1 + int(counts.max(initial=0)))
    return (each * np.log(np.maximum(each, 1)))[counts].sum(axis=1)
