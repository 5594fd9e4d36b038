"""The official order, against values read from the real TensorFlow Datasets."""

from __future__ import annotations

import hashlib

import pytest

from lra.data.sources.tfds_order import order, percent


def test_cifar_training_order() -> None:
    assert order("train", range(50_000))[:5].tolist() == [16399, 1680, 47917, 17307, 27051]


def test_cifar_validation_order() -> None:
    stored = order("train", range(50_000))
    validation = stored[percent(len(stored), 90, 100)]
    assert len(validation) == 5000
    assert validation[:5].tolist() == [13431, 9237, 17462, 32685, 9518]


def test_cifar_test_order() -> None:
    assert order("test", range(10_000))[:5].tolist() == [9933, 5669, 163, 6686, 4747]


def test_sorted_by_the_whole_integer() -> None:
    keys = [f"aclImdb/train/neg/{i}_3.txt" for i in range(300)]
    by_integer = sorted(
        range(300), key=lambda i: int(hashlib.md5(b"train" + keys[i].encode()).hexdigest(), 16)
    )
    assert order("train", keys).tolist() == by_integer
    assert order("train", [k.encode() for k in keys]).tolist() == by_integer


@pytest.mark.parametrize(
    ("n", "start", "end", "expected"),
    [(5, 0, 90, (0, 4)), (5, 90, 100, (4, 5)), (7, 80, 90, (6, 6)), (1000, 33, 66, (330, 660))],
)
def test_percent_slices_round_to_the_nearest(
    n: int, start: int, end: int, expected: tuple[int, int]
) -> None:
    bounds = percent(n, start, end)
    assert (bounds.start, bounds.stop) == expected
