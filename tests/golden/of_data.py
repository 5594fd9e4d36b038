"""The order of examples, batches, masks and labels: what a network sees, and when."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch

from lra import data as tasks
from lra.base.config import DataRules, Mask, Pad
from lra.data.arrays import Layout, Split
from lra.data.device import DeviceLoader
from lra.data.loader import Batch, Loader
from lra.data.registry import get

from .compare import Numbers
from .made import made, small

EXAMPLES, WIDTH = 150, 200  # of several widths of pad=batch


def examples(layout: Layout) -> Split:
    """The first id of an example is its number, so that a batch shows its order."""
    lengths = np.array([2 + i * 37 % (WIDTH - 2) for i in range(EXAMPLES)])
    ids = np.arange(EXAMPLES)[:, None] + np.arange(WIDTH) % 7 + 1
    ids[np.arange(WIDTH) >= lengths[:, None]] = 0
    labels = np.array([i % 3 for i in range(EXAMPLES)], np.uint8)
    return Split("train", layout, WIDTH, ids.astype(np.uint16), lengths, labels, None)


def shown(batch: Batch) -> dict[str, Any]:
    ids, mask, labels = batch
    real = ids != 0 if mask is None else mask
    return {
        "examples": (ids[:, 0] - 1).tolist(),
        "width": ids.shape[-1],
        "ids": int(ids.sum()),
        "real": real.sum(-1).tolist() if mask is not None else "no mask",
        "labels": labels.tolist(),
    }


def batches(loader: Loader, count: int = 3) -> list[dict[str, Any]]:
    return [shown(batch) for batch, _ in zip(loader, range(count), strict=False)]


def data() -> Numbers:
    layout = tasks.of(small().task)
    split = examples(layout)
    numbers: Numbers = {}
    for pad in Pad:
        rules = DataRules(WIDTH, 256, pad, Mask.length, 512)
        stream = Loader(split, 8, rules=rules, seed=3, steps=40)
        numbers[f"pad {pad.name}"] = batches(stream)
        stream.load_state_dict({"delivered": 17})  # a batch that ends one epoch and begins another
        numbers[f"pad {pad.name}, next epoch"] = batches(stream)
        second = Loader(split, 8, rules=rules, seed=3, steps=40, rank=1, world=2)
        numbers[f"pad {pad.name}, second process"] = batches(second)
    return numbers | _others(split) | _splits()


def _others(split: Split) -> Numbers:
    rules = DataRules(WIDTH, 256, Pad.full, Mask.nonzero, 512)
    hidden = replace(rules, mask=Mask.none)
    limited = Loader(split, 8, rules=rules, seed=4, limit=2)
    options: dict[str, Any] = {"seed": 3, "steps": 40, "device": torch.device("cpu")}
    held = {
        f"held on a device, mask {mask.name}": batches(
            DeviceLoader(split, 8, rules=replace(rules, mask=mask), **options)
        )
        for mask in Mask
    }
    return {
        "limited": batches(limited) + batches(limited),
        "without mask": batches(Loader(split, 8, rules=hidden, seed=3, steps=2)),
        "in order": [len(batch.ids) for batch in Loader(split, 40, rules=rules)],
        "last dropped": [len(b.ids) for b in Loader(split, 40, rules=rules, drop_last=True)],
    } | held


def _splits() -> Numbers:
    """Which examples are held out, and the first ones alone; a task's labels of every kind."""
    prepared = made(tasks.of(small().task))
    train = prepared.split("train")
    numbers: Numbers = {}
    for held in (False, True):
        kept = train.sequences(5, held=held)
        rows = np.arange(len(kept))
        numbers[f"inputs, held out {held}"] = kept.ids(rows)[:, 1].tolist()
    first = train.first(7)
    numbers["first"] = first.lengths(np.arange(len(first))).tolist()
    pairs = Split(
        "val",
        get("retrieval"),
        4,
        np.arange(24).reshape(6, 4) % 5,
        np.array([4, 3, 2, 1, 4, 2]),
        np.array([0, 1, 0], np.uint8),
        np.array([[0, 1], [2, 3], [5, 1]], np.uint32),
    )
    [batch] = Loader(pairs, 3, rules=DataRules(4, 6, Pad.full, Mask.length, 512))
    assert batch.mask is not None
    numbers["pairs"] = [batch.ids.flatten().tolist(), batch.mask.int().flatten().tolist()]
    return numbers
