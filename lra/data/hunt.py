"""A hunter for shortcuts that knows nothing of a task: can it be answered by a few of its tokens,
or by how often they occur?

Everything that is tried is fitted to the training examples; the best on dev is scored on test. What
is found is a lower bound of what can be had without attention, and nothing found proves nothing.
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lra.base.errors import UserError
from lra.data.arrays import Prepared
from lra.data.kept import keep_line, read_lines
from lra.data.learners import (
    Fitted,
    Problem,
    best_table,
    can_boost,
    longest_match,
    naive_bayes,
    network,
    place_by_question,
    trees,
)
from lra.data.rounds import need_scikit_learn
from lra.data.rules import CONSTANT, NOTHING
from lra.data.screen import at_any_place, at_two_places, behind_a_marker
from lra.data.task import Task
from lra.data.views import (
    Columns,
    View,
    asked,
    columns,
    length_of,
    longer_and_longer,
    one_by_one,
    seen,
    sizes,
    tokens,
    views_of,
)
from lra.metrics.answers import Answers
from lra.metrics.metric import Metric, facts_of, get

FILE = "hunts.jsonl"  # of a folder of results
MOST = 65_536  # training answers
MOST_IDS = 2**27  # of these
MOST_SCORED = 50_000  # answers of dev and of test
# Places of each end, and beside the token that is asked about, that a table reads alone; in twos
SINGLE, PAIRED = (32, 32), (4, 1)
FEW = 3  # columns, for which no network is trained where trees are grown
SHARE = 0.25  # of the time, which no single attempt may exceed
Z = 1.96  # standard deviations of a 95 % interval
CLEAR = 3  # standard deviations above the constant answer from which something was found
DRAWS, LEAST_DRAWS, MOST_DRAWN = 200, 20, 10**7  # of test examples again; answers of all draws
BY_QUESTION = "the token asked about and one other token, at a place of its own for each of these"
Learner = Callable[[Problem, list[Columns]], list[np.ndarray]]
Show = Callable[[str, int, int], None]  # what is tried, how many were, how many there are


class Attempt(NamedTuple):
    how: str
    reads: str
    fit: Callable[[Problem], Fitted | None]


def check_hunted(task: Task) -> None:
    """UserError for a task that no hunt can try."""
    need_scikit_learn("hunts")  # all of them: nobody sees that one left its models out
    if task.channels:
        raise UserError(
            f"a hunt looks for ids, and task '{task.name}' has numbers: `lra data baseline` fits "
            "rules to their features"
        )


def hunt(
    prepared: Prepared, task: Task, minutes: float = 5.0, show: Show = lambda *_: None
) -> dict[str, Any]:
    """Try everything that there is time for: what results/hunts.jsonl has of a task."""
    check_hunted(task)
    start, seconds = time.monotonic(), 60 * minutes
    metric = get(task.metric_names[0])
    if metric.needs_log_p:  # which no table of classes gives
        metric = get("accuracy")
    whole = _problem(prepared, task, metric)
    tried: list[dict[str, Any]] = []
    best = Fitted(NOTHING[task.asks], _constant(whole, metric), 0)
    kept, on_dev = CONSTANT, -math.inf
    attempts = list(attempts_of(whole))
    for n, attempt in enumerate(attempts):
        show(f"{attempt.how}: {attempt.reads}", n, len(attempts))
        until = min(start + seconds, time.monotonic() + SHARE * seconds)
        problem = whole._replace(in_time=functools.partial(_before, until))
        if (found := attempt.fit(problem)) is not None:
            score = whole.score(found.answers[0])
            tried.append({"how": attempt.how, "reads": found.reads, "val": metric.sign * score})
            if score > on_dev:
                best, kept, on_dev = found, attempt.how, score
        if time.monotonic() >= start + seconds or (metric.name == "accuracy" and on_dev == 100):
            break
    perfect = metric.name == "accuracy" and on_dev == 100
    tested = _tested(whole, metric, best.answers[1], _constant(whole, metric)[1])
    chosen = {"how": kept, "reads": best.reads, "val": metric.sign * on_dev}
    facts: dict[str, Any] = {
        "task": task.name,
        "fingerprint": prepared.fingerprint,
        "metric": facts_of(metric),
    }
    facts |= {"options": prepared.facts["options"], "minutes": minutes, "tried": tried}
    facts |= {"tokens": best.tokens, "of_tokens": length_of(whole.train)}
    return facts | tested | {"best": chosen, "left": len(attempts) - n - 1, "perfect": perfect}


def _before(until: float) -> bool:
    return time.monotonic() < until


def _problem(prepared: Prepared, task: Task, metric: Metric) -> Problem:
    most = min(MOST, max(1024, MOST_IDS // prepared.split("train").width))
    train = asked(prepared.split("train"), most)
    val, test = (asked(prepared.split(name), MOST_SCORED) for name in ("val", "test"))
    labels = train.labels
    if not len(labels):
        raise UserError(f"task '{task.name}' has no training labels: there is nothing to hunt in")
    if (labels == labels[:1]).all():
        raise UserError(
            f"all training labels of task '{task.name}' are {labels[0].tolist()}: there is nothing "
            "to hunt for"
        )

    def score(answers: np.ndarray) -> float:
        given = metric.score(Answers(answers, val.labels), task.target)
        return -math.inf if math.isnan(given) else metric.sign * given

    return Problem(train, val, test, task.target, score, lambda: True)


def _constant(problem: Problem, metric: Metric) -> list[np.ndarray]:
    one = metric.best_constant(problem.train.labels, problem.target)
    return [np.broadcast_to(one, part.labels.shape) for part in (problem.val, problem.test)]


# ---------------------------------------------------------------------- what is tried


def attempts_of(problem: Problem) -> Iterator[Attempt]:
    """List what is tried, the cheapest first."""
    nothing = NOTHING[problem.target.name]
    yield Attempt(CONSTANT, nothing, lambda p: Fitted(nothing, _constant_of(p), 0))
    yield Attempt("table", "one token", lambda p: _tables(p, 1))
    yield Attempt("table", "two tokens", lambda p: _tables(p, 2))
    yield Attempt("table", "length", _by_length)
    yield Attempt("table", "one token at any place", at_any_place)
    yield Attempt("table", "the token behind another one", behind_a_marker)
    if problem.train.place is not None and nothing == NOTHING["classes"]:
        yield Attempt("table", BY_QUESTION, _by_question)
    for reads, view in longer_and_longer(problem.train):
        yield Attempt("table", reads, functools.partial(_by_match, reads, view))
    yield Attempt("table", "two tokens at any places", at_two_places)
    views = [(view, _width(problem, view)) for view in views_of(problem.train)]
    for view, (_, numbers) in views:
        if problem.target.name == "classes" and numbers > FEW:
            yield Attempt("bayes", view.reads, functools.partial(_fit, naive_bayes, view, []))
    for view, widths in views:
        held: list[list[Columns]] = []  # what was read of it
        boosts = can_boost(problem, sum(widths))
        if boosts:
            yield Attempt("boosting", view.reads, functools.partial(_fit, trees, view, held))
        if not boosts or sum(widths) > FEW:
            yield Attempt("network", view.reads, functools.partial(_fit, network, view, held))


def _width(problem: Problem, view: View) -> tuple[int, int]:
    """Count the columns of ids and of numbers."""
    ids, numbers = view.read(next(seen(problem.train)))
    return ids.shape[1], numbers.shape[1]


def _by_match(reads: str, view: View, problem: Problem) -> Fitted | None:
    parts = [columns(part, view)[0] for part in problem.parts]
    n, answers = longest_match(problem, parts)
    tokens = -(-n // problem.train.split.layout.stack)
    return Fitted(reads.format(n=n), answers, tokens) if answers else None


def _fit(
    learner: Learner, view: View, held: list[list[Columns]], problem: Problem
) -> Fitted | None:
    if not held:
        held.append([columns(part, view) for part in problem.parts])
    parts = held[0] if learner is trees else held.pop()  # which trees leave to a network
    if not (parts[0][0].size or parts[0][1].size):
        return None
    return Fitted(view.reads, learner(problem, parts), view.tokens)


def _constant_of(problem: Problem) -> list[np.ndarray]:
    layout = problem.train.split.layout
    metric = get(layout.metric_names[0])
    return _constant(problem, get("accuracy") if metric.needs_log_p else metric)


def _tables(problem: Problem, together: int) -> Fitted | None:
    """Try tables of one token, or of two, which may be many ids each."""
    names, readers = [], []
    stack = problem.train.split.layout.stack
    sides = ("",) if not problem.train.split.layout.dual else (" of the first", " of the second")
    for name, read in one_by_one(problem.train, *(SINGLE if together == 1 else PAIRED)):
        ids = [f", id {i + 1}" for i in range(stack)] if stack > 1 else [""]
        names += [f"{name}{side}{i}" for side in sides for i in ids]
        readers.append(read)

    parts = [columns(part, View("", tokens(*readers)))[0] for part in problem.parts]
    return best_table(problem, names, parts, together)


def _by_question(problem: Problem) -> Fitted:
    view = View("", tokens(*(read for _, read in one_by_one(problem.train, *SINGLE))))
    parts = [columns(part, view)[0].astype(np.int64) for part in problem.parts]
    stack = problem.train.split.layout.stack  # ids of the token asked about, which come first
    questions = [part[:, :stack] for part in parts]
    return Fitted(BY_QUESTION, place_by_question(problem, questions, parts), 2)


def _by_length(problem: Problem) -> Fitted | None:
    parts = [columns(part, View("", sizes))[1].astype(np.int64) for part in problem.parts]
    names = ["how long an example is"] * parts[0].shape[1]
    if problem.train.place is not None:
        names[-1] = "where it is asked"
    fitted = best_table(problem, names, parts, 1) if names else None
    return fitted and fitted._replace(tokens=0)


# ---------------------------------------------------------------------- what it is worth


def _tested(
    problem: Problem, metric: Metric, answers: np.ndarray, constant: np.ndarray
) -> dict[str, Any]:
    """Score answers on test, with an interval of 95 %, and say if they are clearly above the
    constant answer on the same examples: by CLEAR standard deviations of the difference."""
    labels, example = problem.test.labels, problem.test.example

    def score(given: np.ndarray, rows: Any = slice(None)) -> float:
        return metric.score(Answers(given[rows], labels[rows]), problem.target)

    test, floor = score(answers), score(constant)
    drawn = [[score(given, rows) for given in (answers, constant)] for rows in _draws(example)]
    scores, floors = np.array(drawn).T
    margin = CLEAR * float(np.std(scores - floors))
    low, high = test - Z * float(np.std(scores)), test + Z * float(np.std(scores))
    if metric.name == "accuracy":
        low, high = _wilson(answers == labels, example)
    found = metric.sign * (test - floor) > margin
    return {"test": test, "low": low, "high": high, "constant": floor, "found": found}


def _draws(example: np.ndarray) -> Iterator[np.ndarray]:
    """Draw examples again, each with all of its answers: the rows (n,) of these."""
    rng = np.random.default_rng(0)
    _, start, n = np.unique(example, return_index=True, return_counts=True)
    for _ in range(min(DRAWS, max(LEAST_DRAWS, MOST_DRAWN // len(example)))):
        drawn = rng.integers(0, len(start), len(start))
        ends = n[drawn].cumsum()
        inside = np.arange(ends[-1]) - np.repeat(ends - n[drawn], n[drawn])
        yield np.repeat(start[drawn], n[drawn]) + inside


def _wilson(right: np.ndarray, example: np.ndarray) -> tuple[float, float]:
    """Wilson's interval of a share in %, which for answers to the same example counts as many as
    would be independent."""
    _, of = np.unique(example, return_inverse=True)
    n, hits = np.bincount(of), np.bincount(of, right)
    p, size = float(right.mean()), float(len(n))
    spread = float(((hits - p * n) ** 2).sum()) / float(n.sum()) ** 2  # variance of the share
    if spread > 0:
        size = p * (1 - p) / spread
    middle = (p + Z**2 / (2 * size)) / (1 + Z**2 / size)
    width = Z * math.sqrt(p * (1 - p) / size + (Z / (2 * size)) ** 2) / (1 + Z**2 / size)
    return 100 * (middle - width), 100 * (middle + width)


def keep(found: dict[str, Any], path: Path) -> None:
    """Put a hunt into a file of one line per data."""
    keep_line(found, path, read_hunts)


def read_hunts(path: Path) -> list[dict[str, Any]]:
    return read_lines(path, "make it again with `lra data hunt`")
