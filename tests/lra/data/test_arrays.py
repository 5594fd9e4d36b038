"""The arrays of a task: what is stored, what is read back, and damage when they are opened."""

from __future__ import annotations

import hashlib
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lra.data
from lra.base.errors import UserError
from lra.data.arrays import IGNORED, SPLITS, Example, Layout, Prepared
from lra.data.prepare import load_prepared, prepare
from lra.data.task import RawSplit
from lra.data.writer import Writer
from lra.metrics.metric import get

from . import kit

Call = Callable[..., tuple[int, str, str]]


Fake = Callable[[str], Prepared]


def test_arrays_are_plain_npy_files(fake: Fake) -> None:
    prepared = fake("numbers")
    ids = np.load(prepared.folder / "val.ids.npy")
    lengths = np.load(prepared.folder / "val.lengths.npy")
    labels = np.load(prepared.folder / "val.labels.npy")
    assert (ids.shape, ids.dtype) == ((20, 150), np.uint16)
    for i in range(20):
        assert ids[i].tolist() == [i] * (i + 1) + [0] * (149 - i)
    assert lengths.tolist() == list(range(1, 21))
    assert labels.tolist() == [i % 3 for i in range(20)]
    for name, facts in prepared.facts["arrays"].items():
        file = prepared.folder / f"{name}.npy"
        assert hashlib.sha256(file.read_bytes()).hexdigest() == facts["sha256"]
        assert list(np.load(file, mmap_mode="r").shape) == facts["shape"]


def test_a_split_gives_back_what_was_put_in(fake: Fake) -> None:
    split = fake("numbers").split("train")
    index = np.array([5, 149, 0, 5])
    assert split.lengths(index).tolist() == [6, 150, 1, 6]
    ids = split.ids(index, 8)
    assert ids.tolist() == [[5] * 6 + [0] * 2, [149] * 8, [0] * 8, [5] * 6 + [0] * 2]
    whole = np.concatenate([ids for ids, _ in split.blocks()])
    assert whole.sum(1).tolist() == [i * (i + 1) for i in range(150)]


def test_a_dual_task_stores_each_text_once(fake: Fake) -> None:
    prepared = fake("pairs")
    assert prepared.facts["arrays"]["texts.ids"]["shape"] == [7, 150]
    assert prepared.facts["arrays"]["train.pairs"]["shape"] == [150, 2]
    split = prepared.split("train")
    ids, lengths = split.ids(np.array([1, 9])), split.lengths(np.array([1, 9]))
    assert ids.shape == (2, 2, 150)
    # texts 1, 2 and 2, 18 mod 7 = 4; texts 3 and up are cut at 150
    assert lengths.tolist() == [[70, 140], [140, 150]]
    assert [np.unique(side[side > 0]).tolist() for side in ids.reshape(4, -1)] == [
        [2],
        [3],
        [3],
        [5],
    ]
    # sides longer than 150, counted each time they are used
    expected = sum((i % 7 > 2) + (2 * i % 7 > 2) for i in range(150))
    assert prepared.facts["splits"]["train"]["truncated"] == expected


def test_statistics_are_those_of_the_data(fake: Fake) -> None:
    facts = fake("numbers").facts
    assert facts["splits"]["train"] == {
        "examples": 150,
        "labels": [50, 50, 50],
        "lengths": {"min": 1, "5%": 8, "25%": 38, "median": 75, "75%": 112, "95%": 142, "max": 150},
        "ids": [0, 149],
        "truncated": 0,
    }
    assert facts["duplicates"] == {
        "train": 0,
        "val": 0,
        "test": 0,
        "train/val": 20,
        "train/test": 11,
        "val/test": 11,
    }
    pictures = fake("pictures").facts
    assert [pictures["splits"][s]["constant"] for s in SPLITS] == [30, 4, 3]
    assert pictures["duplicates"]["train"] == 150 - 121  # the black ones are one picture
    pairs = fake("pairs").facts
    assert pairs["duplicates"]["val"] == 20 - 7
    assert pairs["duplicates"]["train/test"] == 7


def test_summary_and_floor(tiny: Prepared) -> None:
    train, test = (tiny.facts["splits"][s]["labels"] for s in ("train", "test"))
    assert tiny.floor(get("accuracy")) == 100 * test[train.index(max(train))] / sum(test)
    assert tiny.summary()["examples"] == {"train": 96, "val": 32, "test": 32}


def test_a_split_survives_pickling(fake: Fake) -> None:
    """A process started for another device gets its data this way."""
    split = pickle.loads(pickle.dumps(fake("pairs").split("train")))
    assert split.ids(np.array([1]), 2).tolist() == [[[2, 2], [3, 3]]]


def test_ids_are_not_memory_mapped(tiny: Prepared) -> None:
    """Mapped pages would count as the process's memory, in the end all of the data set's."""
    split = tiny.split("train")
    split.ids(np.arange(len(split)))
    maps = Path("/proc/self/maps")
    if not maps.exists():
        pytest.skip("needs /proc")
    assert str(tiny.folder / "train.ids.npy") not in maps.read_text(encoding="utf-8")


