"""How a shortcut is fitted to what it reads: a table, votes of tokens, boosted trees, a small
network.

Each is fitted to training answers and chosen on dev: the place that a table reads, the rounds of
trees and of a network (rounds.py). The clock only decides how far they come.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from lra.data import rounds
from lra.data.nonlinear import MOST_OUTPUTS
from lra.data.rules import Table
from lra.data.views import Asked, Columns
from lra.metrics.target import Target

PRIOR = 5.0  # occurrences of a token with each class that a vote begins with
SURE = (0.0, 2.0, 4.0)  # standard deviations of chance that a vote must differ by
MOST_COLUMNS = 300  # of trees, which look at each in every node
MOST_IDS = 2**14  # columns of ids in a network: ids beyond share them


class Fitted(NamedTuple):
    reads: str
    answers: list[np.ndarray]  # to dev and to test
    tokens: int | None = None  # of an example that it reads; none: all of them


class Problem(NamedTuple):
    """What is asked, and the answers to train on, to choose by, and to test."""

    train: Asked
    val: Asked
    test: Asked
    target: Target
    score: Callable[[np.ndarray], float]  # of answers to dev, the more the better
    in_time: Callable[[], bool]

    @property
    def parts(self) -> tuple[Asked, Asked, Asked]:
        return self.train, self.val, self.test


# ---------------------------------------------------------------------- tables


class Means:
    """What a table answers where no class is asked: the mean of each key's labels, drawn to that
    of all by the weight of one example; of several labels, its logits."""

    def __init__(self, keys: np.ndarray, labels: np.ndarray, logits: bool):
        rows = labels.reshape(len(labels), -1).astype(np.float64)
        self.keys, row = np.unique(keys, return_inverse=True)
        total, self.shape, self.logits = (
            np.zeros((len(self.keys), rows.shape[1])),
            labels.shape[1:],
            logits,
        )
        np.add.at(total, row, rows)
        self.usual = rows.mean(0)
        self.means = (total + self.usual) / (1 + np.bincount(row))[:, None]

    def answers(self, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        at = np.searchsorted(self.keys, keys).clip(max=len(self.keys) - 1)
        there = self.keys[at] == keys
        means = np.where(there[:, None], self.means[at], self.usual)
        if self.logits:
            share = means.clip(1e-4, 1 - 1e-4)
            means = np.log(share / (1 - share))
        return means.reshape(len(keys), *self.shape), there


def table_of(problem: Problem, keys: np.ndarray) -> Any:
    if problem.target.name == "classes":
        return Table(keys, problem.train.labels)
    return Means(keys, problem.train.labels, logits=problem.target.name == "labels")


def best_table(
    problem: Problem,
    names: list[str],
    parts: list[np.ndarray],
    together: int,
    among: Sequence[tuple[int, ...]] = (),
) -> Fitted | None:
    """Answer by the ids at one place, or at so many together, that are best on dev: of all, or
    `among` these. `parts` are ids (n, places) of train, dev and test."""
    best, found = -np.inf, None
    base = 1 + max(int(part.max(initial=0)) for part in parts)
    for places in among or itertools.combinations(range(len(names)), together):
        keys = []
        for part in parts:
            key = np.zeros(len(part), np.int64)
            for place in places:
                key = key * base + part[:, place]
            keys.append(key)
        table = table_of(problem, keys[0])
        on_dev = table.answers(keys[1])[0]
        if (score := problem.score(on_dev)) > best:
            reads = " and ".join(names[place] for place in places)
            best, found = score, Fitted(reads, [on_dev, table.answers(keys[2])[0]], together)
        if not problem.in_time():
            break
    return found


def longest_match(problem: Problem, parts: list[np.ndarray]) -> tuple[int, list[np.ndarray]]:
    """Answer by the first n ids (n, columns), or as many of them as a training answer shares; give
    n, which is the best on dev, and the answers."""
    ends = np.cumsum([len(part) for part in parts])[:-1]
    rows = np.concatenate(parts).astype(np.int64)
    base, key = 1 + int(rows.max(initial=0)), np.zeros(len(rows), np.int64)
    best, n, kept, answers = -np.inf, 0, list[np.ndarray](), list[np.ndarray]()
    for column in range(rows.shape[1]):
        _, key = np.unique(key * base + rows[:, column], return_inverse=True)
        train, *others = np.split(key, ends)
        table = table_of(problem, train)
        for i, (new, there) in enumerate(map(table.answers, others)):
            if column == 0:
                answers.append(new)
            there = there.reshape(-1, *[1] * (new.ndim - 1))
            answers[i] = np.where(there, new, answers[i])
        if (score := problem.score(answers[0])) > best:
            best, n, kept = score, column + 1, list(answers)
        if not problem.in_time():
            break
    return n, kept


def place_by_question(
    problem: Problem, questions: list[np.ndarray], parts: list[np.ndarray]
) -> list[np.ndarray]:
    """Answer by the token that is asked about (questions, ids (n, a)) and by one other place of
    `parts` (n, places), which for each of these tokens is the one that is best on the second half
    of the training answers."""
    ends = np.cumsum([len(part) for part in parts])[:-1]
    _, number = np.unique(np.concatenate(questions), axis=0, return_inverse=True)
    asked = np.split(number.ravel(), ends)
    base, half, labels = (
        1 + max(int(p.max()) for p in parts),
        len(parts[0]) // 2,
        problem.train.labels,
    )
    best = np.full(1 + number.max(), -1.0)
    answers = [np.zeros(len(part), np.int64) for part in parts[1:]]
    seen = np.maximum(np.bincount(asked[0][half:], minlength=len(best)), 1)
    for place in range(parts[0].shape[1]):
        train, *others = [q * base + part[:, place] for q, part in zip(asked, parts, strict=True)]
        table = Table(train[:half], labels[:half])
        right = table.answers(train[half:])[0] == labels[half:]
        share = np.bincount(asked[0][half:], right, len(best)) / seen
        for answer, keys, q in zip(answers, others, asked[1:], strict=True):
            answer[:] = np.where((share > best)[q], table.answers(keys)[0], answer)
        best = np.maximum(share, best)
        if not problem.in_time():
            break
    return answers


# ---------------------------------------------------------------------- naive Bayes


def naive_bayes(problem: Problem, parts: list[Columns]) -> list[np.ndarray]:
    """Let each counted token vote for classes, by how much more often it occurs with them than
    with all. Votes that chance explains are left out; how strictly is chosen on dev."""
    labels, (train, *others) = problem.train.labels.astype(np.int64), [part[1] for part in parts]
    n = np.bincount(labels, minlength=problem.train.split.layout.classes)
    found = np.zeros((len(n), train.shape[1]))
    for label in np.unique(labels):
        found[label] = train[labels == label].sum(0, dtype=np.float64)
    expected = np.outer(n / len(labels), found.sum(0)) + 1e-9
    votes = np.log((found + PRIOR) / (expected + PRIOR))
    sure = np.abs(found - expected) / np.sqrt(expected)
    prior = np.where(n > 0, np.log(np.maximum(n, 1)), -np.inf)
    tried = []
    for least in SURE:
        kept = np.where(sure >= least, votes, 0).T
        tried.append([(prior + part @ kept).argmax(1) for part in others])
    return max(tried, key=lambda answers: problem.score(answers[0]))


# ---------------------------------------------------------------------- trees and a network


def can_boost(problem: Problem, columns: int) -> bool:
    return problem.train.split.layout.classes <= MOST_OUTPUTS and columns <= MOST_COLUMNS


def trees(problem: Problem, parts: list[Columns]) -> list[np.ndarray]:
    rows = [np.hstack(part) for part in parts]
    return rounds.trees(problem.target, rows, problem.train.labels, problem.score, problem.in_time)


def network(problem: Problem, parts: list[Columns]) -> list[np.ndarray]:
    rows = [_rows(part, parts[0]) for part in parts]
    return rounds.network(
        problem.target, rows, problem.train.labels, problem.score, problem.in_time
    )


def _rows(part: Columns, train: Columns) -> Any:
    """Give the ids of each place columns of their own, where one of them is 1; scale numbers as in
    training. Without ids the rows are dense."""
    from scipy import sparse

    ids, numbers = part
    like = np.sqrt(train[1])
    spread = like.std(0) + 1e-6
    scaled = ((np.sqrt(numbers) - like.mean(0)) / spread).clip(-5, 5).astype(np.float32)
    if not ids.shape[1]:
        return scaled
    base = 1 + int(train[0].max(initial=0))
    width = min(base * ids.shape[1], MOST_IDS)
    column = (ids.clip(max=base - 1) + base * np.arange(ids.shape[1])) % width
    ends = np.arange(len(ids) + 1) * ids.shape[1]
    ones = np.ones(column.size, np.float32)
    one_hot = sparse.csr_array((ones, column.ravel(), ends), shape=(len(ids), width))
    return sparse.hstack([one_hot, sparse.csr_array(scaled)], "csr")
