"""Rules: how much of a task's score needs no understanding of it.

A rule reads little (one token, a count of tokens, single pixels), is fitted to the training
examples and scored on the others. A row of a table that is no better than the best rule of its
task says nothing about attention. It is the best of these rules: one that nobody has written may do
better. Tasks add rules of their own (`Task.rules`); `lra data baseline` prints them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lra.base.errors import UserError, nearest, readable
from lra.data.arrays import IGNORED, Prepared, Split
from lra.data.kept import keep_line, read_lines
from lra.data.linear import counts, linear, pixels, summaries, trigrams
from lra.data.nonlinear import by_boosting, patches, suits, tallies
from lra.data.rounds import NoScikitLearn
from lra.data.task import Task
from lra.metrics.answers import Answers
from lra.metrics.classes import percent
from lra.metrics.metric import facts_of, get

FILE = "rules.jsonl"  # of a folder of results
CONSTANT, FIRST_TOKENS = "constant", "first tokens"
NOTHING = {
    "classes": "nothing: always the most frequent label",
    "labels": "nothing: always the same labels",
    "numbers": "nothing: always the same numbers",
}


class Rule(NamedTuple):
    reads: str  # what it looks at, half a line
    # (train, val, splits to answer) -> answers of each split, shaped as its labels
    answer: Callable[[Split, Split, list[Split]], list[np.ndarray]]
    bound: bool = False  # no method can do better, so that no row is held to be above it


def rules_of(task: Task, options: Mapping[str, Any]) -> dict[str, Rule]:
    """List the rules for a task, from the least that is read to the most."""
    shares = get(task.metric_names[0]).needs_log_p
    nothing = "nothing: how frequent each label is" if shares else NOTHING[task.asks]
    rules = {CONSTANT: Rule(nothing, _constant)}
    how = "ridge regression" if task.asks == "numbers" else "logistic regression"
    if task.grid is not None and not task.per_token:
        rules["pixels"] = Rule(f"each pixel by itself ({how})", linear(pixels))
        if suits(task):
            reads = "mean and contrast of each patch (gradient boosting)"
            rules["patches"] = Rule(reads, by_boosting(patches))
    elif task.channels and not task.per_token:
        reads = f"mean, spread, ends and steps of each channel, and of its quarters ({how})"
        rules["features"] = Rule(reads, linear(summaries))
    elif not task.per_token:
        rules["bag"] = Rule(f"how often each token occurs ({how})", linear(counts))
        if suits(task):
            reads = "how often each token occurs (gradient boosting)"
            rules["counts"] = Rule(reads, by_boosting(tallies))
        if task.vocab > 200:
            reads = f"how often each three neighbours occur ({how})"
            rules["trigrams"] = Rule(reads, linear(trigrams))
    return rules | task.rules(options)


def check_names(task: Task, options: dict[str, Any], names: Sequence[str]) -> None:
    """UserError for a name of no rule, and for a rule that the task's metric cannot score."""
    metric, every = get(task.metric_names[0]), rules_of(task, options) | task.readers(options)
    for name in names:
        if name not in every:
            raise UserError(f"task '{task.name}' has no rule '{name}'{nearest(name, every)}")
        if metric.needs_log_p and name != CONSTANT:
            raise UserError(
                f"rule '{name}' gives no probabilities, which {metric.title} scores: take "
                f"{CONSTANT} alone"
            )


def baselines(prepared: Prepared, task: Task, names: list[str] | None = None) -> dict[str, Any]:
    """Fit rules to the training examples and score them: what results/rules.jsonl has of a task.
    `missing` are those of the task that were not asked for, or need scikit-learn where it is not
    installed: who asks for such a rule by name gets NoScikitLearn."""
    options, metric = prepared.facts["options"], get(task.metric_names[0])
    check_names(task, options, names or ())
    rules, readers = rules_of(task, options), task.readers(options)
    every = rules | readers
    able = [CONSTANT] if metric.needs_log_p else list(rules)
    scores = dict[str, dict[str, Any]]()
    for name in names or [*able, *readers]:
        try:
            scores[name] = _scored(prepared, task, every[name])
        except NoScikitLearn:
            if names:
                raise
    facts = {"task": task.name, "fingerprint": prepared.fingerprint, "metric": facts_of(metric)}
    facts |= {"options": options, "rules": {n: s for n, s in scores.items() if n in rules}}
    if read := {name: score for name, score in scores.items() if name in readers}:
        facts |= {"readers": read, **_rungs(prepared, task, rules)}
    missing = [name for name in able if name not in scores]
    return facts | ({"missing": missing} if missing else {})


def _rungs(prepared: Prepared, task: Task, rules: dict[str, Rule]) -> dict[str, Any]:
    """Say what must be read of each test example, a digit for each, and how two rules do that read
    nearly nothing: easy examples prove no reading."""
    train, val, test = (prepared.split(name) for name in ("train", "val", "test"))
    found = task.rungs(prepared.facts["options"], train, test)
    if found is None:
        return {}
    names, rung = found
    beside = {}
    for name in (CONSTANT, FIRST_TOKENS):
        (answers,) = rules[name].answer(train, val, [test])
        right = np.bincount(rung, answers == test.labels, len(names)).astype(int)
        beside[name] = np.stack([right, np.bincount(rung, minlength=len(names))], 1).tolist()
    return {"rungs": {"names": names, "test": "".join(map(str, rung)), "rules": beside}}