@pytest.mark.parametrize("cut", [1, 100, 2000])
def test_a_shortened_file_is_refused_when_it_is_opened(tiny: Prepared, cut: int) -> None:
    file = tiny.folder / "val.ids.npy"
    size = file.stat().st_size
    os.truncate(file, size - cut)
    with pytest.raises(UserError) as error:
        load_prepared(tiny.folder)
    assert f"{file} is damaged: {size - cut:,} bytes found, {size:,} bytes expected" in str(
        error.value
    )
    assert "lra data prepare listops source=tiny" in str(error.value)
    assert "--force" in str(error.value)
    file.unlink()
    with pytest.raises(UserError, match=r"val\.ids\.npy is missing, 2,016 bytes expected"):
        load_prepared(tiny.folder)
    assert kit.differences(tiny.folder) == [f"{file}: not there any more"]


def test_a_file_shortened_while_in_use_is_an_error_and_not_a_dead_process(tiny: Prepared) -> None:
    split = tiny.split("train")
    os.truncate(tiny.folder / "train.ids.npy", 3000)
    with pytest.raises(UserError, match=r"train\.ids\.npy is damaged: it ends within row"):
        split.ids(np.arange(len(split)))


@pytest.mark.parametrize(
    ("ids", "label", "complaint"),
    [
        ([1, 2], 3, "label 3; labels of numbers are whole numbers from 0 to 2"),
        ([1, 2], -1, "label -1"),
        ([1, 300], 0, "id 300; ids of numbers are whole numbers from 0 to 299"),
        ([-1, 2], 0, "id -1"),
        ([1, 2], 0.5, "label 0.5"),
        ([1, 2.5], 0, "id 2.5"),
    ],
)
def test_ids_and_labels_out_of_range(
    ids: list[float],
    label: float,
    complaint: str,
    fakes: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bad = [RawSplit("train", [Example(np.array(ids), label)], 1)]
    monkeypatch.setattr("tests.lra.data.conftest.Numbers.splits", lambda *a: bad)
    with pytest.raises(UserError) as error:
        prepare(lra.data.configure("numbers"), max_length=9, data_dir=tmp_path / "data")
    assert complaint in str(error.value)
    assert kit.leftovers(tmp_path / "data") == []


@pytest.mark.parametrize(
    ("facts", "complaint"),
    [
        ({"classes": 257}, "numbers has more than 256 classes"),
        ({"classes": 2**15 + 1, "per_token": True}, "more than 32,768 classes"),
        ({"vocab": 2**16 + 1}, "more than 65,536 different ids"),
    ],
)
def test_what_would_wrap_around_is_refused(
    facts: dict[str, Any],
    complaint: str,
    fakes: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in facts.items():
        monkeypatch.setattr(f"tests.lra.data.conftest.Numbers.{name}", value)
    with pytest.raises(UserError, match=complaint):
        prepare(lra.data.configure("numbers"), max_length=9, data_dir=tmp_path / "data")
    assert kit.leftovers(tmp_path / "data") == []


@pytest.mark.parametrize("per_token", [False, True])
def test_the_largest_id_and_label_that_fit_are_stored(per_token: bool, tmp_path: Path) -> None:
    layout = Layout()
    layout.per_token, layout.vocab = per_token, 2**16
    layout.classes = 2**15 if per_token else 2**8
    writer = Writer(tmp_path, layout, 2)
    for split in SPLITS:
        writer.add(split, Example(np.array([2**16 - 1]), layout.classes - 1))
    writer.close()
    assert np.load(tmp_path / "val.ids.npy").tolist() == [[2**16 - 1, 0]]
    assert np.load(tmp_path / "val.labels.npy").max() == layout.classes - 1


def test_an_example_without_a_scored_label_is_refused(tmp_path: Path) -> None:
    """Labels behind the cut do not count: a batch of such examples has no loss."""
    layout = Layout()
    layout.name, layout.per_token, layout.classes, layout.vocab = "tags", True, 2, 3
    writer = Writer(tmp_path, layout, 2)
    for label in (0, 1):
        writer.add("train", Example(np.array([1, 2]), np.array([IGNORED, label])))
    for labels in ([IGNORED, IGNORED], [IGNORED, IGNORED, 1]):
        with pytest.raises(UserError, match="train has no scored label"):
            writer.add("train", Example(np.array([1, 2, 1]), np.array(labels)))


def test_an_image_of_another_size_and_an_empty_split(
    fakes: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = lra.data.configure("pictures")
    bad = [RawSplit("train", [Example(np.zeros(7, int), 0)], 1)]
    monkeypatch.setattr("tests.lra.data.conftest.Pictures.splits", lambda *a: bad)
    with pytest.raises(UserError, match="an image of train has 7 pixels; pictures has 6"):
        prepare(options, max_length=9, data_dir=tmp_path / "data")
    bad = [RawSplit("train", [Example(np.zeros(6, int), 0)], 1), RawSplit("val", [], 0)]
    with pytest.raises(UserError, match="pictures has no examples for dev and test"):
        prepare(options, max_length=9, data_dir=tmp_path / "data")
