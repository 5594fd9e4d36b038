"""What scikit-learn fits in rounds: boosted trees and a small network.

Both are fitted to training examples, and dev decides after which round they answer: the best one,
of equal ones the first. scikit-learn could hold back examples of its own for that, but a task has a
dev split. All sums are those of one thread, so that the number of cores changes nothing; between
machines last digits may differ, so scores are compared within one standard error.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from lra.base.errors import UserError
from lra.metrics.target import Numbers, Target

NEEDS = "need scikit-learn: pip install 'luna-lra[rules]'"
# Dev prefers these to smaller trees, on pictures and on expressions; l2 keeps small leaves small.
TREES = {"max_depth": 6, "max_leaf_nodes": None, "l2_regularization": 5.0}
ROUNDS, MORE = 100, 20  # trees of an output, and how many are grown before the clock is looked at
PATIENCE = 20  # rounds without a better score on dev
MOST = 32_768  # training examples of trees: more make them slow and hardly better
SURE = 10.0  # logit of a label that all training examples have
WIDTHS = (192, 192)  # of the network's hidden layers
BATCH, STEPS = 256, 1500
LOOK, LOOKS = 150, 3  # steps between scores on dev, and so many without a better one
LEAST = 1e-4  # probability of a label: its logit is finite

Score = Callable[[np.ndarray], float]  # of answers to dev, the more the better
InTime = Callable[[], bool]


class NoScikitLearn(UserError):
    """The extra `rules` is not installed."""


def need_scikit_learn(what: str) -> None:
    """NoScikitLearn that names what cannot be fitted, in the plural."""
    try:
        import sklearn  # noqa: F401
    except ImportError as error:
        raise NoScikitLearn(f"{what} {NEEDS}") from error


def one_thread() -> Any:
    """Let all libraries sum with one thread inside a `with`."""
    from threadpoolctl import threadpool_limits

    return threadpool_limits(1)


def best_round(rounds: Iterable[list[np.ndarray]], score: Score, patience: int) -> list[np.ndarray]:
    """Choose among the answers of each round, those to dev first, by their score on dev."""
    best, kept, since = -math.inf, list[np.ndarray](), 0
    for answers in rounds:
        new = score(answers[0])
        since += 1
        if new > best or not kept:
            best, kept, since = new, answers, 0
        if since == patience:
            break
    return kept


# ---------------------------------------------------------------------- what is fitted


def _wanted(labels: np.ndarray, target: Target) -> np.ndarray:
    """Give labels as models are fitted to them: numbers in units of their spread."""
    if isinstance(target, Numbers):
        return (labels.astype(np.float64) - target.centre) / target.spread
    return labels.astype(np.int64)


def _given(outputs: np.ndarray, target: Target) -> np.ndarray:
    """Turn what models answer into answers."""
    return target.given(outputs) if isinstance(target, Numbers) else outputs


# ---------------------------------------------------------------------- trees


def trees(
    target: Target,
    parts: list[np.ndarray],
    labels: np.ndarray,
    score: Score,
    in_time: InTime = lambda: True,
) -> list[np.ndarray]:
    """Boost trees on the columns (n, columns) of the first part and its labels; answer the others,
    of which dev is the first."""
    parts = [parts[0][:MOST], *parts[1:]]
    with one_thread():
        return best_round(_grown(target, parts, labels[:MOST], in_time), score, PATIENCE)


def _grown(
    target: Target, parts: list[np.ndarray], labels: np.ndarray, in_time: InTime
) -> Iterator[list[np.ndarray]]:
    """Yield the answers to each other part after each round."""
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

    numbers = target.name == "numbers"
    kind = HistGradientBoostingRegressor if numbers else HistGradientBoostingClassifier
    outputs = _wanted(labels, target)
    columns = [outputs] if outputs.ndim == 1 else list(outputs.T)
    fixed = {"early_stopping": False, "warm_start": True, "random_state": 0}
    models = [kind(**TREES, **fixed) for _ in columns]
    for upto in range(MORE, ROUNDS + 1, MORE):
        for model, column in zip(models, columns, strict=True):
            model.set_params(max_iter=upto).fit(parts[0], column)
        staged = [_staged(models, part, target, labels.shape[1:]) for part in parts[1:]]
        for answers in itertools.islice(zip(*staged, strict=True), upto - MORE, upto):
            yield list(answers)
        if not in_time():
            return


def _staged(
    models: list[Any], part: np.ndarray, target: Target, shape: tuple[int, ...]
) -> Iterator[np.ndarray]:
    """Yield the answers to a part after each round, shaped as labels."""
    if target.name == "classes":
        yield from models[0].staged_predict(part)
        return
    for columns in zip(*(_values(model, part, target) for model in models), strict=True):
        outputs = np.stack(columns, 1)
        yield _given(outputs, target).reshape(len(part), *shape)


def _values(model: Any, part: np.ndarray, target: Target) -> Iterator[np.ndarray]:
    """Yield one output after each round: a number, or the logit of a label."""
    if target.name == "numbers":
        return model.staged_predict(part)
    if len(model.classes_) == 1:
        return itertools.repeat(np.full(len(part), SURE if model.classes_[0] else -SURE))
    return model.staged_decision_function(part)


# ---------------------------------------------------------------------- a small network


def network(
    target: Target, parts: list[Any], labels: np.ndarray, score: Score, in_time: InTime
) -> list[np.ndarray]:
    """Train two hidden layers on the rows of the first part, dense or sparse, and its labels;
    answer the others, of which dev is the first."""
    with one_thread():
        return best_round(_trained(target, parts, labels, in_time), score, LOOKS)


def _trained(
    target: Target, parts: list[Any], labels: np.ndarray, in_time: InTime
) -> Iterator[list[np.ndarray]]:
    """Yield the answers to each other part where the network is to be scored."""
    from sklearn.neural_network import MLPClassifier, MLPRegressor

    kind = MLPRegressor if target.name == "numbers" else MLPClassifier
    model = kind(hidden_layer_sizes=WIDTHS, batch_size=BATCH, random_state=0)
    outputs, rng = _wanted(labels, target), np.random.default_rng(0)
    if outputs.ndim > 1 and outputs.shape[1] == 1:
        outputs = outputs[:, 0]
    known = {}
    if target.name != "numbers":  # of several labels their columns
        known["classes"] = np.unique(outputs) if outputs.ndim == 1 else np.arange(target.outputs)
    for _ in range(LOOK, STEPS + 1, LOOK):
        rows = rng.integers(len(labels), size=LOOK * BATCH)
        model.partial_fit(parts[0][rows], outputs[rows], **known)
        yield [_answers(model, part, target).reshape(-1, *labels.shape[1:]) for part in parts[1:]]
        if not in_time():
            return


def _answers(model: Any, part: Any, target: Target) -> np.ndarray:
    if target.name != "labels":
        return _given(model.predict(part), target)
    share = model.predict_proba(part)
    share = share[:, -1] if model.n_outputs_ == 1 else share
    share = share.clip(LEAST, 1 - LEAST)
    return np.log(share / (1 - share))