def _scored(prepared: Prepared, task: Task, rule: Rule) -> dict[str, Any]:
    """Fit a rule and score it on val and test, there also by difficulty."""
    train, val, test = (prepared.split(name) for name in ("train", "val", "test"))
    metric, of_train = get(task.metric_names[0]), train.scored_labels()
    if metric.needs_log_p:  # one distribution for all, and no answers
        on_val, on_test = (
            metric.constant(of_train, split.scored_labels(), task.target) for split in (val, test)
        )
        return {"reads": rule.reads, "val": on_val, "test": on_test}
    answers = rule.answer(train, val, [val, test])
    on_val, on_test = map(score_of, (val, test), answers, (task, task))
    scores: dict[str, Any] = {"reads": rule.reads, "val": on_val, "test": on_test}
    if rule.bound:
        scores["bound"] = True
    if task.asks == "classes" and (groups := task.groups(test)) is not None:
        right = answers[1] == test.labels
        scores["by"] = {
            str(g): [int(right[groups == g].sum()), int((groups == g).sum())]
            for g in np.unique(groups)
        }
    return scores


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
    metric = get(train.layout.metric_names[0])
    best = metric.best_constant(train.scored_labels(), train.layout.target)
    return [np.broadcast_to(best, split.labels.shape) for split in splits]


def need_classes(split: Split) -> None:
    """UserError where a rule that counts labels cannot answer what the task asks."""
    if split.layout.asks != "classes":
        raise UserError(
            f"a table of keys answers with classes, but task '{split.layout.name}' asks for "
            f"{split.layout.asks}: give it a rule that answers with them"
        )


def by_key(keys: Callable[[np.ndarray], np.ndarray]) -> Callable[..., Any]:
    """Answer the most frequent label of what has the same key in the training examples: whole
    numbers that `keys` reads from ids, in the shape of the labels. Elsewhere the most frequent."""

    def read(split: Split) -> np.ndarray:
        return np.concatenate([keys(ids) for ids, _ in split.blocks()]).astype(np.int64)

    def answer(train: Split, val: Split, splits: list[Split]) -> list[np.ndarray]:
        need_classes(train)
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
    return _by_prefix(lambda split: split.ids(np.arange(len(split)), most), most, vocab)


def last_tokens(most: int, vocab: int) -> Callable[..., Any]:
    """The same from the end of each example, where its padding begins."""

    def read(split: Split) -> np.ndarray:
        back = np.arange(1, min(most, split.width) + 1)
        parts = [
            np.where(back <= length[:, None], np.take_along_axis(ids, length[:, None] - back, 1), 0)
            for ids, length in ((i, n.astype(np.int64)) for i, n in split.blocks())
        ]
        return np.concatenate(parts)

    return _by_prefix(read, most, vocab)


def _by_prefix(read: Callable[[Split], np.ndarray], most: int, vocab: int) -> Callable[..., Any]:
    def answer(train: Split, val: Split, splits: list[Split]) -> list[np.ndarray]:
        need_classes(train)
        everything = [train, val, *splits]
        rows = [read(split).astype(np.int64) for split in everything]
        keys = [np.zeros(len(split), np.int64) for split in everything]
        answers = _constant(train, val, everything)
        best, best_answers = -1.0, answers
        for n in range(min(most, train.width)):
            keys = [k * vocab + ids[:, n] for k, ids in zip(keys, rows, strict=True)]
            table = Table(keys[0], train.labels)
            for i, key in enumerate(keys):
                new, there = table.answers(key)
                answers[i] = np.where(there, new, answers[i])
            if (score := accuracy(val, answers[1])) > best:
                best, best_answers = score, list(answers)
        return best_answers[2:]

    return answer


def keep(scores: dict[str, Any], path: Path) -> None:
    """Put the scores into a file of one line per data, in place of those of the same rules. Missing
    is what neither has; a line that names nothing has all rules."""

    def join(before: dict[str, Any], line: dict[str, Any]) -> dict[str, Any]:
        missing = [name for name in line.get("missing", []) if name in before.get("missing", [])]
        joined = before | line | {"missing": missing}
        for key in ("rules", "readers"):
            joined[key] = before.get(key, {}) | line.get(key, {})
        empty = {key for key in ("readers", "missing") if not joined[key]}
        return {key: joined[key] for key in joined if key not in empty}

    keep_line(scores, path, read_scores, join)


def read_scores(path: Path) -> list[dict[str, Any]]:
    lines = read_lines(path, "make it again with `lra data baseline`")
    with readable(path, "make it again with `lra data baseline`"):
        if any("metric" not in line for line in lines):
            raise ValueError("its scores are of an earlier version")
    return lines
