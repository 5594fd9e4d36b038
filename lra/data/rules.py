"""Rules: how much of a task's score needs no understanding of it.

A rule reads little (one token, a count of tokens, single pixels), is fitted to the training
examples and scored on the others. A row of a table that is no better than the best rule of its
task says nothing about attention. Tasks add rules of their own (`Task.rules`); `lra data baseline`
prints them.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lra.base.disk import write_atomically
from lra.base.errors import UserError, nearest, readable
from lra.data.arrays import IGNORED, Prepared, Split
from lra.data.task import Task
from lra.metrics.answers import Answers
from lra.metrics.classes import percent
from lra.metrics.metric import facts_of, get

FILE = "rules.jsonl"  # of a folder of results
CONSTANT = "constant"
STRENGTHS = (0.1, 1.0, 10.0, 100.0)  # inverse regularisations of a linear rule, chosen on val
TRIGRAMS = 2**18  # columns that byte trigrams are hashed into


class Rule(NamedTuple):
    reads: str  # what it looks at, half a line
    # (train, val, splits to answer) -> answers of each split, shaped as its labels
    answer: Callable[[Split, Split, list[Split]], list[np.ndarray]]
    bound: bool = False  # no method can do better, so that no row is held to be above it


def rules_of(task: Task, options: Mapping[str, Any]) -> dict[str, Rule]:
    """List the rules for a task, from the least that is read to the most."""
    rules = {CONSTANT: Rule("nothing: always the most frequent label", _constant)}
    if task.grid is not None:
        rules["pixels"] = Rule("each pixel by itself (logistic regression)", linear(pixels))
    elif not task.per_token:
        rules["bag"] = Rule("how often each token occurs (logistic regression)", linear(counts))
        if task.vocab > 200:
            reads = "how often each three neighbours occur (logistic regression)"
            rules["trigrams"] = Rule(reads, linear(trigrams))
    return rules | task.rules(options)


def baselines(prepared: Prepared, task: Task, names: list[str] | None = None) -> dict[str, Any]:
    """Fit rules to the training examples and score them: what results/rules.jsonl has of a task."""
    rules = rules_of(task, prepared.facts["options"])
    for name in names or ():
        if name not in rules:
            raise UserError(f"task '{task.name}' has no rule '{name}'{nearest(name, rules)}")
    train, val, test = (prepared.split(name) for name in ("train", "val", "test"))
    metric, scores = get(task.metric_names[0]), {}
    for name in names or rules:
        answers = rules[name].answer(train, val, [val, test])
        on_val, on_test = (
            score_of(split, of_split, task)
            for split, of_split in zip((val, test), answers, strict=True)
        )
        scores[name] = {"reads": rules[name].reads, "val": on_val, "test": on_test}
        if rules[name].bound:
            scores[name]["bound"] = True
        if (groups := task.groups(test)) is not None:
            right = answers[1] == test.labels
            scores[name]["by"] = {
                str(g): [int(right[groups == g].sum()), int((groups == g).sum())]
                for g in np.unique(groups)
            }
    facts = {"task": task.name, "fingerprint": prepared.fingerprint, "metric": facts_of(metric)}
    return facts | {"options": prepared.facts["options"], "rules": scores}


def score_of(split: Split, answers: np.ndarray, task: Task) -> float:
    """Score the answers of a rule by the task's metric, in its unit."""
    labels = np.asarray(split.labels)
    scored = task.target.scored(labels)
    return get(task.metric_names[0]).score(Answers(answers[scored], labels[scored]), task.target)


def accuracy(split: Split, answers: np.ndarray) -> float:
    """Score classes in percent."""
    right = (answers == split.labels)[split.labels != IGNORED]
    return percent(int(right.sum()), len(right))


def from_ids(read: Callable[[np.ndarray], np.ndarray]) -> Callable[..., Any]:
    """Answer what `read` makes of ids, without a look at training examples."""

    def answer(train: Split, val: Split, splits: list[Split]) -> list[np.ndarray]:
        return [np.concatenate([read(ids) for ids, _ in split.blocks()]) for split in splits]

    return answer


# ---------------------------------------------------------------------- tables of keys


def _constant(train: Split, val: Split, splits: list[Split]) -> list[np.ndarray]:
    most_frequent = np.bincount(train.labels[train.labels != IGNORED]).argmax()
    return [np.full(split.labels.shape, most_frequent) for split in splits]


def by_key(keys: Callable[[np.ndarray], np.ndarray]) -> Callable[..., Any]:
    """Answer the most frequent label of what has the same key in the training examples: whole
    numbers that `keys` reads from ids, in the shape of the labels. Elsewhere the most frequent."""

    def read(split: Split) -> np.ndarray:
        return np.concatenate([keys(ids) for ids, _ in split.blocks()]).astype(np.int64)

    def answer(train: Split, val: Split, splits: list[Split]) -> list[np.ndarray]:
        table = Table(read(train), train.labels)
        return [table.answers(read(split))[0] for split in splits]

    return answer


