"""What a manifest says of its arrays: lengths, labels, ids, and examples that come again."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from lra.base.errors import UserError
from lra.data.arrays import IGNORED, IN_WORDS, QUANTILES, Layout, Split
from lra.metrics.metric import get


def statistics(splits: dict[str, Split]) -> dict[str, Any]:
    """Count the arrays: per split, and duplicates within and across splits."""
    facts, seen = {}, {}
    for name, split in splits.items():
        facts[name], seen[name] = _describe(split)
    repeats = {name: len(splits[name]) - len(digests) for name, digests in seen.items()}
    for a, b in (("train", "val"), ("train", "test"), ("val", "test")):
        repeats[f"{a}/{b}"] = len(seen[a] & seen[b])
    return {"splits": facts, "duplicates": repeats}


def _describe(split: Split) -> tuple[dict[str, Any], set[bytes]]:
    digests: set[bytes] = set()
    lengths, constant = [], 0
    lowest, highest = np.inf, -np.inf  # of ids, or of each channel of numbers
    for ids, length in split.blocks():
        lengths.append(length.ravel())
        real = ids[np.arange(split.width) < length[..., None]]  # (tokens,) or (tokens, channels)
        if len(real):
            lowest, highest = np.minimum(lowest, real.min(0)), np.maximum(highest, real.max(0))
        constant += int((ids == ids[..., :1]).all(-1).sum()) if split.layout.grid else 0
        digests.update(hashlib.blake2b(row, digest_size=16).digest() for row in ids)
    kind = float if split.layout.channels else int
    ends = np.nan_to_num([lowest, highest], posinf=0, neginf=0)  # infinite where all are empty
    seen = ends.astype(kind).tolist()
    quantiles = np.quantile(np.concatenate(lengths), list(QUANTILES.values()), method="lower")
    facts = {
        "examples": len(split),
        **describe_labels(split.layout, np.asarray(split.labels)),
        "lengths": dict(zip(QUANTILES, quantiles.astype(int).tolist(), strict=True)),
        "numbers" if split.layout.channels else "ids": seen,
    }
    return facts | ({"constant": constant} if split.layout.grid else {}), digests


# ---------------------------------------------------------------------- labels


def describe_labels(layout: Layout, labels: np.ndarray) -> dict[str, Any]:
    """Count classes, or examples with each label; of numbers give the moments of each column."""
    if layout.asks == "classes":
        counts = np.bincount(labels[labels != IGNORED], minlength=layout.classes)
        return {"labels": counts.tolist()}
    if layout.asks == "labels":
        return {"with_label": labels.sum(0, dtype=np.int64).tolist()}
    columns = labels.reshape(len(labels), -1)
    mean, spread = moments(labels)
    least, largest = (extreme(0).tolist() for extreme in (columns.min, columns.max))
    return {"targets": {"mean": mean, "spread": spread, "least": least, "largest": largest}}


def moments(numbers: np.ndarray) -> tuple[list[float], list[float]]:
    """Compute mean and standard deviation of each column, the same on every machine."""
    means, spreads = [], []
    for column in numbers.reshape(len(numbers), -1).T.astype(np.float64):
        mean = math.fsum(column) / len(column)
        constant = (column == column[0]).all()  # whose mean is off by a rounding
        variance = 0.0 if constant else math.fsum((column - mean) ** 2) / len(column)
        means.append(mean)
        spreads.append(math.sqrt(variance))
    return means, spreads


def check_metrics(layout: Layout, labels: Mapping[str, np.ndarray]) -> None:
    """UserError if a metric of the task says nothing about the labels of a split, by its name."""
    for name in layout.metric_names:
        for split, of_split in labels.items():
            try:
                get(name).check(of_split)
            except UserError as error:
                raise UserError(f"in {layout.name}'s {IN_WORDS[split]} split {error}") from error
