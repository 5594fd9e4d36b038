"""What labels given from memory ask for, and what is wrong with them.

| labels of the examples                              | without `targets` they are          |
|-----------------------------------------------------|-------------------------------------|
| whole numbers                                       | "classes"                           |
| floats, also whole ones; rows of them, equally long | "numbers"                           |
| rows of whole numbers, as many as the example's ids | "tokens": a class per id            |
| rows of 0 and 1 of another length, at least 2       | "labels": which of several apply    |
| rows of 0 and 1, as many as ids in every example    | either: refused until `targets` says |
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from lra.base.errors import UserError, nearest
from lra.data.arrays import IGNORED
from lra.data.statistics import moments

Rows = Sequence[np.ndarray] | np.ndarray  # an array per example
KINDS = ("classes", "tokens", "labels", "numbers")  # that `targets` may be
MOST_CLASSES = 2**16  # an answer is stored in two bytes
COARSE = 1e-3  # of the spread: the most that a number may lose when it is stored in 32 bits


def read(label: Any) -> np.ndarray:
    """Read what was given for one example."""
    try:
        values = np.asarray(label)
    except ValueError:  # a list of lists of different lengths
        values = np.empty(0)
    if values.dtype.kind not in "biuf" or not values.size:
        raise UserError(
            "labels must be whole numbers (classes), other numbers, or lists of them: give classes "
            "as 0, 1 and so on"
        )
    return values


def hidden(labels: Sequence[Any]) -> bool:
    """Say if these are the labels of a hidden test set, which data sets give as -1."""
    try:
        values = np.asarray(labels)
    except ValueError:  # rows of different lengths
        return False
    return values.dtype.kind in "if" and values.size > 0 and bool((values == -1).all())


def decide(
    by_split: Mapping[str, Rows], ids: Sequence[int] | None, targets: str | None
) -> tuple[str, dict[str, Rows]]:
    """Give what all labels ask for, in the words of KINDS, and the labels with its type. `ids` are
    counts of all examples in order, None of pairs."""
    labels = [label for of_split in by_split.values() for label in of_split]
    kind = asked(labels, ids, targets)
    made = checked(kind, labels, ids)
    ends = np.cumsum([len(of_split) for of_split in by_split.values()])
    starts = [0, *ends[:-1]]
    return kind, {s: made[a:b] for s, a, b in zip(by_split, starts, ends, strict=True)}


def facts(kind: str, by_split: Mapping[str, Rows]) -> dict[str, Any]:
    """Give what a task says of its labels (lra.data.arrays.Layout)."""
    if kind in ("classes", "tokens"):
        largest = max(int(label.max()) for of_split in by_split.values() for label in of_split)
        if largest >= MOST_CLASSES:
            raise UserError(
                f"a label is {largest:,}, which would make as many classes and one more: number "
                "the classes from 0 on"
            )
        return {"per_token": kind == "tokens", "classes": 1 + max(0, largest)}
    train = np.asarray(by_split["train"])
    asks = {"asks": kind, "classes": train[0].size}
    if kind == "labels":
        return asks
    for of_split in by_split.values():
        refuse_unfit(np.asarray(of_split))
    centre, spread = moments(train.astype(np.float32))
    return asks | {"centre": tuple(centre), "spread": tuple(x or 1.0 for x in spread)}


def scored(labels: Rows) -> np.ndarray:
    """Join the labels of a split, without those of tokens that are not scored."""
    if isinstance(labels, np.ndarray):
        return labels
    joined = np.concatenate([np.atleast_1d(label) for label in labels])
    return joined[joined != IGNORED]


# ---------------------------------------------------------------------- what is asked


def asked(labels: Sequence[np.ndarray], ids: Sequence[int] | None, targets: str | None) -> str:
    """Give what labels of examples with so many `ids` ask for (None: of pairs), in the words of
    KINDS. UserError where it is not clear."""
    if targets is not None and targets not in KINDS:
        raise UserError(f"targets cannot be '{targets}'{nearest(targets, KINDS)}")
    dimensions = {label.ndim for label in labels}
    if dimensions not in ({0}, {1}):
        raise UserError(
            "give every example one label, or every one a list: of one per id, of 0 and 1, or of "
            "numbers"
        )
    if targets is not None:
        return targets
    if any(label.dtype.kind == "f" for label in labels):
        return "numbers"
    if dimensions == {0}:
        return "classes"
    widths = [len(label) for label in labels]
    binary = len({*widths}) == 1 and widths[0] > 1 and all(map(_is_binary, labels))
    if widths == ids and binary:
        raise UserError(
            f"each example has {widths[0]} ids and {widths[0]} labels, all 0 or 1: say "
            'targets="tokens" for one label per id, targets="labels" for several per example'
        )
    if widths == ids:
        return "tokens"
    if binary:
        return "labels"
    raise UserError(
        "an example has more or fewer labels than ids: give one per id, or say what the rows are "
        'with targets="labels" or targets="numbers"'
    )


def _is_binary(label: np.ndarray) -> bool:
    return bool(((label == 0) | (label == 1)).all())


# ---------------------------------------------------------------------- one kind


def checked(kind: str, labels: Sequence[np.ndarray], ids: Sequence[int] | None) -> Rows:
    """Give the labels as arrays of their kind's type; UserError for the first that is none."""
    if kind == "numbers":
        return _equally_long(labels, np.float64)
    for label in labels:
        wrong = (label % 1 != 0) | ((label < 0) & ((label != IGNORED) | (kind != "tokens")))
        if wrong.any():
            raise UserError(
                f"labels must be whole numbers from 0 on, but one is {label[wrong][0]:g}: give "
                'classes as 0, 1 and so on, or say targets="numbers"'
            )
    if kind == "labels":
        if others := [label for label in labels if not _is_binary(label)]:
            raise UserError(
                f"rows of labels hold 0 and 1, a place for each label, but one is {others[0]}"
            )
        return _equally_long(labels, np.int64)
    if kind == "tokens" and ids is None:
        raise UserError("pairs cannot have a label per id: give each pair a label, or a row")
    if kind == "tokens" and ids != [label.size for label in labels]:
        raise UserError("an example has more or fewer labels than ids: give one per id")
    if kind == "classes" and labels[0].ndim:
        raise UserError(
            'an example has several classes: say targets="tokens" for one per id, or '
            'targets="labels" for rows of 0 and 1'
        )
    return [label.astype(np.int64) for label in labels]


def _equally_long(labels: Sequence[np.ndarray], kind: type[np.generic]) -> np.ndarray:
    """Stack labels (n,), or rows (n, k) of which k = 1 is (n,)."""
    sizes = sorted({label.size for label in labels})
    if len(sizes) > 1:
        raise UserError(
            f"one example has {sizes[0]} targets, another one {sizes[-1]}: give all equally many"
        )
    return np.stack(labels).astype(kind)


def refuse_unfit(numbers: np.ndarray) -> None:
    """UserError for targets (n,) or (n, k) that cannot be stored as float32."""
    with np.errstate(over="ignore"):  # what is too large becomes infinite
        stored = numbers.astype(np.float32)
    if not np.isfinite(stored).all():
        raise UserError(
            f"a target is {numbers[~np.isfinite(stored)][0]}, which is no finite number of 32 "
            "bits: leave its example out, or scale the targets"
        )
    lost = np.abs(stored - numbers).reshape(len(numbers), -1).max(0)
    spread = np.array(moments(numbers)[1])
    if ((lost > COARSE * spread) & (spread > 0)).any():
        raise UserError(
            f"targets around {numbers.flat[0]:g} differ too little for numbers of 32 bits: "
            "subtract their mean from them first"
        )