class Table:
    """The most frequent label of each key."""

    def __init__(self, keys: np.ndarray, labels: np.ndarray):
        scored = labels != IGNORED
        self.keys, row = np.unique(keys[scored], return_inverse=True)
        counts = np.zeros((len(self.keys), int(labels.max()) + 1), np.int64)
        np.add.at(counts, (row, labels[scored]), 1)
        self.labels, self.usual = counts.argmax(axis=1), int(counts.sum(axis=0).argmax())

    def answers(self, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Give the answers, and which of the keys the table has."""
        at = np.searchsorted(self.keys, keys).clip(max=len(self.keys) - 1)
        there = self.keys[at] == keys
        return np.where(there, self.labels[at], self.usual), there


def first_tokens(most: int, vocab: int) -> Callable[..., Any]:
    """Answer by the first n tokens, or as many of them as a training example shares; n <= `most`
    is the best on val."""

    def answer(train: Split, val: Split, splits: list[Split]) -> list[np.ndarray]:
        everything = [train, val, *splits]
        firsts = [s.ids(np.arange(len(s)), most).astype(np.int64) for s in everything]
        keys = [np.zeros(len(split), np.int64) for split in everything]
        answers = _constant(train, val, everything)
        best, best_answers = -1.0, answers
        for n in range(min(most, train.width)):
            keys = [k * vocab + ids[:, n] for k, ids in zip(keys, firsts, strict=True)]
            table = Table(keys[0], train.labels)
            for i, key in enumerate(keys):
                new, there = table.answers(key)
                answers[i] = np.where(there, new, answers[i])
            if (score := accuracy(val, answers[1])) > best:
                best, best_answers = score, list(answers)
        return best_answers[2:]

    return answer


# ---------------------------------------------------------------------- linear rules


def linear(features: Callable[[Split], Any]) -> Callable[..., Any]:
    """Logistic regression on features (examples, columns), regularised as is best on val."""

    def answer(train: Split, val: Split, splits: list[Split]) -> list[np.ndarray]:
        try:
            from sklearn.exceptions import ConvergenceWarning
            from sklearn.linear_model import LogisticRegression
            from sklearn.pipeline import make_pipeline
            from sklearn.preprocessing import StandardScaler
        except ImportError as error:
            raise UserError(
                "this rule needs scikit-learn: pip install 'luna-lra[rules]'"
            ) from error

        inputs, on_val = features(train), features(val)
        with warnings.catch_warnings():  # stopping early regularises, and val decides
            warnings.simplefilter("ignore", ConvergenceWarning)
            models = [
                make_pipeline(
                    StandardScaler(with_mean=False),
                    LogisticRegression(C=c / len(train), max_iter=200),
                ).fit(inputs, train.labels)
                for c in STRENGTHS
            ]
        best = max(models, key=lambda model: model.score(on_val, val.labels))
        return [best.predict(features(split)) for split in splits]

    return answer


def pixels(split: Split) -> np.ndarray:
    return np.concatenate([ids for ids, _ in split.blocks()]).astype(np.float32) / 255


def counts(split: Split) -> Any:
    """Square roots of the shares of each id, which tame frequent ones."""
    return _bags(split, lambda ids: ids, split.layout.vocab)


def trigrams(split: Split) -> Any:
    def codes(ids: np.ndarray) -> np.ndarray:
        a, b, c = (ids[..., at : ids.shape[-1] - 2 + at].astype(np.int64) for at in range(3))
        mixed = (a * 65_599 + b) * 65_599 + c
        return np.where((a > 0) & (b > 0) & (c > 0), mixed % (TRIGRAMS - 1) + 1, 0)

    return _bags(split, codes, TRIGRAMS)


def _bags(split: Split, codes: Callable[[np.ndarray], np.ndarray], columns: int) -> Any:
    """Count codes, of which 0 is padding; of a pair, give the difference and the product."""
    from scipy import sparse

    def bag(ids: np.ndarray) -> Any:
        ids = codes(ids)
        row, _ = np.nonzero(ids)
        code = ids[ids > 0]
        shape = (len(ids), columns)
        bag = sparse.csr_array((np.ones(len(code), np.float32), (row, code)), shape=shape)
        bag.sum_duplicates()
        bag.data = np.sqrt(bag.data / np.repeat(bag.sum(axis=1), np.diff(bag.indptr)))
        return bag

    blocks = []
    for ids, _ in split.blocks():
        if split.layout.dual:
            first, second = bag(ids[:, 0]), bag(ids[:, 1])
            blocks.append(sparse.hstack([abs(first - second), first.multiply(second)], "csr"))
        else:
            blocks.append(bag(ids))
    return sparse.vstack(blocks, "csr")


def keep(scores: dict[str, Any], path: Path) -> None:
    """Put the scores into a file of one line per data, in place of those of the same rules."""
    lines = {item["fingerprint"]: item for item in read_scores(path)}
    before = lines.get(scores["fingerprint"], scores)["rules"]
    lines[scores["fingerprint"]] = scores | {"rules": before | scores["rules"]}
    ordered = sorted(lines.values(), key=lambda item: (item["task"], item["fingerprint"]))
    text = "".join(json.dumps(item, sort_keys=True) + "\n" for item in ordered)
    write_atomically(path, text.encode())


def read_scores(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    with readable(path, "make it again with `lra data baseline`"):
        lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        if any("metric" not in line for line in lines):
            raise ValueError("its scores are of an earlier version")
        return lines
