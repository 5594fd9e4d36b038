"""A score of answers, and the metrics by their names.

A metric of one's own is a class in a file:

    from lra.metrics import Metric, register

    @register
    class Close(Metric):
        name, title, unit = "close", "answers within 0.1", "%"
        targets = ("numbers",)

        def score(self, answers, target):
            return 100 * (abs(answers.answers - answers.labels) < 0.1).mean()

A task names it: `metrics = (Close, "rmse")`. The first one is the score of its runs, the others
stand beside it in their records. docs/tasks.md has a complete example.
"""

from __future__ import annotations

import math
import re
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, TypeVar

import numpy as np

from lra.base.errors import UserError
from lra.base.limits import LARGEST
from lra.base.registry import Registry
from lra.metrics.answers import Answers
from lra.metrics.target import TARGETS, Target
from lra.metrics.words import text_of

NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,99}")  # part of a name of facts, so without dots
DRAWS = 200  # of test sets, where the noise of a score has no formula; fewer of large ones
LEAST_DRAWS, MOST_DRAWN = 20, 10**8  # answers, of all draws together


class Metric(ABC):
    name: ClassVar[str]
    title: ClassVar[str]  # in tables: "accuracy"
    unit: ClassVar[str] = ""  # behind a printed score: "%"
    digits: ClassVar[int] = 3  # behind the point in tables; a single score has one more
    higher_is_better: ClassVar[bool] = True
    needs_log_p: ClassVar[bool] = False  # it reads probabilities, not answers alone
    targets: ClassVar[tuple[str, ...]]  # it can score (target.py)

    @abstractmethod
    def score(self, answers: Answers, target: Target) -> float:
        """Score the answers to a split, in its unit."""

    def from_counts(self, loss: float, right: int, scored: int) -> float | None:
        """Give the score from the mean loss and the number of right classes, where it follows from
        these: then an evaluation on dev keeps no answers."""
        return None

    def check(self, labels: np.ndarray) -> None:  # noqa: B027 - most say something of all labels
        """UserError, beginning with what the labels are, if it says nothing about them."""

    def constant(self, train: np.ndarray, test: np.ndarray, target: Target) -> float:
        """Score on `test` the one answer that is best for all examples of `train`. Labels that are
        not scored are left out by the caller."""
        return self._all(self.best_constant(train, target), test, target)

    def best_constant(self, train: np.ndarray, target: Target) -> np.ndarray:
        """Choose the answer to one example that is best for all examples of `train`."""
        return max(
            target.constants(train), key=lambda one: self.sign * self._all(one, train, target)
        )

    def _all(self, one: np.ndarray, labels: np.ndarray, target: Target) -> float:
        answers = np.broadcast_to(one, labels.shape)
        return self.score(Answers(answers, labels), target)

    def noise(self, answers: Answers, target: Target) -> float:
        """The standard deviation of the score if the test examples were drawn again. The same
        answers always give the same number."""
        rng, n = np.random.default_rng(0), answers.examples
        draws = min(DRAWS, max(LEAST_DRAWS, MOST_DRAWN // answers.answers.size))
        sets = (answers.drawn(rng.integers(0, n, n)) for _ in range(draws))
        return float(np.std([self.score(drawn, target) for drawn in sets]))

    @property
    def sign(self) -> int:
        return 1 if self.higher_is_better else -1

    def better(self, a: float, b: float) -> bool:
        """Whether a score is better than another one; any is better than NaN."""
        return self.sign * a > self.sign * b or (math.isnan(b) and not math.isnan(a))

    def text(self, score: float) -> str:
        """`41.05 %`, `0.8731`"""
        return text_of(facts_of(self), score)

    def short(self, score: float) -> str:
        """`41.1 %`, `0.873`: as exactly as tables have it."""
        return f"{score:.{self.digits}f} {self.unit}".rstrip()


# ---------------------------------------------------------------------- by name

M = TypeVar("M", bound=type[Metric])
BUILTIN = {
    "accuracy": "lra.metrics.classes:Accuracy",
    "f1": "lra.metrics.labels:F1",
    "average_precision": "lra.metrics.labels:AveragePrecision",
    "r2": "lra.metrics.numbers:R2",
    "rmse": "lra.metrics.numbers:RMSE",
    "mae": "lra.metrics.numbers:MAE",
    "pearson": "lra.metrics.numbers:Pearson",
    "spearman": "lra.metrics.numbers:Spearman",
    "accuracy_f1": "lra.metrics.glue:AccuracyF1",
    "matthews": "lra.metrics.glue:Matthews",
    "pearson_spearman": "lra.metrics.glue:PearsonSpearman",
    "bits_per_byte": "lra.metrics.language:BitsPerByte",
    "perplexity": "lra.metrics.language:Perplexity",
}


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and value.isprintable()


# What records and tables can hold, in words.
LIMITS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "name": (
        lambda x: isinstance(x, str) and NAME.fullmatch(x) is not None,
        "a word of letters, digits, _ and -",
    ),
    "title": (_is_text, "a text in one line"),
    "unit": (_is_text, "a text in one line"),
    "digits": (lambda x: type(x) is int and 0 <= x <= 9, "a whole number from 0 to 9"),
    "higher_is_better": (lambda x: isinstance(x, bool), "True or False"),
    "targets": (
        lambda x: isinstance(x, tuple | list) and {*x} <= {*TARGETS},
        f"a tuple of {', '.join(TARGETS)}",
    ),
}


def register(metric: M) -> M:
    """Make a class known by its name: a decorator."""
    missing = [key for key in ("name", "title", "targets") if not hasattr(metric, key)]
    if missing:
        raise UserError(f"metric '{metric.__name__}' lacks {', '.join(missing)}")
    if not issubclass(metric, Metric):
        raise UserError(f"metric '{metric.__name__}' must extend lra.metrics.Metric")
    for key, (fine, must) in LIMITS.items():
        if not fine(value := getattr(metric, key)):
            raise UserError(
                f"metric '{metric.__name__}' has {key} = {value!r:.80}: it must be {must}"
            )
    if metric.name not in BUILTIN:
        METRICS.add(metric.name, metric)
    elif metric is not METRICS.get(metric.name):
        raise UserError(f"there is a metric '{metric.name}' already; choose another name")
    return metric


METRICS = Registry[Metric](
    "metric",
    builtin=BUILTIN,
    entry_points="lra.metrics",
    register=register,
    unknown="there is no metric",
)


def get(name: str) -> Metric:
    """Give the metric of that name, which is imported now."""
    return METRICS.get(name)()


def names() -> list[str]:
    return METRICS.names()


def named(metrics: Sequence[str | type[Metric]], target: Target) -> list[str]:
    """Give the names of a task's metrics, registered now; the target's own where it names none.
    UserError for one that cannot score what the task asks."""
    if isinstance(metrics, str):
        raise UserError(f"metrics are a list: give ['{metrics}']")
    listed = [m if isinstance(m, str) else register(m).name for m in metrics or (target.metric,)]
    for name in listed:
        if target.name not in (fits := get(name).targets):
            raise UserError(
                f"metric '{name}' scores {' and '.join(fits)}, but the task asks for "
                f"{target.name}: choose among {', '.join(suited(target.name))}"
            )
    if len({*listed}) < len(listed):
        raise UserError(f"a metric is named twice: {', '.join(listed)}")
    return listed


def floor_of(metric: Metric, train: np.ndarray, test: np.ndarray, target: Target) -> float:
    """Score on `test` the one answer that is best for all of `train`; UserError where a metric of
    somebody's own gives no number that a record can hold."""
    what = f"metric '{metric.name}', asked to score one answer to all test examples,"
    try:
        score = metric.constant(train, test, target)
    except UserError:
        raise
    except Exception as error:
        at = traceback.extract_tb(error.__traceback__)[-1]
        reason = f"{type(error).__name__}: {error}"
        raise UserError(f"{what} failed at {at.filename}, line {at.lineno} ({reason})") from error
    if isinstance(score, str | bool) or not hasattr(score, "__float__") or np.ndim(score):
        raise UserError(f"{what} gave {score!r:.80}: it must return a float")
    if not abs(score) < LARGEST or (metric.unit == "%" and not 0 <= score <= 100):
        of = "0 to 100, as its unit is %" if metric.unit == "%" else "a finite number"
        raise UserError(f"{what} gave {score!r:.80}: it must be {of}")
    return float(score)


def facts_of(metric: Metric) -> dict[str, Any]:
    """Give what a record says of its metric, so that tables need no code of it."""
    return {
        "name": metric.name,
        "title": metric.title,
        "unit": metric.unit,
        "digits": metric.digits,
        "higher_is_better": metric.higher_is_better,
    }


def suited(target: str) -> list[str]:
    return [name for name in names() if target in get(name).targets]
