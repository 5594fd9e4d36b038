"""What a manifest says of its arrays: lengths, labels, ids, and examples that come again."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np

from lra.data.arrays import IGNORED, QUANTILES, Split


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
    lengths, lowest, highest, constant = [], split.layout.vocab, -1, 0
    for ids, length in split.blocks():
        lengths.append(length.ravel())
        highest = max(highest, int(ids.max()))
        real = np.arange(split.width) < length[..., None]
        lowest = min(lowest, int(np.where(real, ids, highest).min()))
        constant += int((ids == ids[..., :1]).all(-1).sum())
        digests.update(hashlib.blake2b(row, digest_size=16).digest() for row in ids)
    quantiles = np.quantile(np.concatenate(lengths), list(QUANTILES.values()), method="lower")
    labels = np.asarray(split.labels)
    scored = labels[labels != IGNORED]
    facts = {
        "examples": len(split),
        "labels": np.bincount(scored, minlength=split.layout.classes).tolist(),
        "lengths": dict(zip(QUANTILES, quantiles.astype(int).tolist(), strict=True)),
        "ids": [lowest, highest],
    }
    return facts | ({"constant": constant} if split.layout.grid else {}), digests
