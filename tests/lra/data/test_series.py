"""Series: files as a task, dev, missing numbers, what is generated, and networks that train."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lra
from lra.base.errors import UserError
from lra.data import configure, registry
from lra.data.arrays import Prepared
from lra.data.prepare import load_prepared, prepare
from lra.data.rules import baselines
from lra.data.series import PERIODS, Series, draw, filled, scale_of


def written(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def text(rows: list[str], classes: str = "up down") -> str:
    return "\n".join(["@dimensions 2", f"@classLabel true {classes}", "@data", *rows]) + "\n"


TRAIN = [
    f"{i},{i + 1}{',?' * (i % 3)}:{-i},0{',1' * (i % 3)}:{'down' * (i % 2) or 'up'}"
    for i in range(20)
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "Try"
    place.mkdir()
    written(place / "Try_TRAIN.ts", text(TRAIN))
    written(place / "Try_TEST.ts", text(["1,2,3,4,5:6,7,8,9,0:up", "?:1:down"], "down up"))
    return place


def options(folder: Path, *words: str) -> Any:
    return configure("series", ["source=files", f"folder={folder}", *words])


def prepared(options: Any, tmp_path: Path) -> Prepared:
    return prepare(options, max_length=0, data_dir=tmp_path / "data", workers=1)


def rows(made: Prepared, split: str) -> list[tuple[list[list[float]], int]]:
    part = made.split(split)
    every = np.arange(len(part))
    stored = zip(part.ids(every), part.lengths(every), part.labels, strict=True)
    return [(x[:n].tolist(), int(y)) for x, n, y in stored]


def test_files_become_a_task(folder: Path, tmp_path: Path):
    """Test's classes are numbered as train's, whatever their order in its own header."""
    made = prepared(options(folder), tmp_path)
    task = load_prepared(made.folder).layout  # which reads no file of ours
    assert (task.classes, task.channels, made.split("test").width) == (2, 2, 5)
    train, val, test = (rows(made, split) for split in ("train", "val", "test"))
    assert (len(train), len(val)) == (18, 2)
    assert sorted(-x[0][1] for x, _ in train + val) == list(range(20))
    for x, label in train + val:
        i = int(x[0][0])
        assert x == [[i, -i], [i + 1, 0], *[[i + 1, 1]] * (i % 3)]
        assert label == i % 2
    mean = np.concatenate([x for x, _ in train])[:, 0]
    real = np.concatenate([np.array(x)[:2, 0] for x, _ in train])  # the others were filled in
    assert len(mean) > len(real)
    assert task.scale is not None
    assert (task.scale.centre[0], task.scale.spread[0]) == pytest.approx(
        (real.mean(), real.std()), rel=1e-3
    )
    assert test[0] == ([[1, 6], [2, 7], [3, 8], [4, 9], [5, 0]], 0)
    assert test[1][0][0] == pytest.approx([real.mean(), 1], rel=1e-3)
    assert test[1][1] == 1
    assert made.facts["notes"] == {"missing numbers filled in": 20}


def test_missing_numbers_lie_between_their_neighbours():
    gone = np.nan
    x = np.array([[gone, 1], [2, gone], [gone, gone], [gone, 4], [8, gone], [gone, gone]])
    given = x.copy()
    assert filled(x, [0, 0]).T.tolist() == [[2, 2, 4, 6, 8, 8], [1, 2, 3, 4, 4, 4]]
    np.testing.assert_array_equal(x, given)


def test_dev_is_drawn_from_train_by_the_seed(folder: Path, tmp_path: Path):
    by_seed = [
        prepared(options(folder, f"seed={seed}", "held_out=0.3"), tmp_path) for seed in (0, 1)
    ]
    first, second = (rows(made, "val") for made in by_seed)
    assert len(first) == len(second) == 6
    assert first != second
    assert rows(by_seed[0], "test")[0] == rows(by_seed[1], "test")[0]


def test_two_files_are_a_folder_of_them_and_others_are_other_data(folder: Path, tmp_path: Path):
    places = [f"{split}={folder}/Try_{split.upper()}.ts" for split in ("train", "test")]
    one = prepared(options(folder), tmp_path)
    assert prepared(configure("series", ["source=files", *places]), tmp_path).folder == one.folder
    assert len(one.manifest["made"]["inputs"]) == 2
    written(folder / "Try_TEST.ts", text(["1,2,3,4,5:6,7,8,9,1:up", "?:1:down"]))
    assert prepared(options(folder), tmp_path).fingerprint != one.fingerprint


def test_nobody_types_what_files_say(folder: Path, tmp_path: Path):
    """Records have it, since networks are built by it where no files are."""
    facts = registry.get("series").matters(options(folder))
    held = configure("series", settings={"source": "files"} | facts)
    assert held.found == facts["found"]
    assert registry.overrides(registry.get("series"), held) == ["source=files"]
    wrong = held.found | {"longest": 7}
    with pytest.raises(UserError, match=r"found is what other files say: leave it out"):
        prepared(options(folder, f"found={json.dumps(wrong)}"), tmp_path)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("Other_TEST.ts", text(TRAIN), "needs train=FILE.ts and test=FILE.ts"),
        ("Try_TEST.ts", "@classLabel true up\n@data\n1:up\n", "other dimensions than train"),
        ("Try_TEST.ts", text(["1:2:left"], "left"), "add test's class left to its @classLabel"),
        ("Try_TRAIN.ts", text(["1:2:up"]), "too few series to hold 1 out for dev"),
    ],
)
def test_files_that_are_no_task_are_refused(name: str, content: str, said: str, folder: Path):
    written(folder / name, content)
    with pytest.raises(UserError, match=said):
        lra.compose(["task=series", "task.source=files", f"task.folder={folder}"])


def test_a_share_beyond_all_of_train_is_refused(folder: Path):
    with pytest.raises(UserError, match=r"held_out=1\.0 is out of range"):
        options(folder, "held_out=1.0")


# ---------------------------------------------------------------------- generated


def test_the_class_lies_in_the_period_and_in_which_channel_is_ahead():
    """Read from the spectrum, without noise."""
    made = configure("series", ["noise=0", "length=192"])
    labels, lengths = [], set()
    for x, label in draw(made, 0, 200):
        t = np.arange(len(x))
        waves = [np.exp(-2j * np.pi * t / period) * np.hanning(len(x)) @ x for period in PERIODS]
        period = int(np.abs(waves).sum(1).argmax())
        first_ahead = np.imag(waves[period][0] * np.conj(waves[period][1])) > 0
        labels.append(label)
        lengths.add(len(x))
        assert label == 2 * period + first_ahead
    assert np.bincount(labels).min() > 30
    assert lengths <= {*range(96, 193)}
    assert len(lengths) > 50


def test_a_rule_of_features_does_not_see_which_channel_is_ahead(tmp_path: Path):
    """It is right in half of the examples at most, and in a quarter by chance."""
    pytest.importorskip("sklearn")
    made = prepared(configure("series", []), tmp_path)
    score = baselines(made, Series())["rules"]["features"]["test"]
    assert 30 < score < 55


@pytest.mark.parametrize("words", [["attention=s4d", "protocol=s4"], ["attention=luna"]])
@pytest.mark.parametrize("source", ["generated", "files"])
def test_a_network_trains_on_it(words: list[str], source: str, folder: Path, tmp_path: Path):
    data = [f"task.folder={folder}"] if source == "files" else ["task.n_train=64", "task.n_val=16"]
    size = ["model.n_layers=1", "model.d_model=16", "model.n_heads=2", "steps_share=1e-6"]
    places = [f"data_dir={tmp_path / 'data'}", f"runs_dir={tmp_path / 'runs'}"]
    others = ["trainer=cpu", "trainer.threads=1", "compute=off", "min_evaluations=1", *places]
    run = lra.compose(["task=series", f"task.source={source}", *data, *words, *size, *others])
    scale = registry.of(run.task).scale
    assert (run.protocol.style.input.name, run.protocol.data.mask.name) == ("numbers", "length")
    record = lra.train(run)
    assert np.isfinite(record.score)
    for file in folder.glob("*.ts"):
        file.unlink()
    trained = lra.load(record)  # without its files
    assert trained.task.scale == scale
    assert len(trained.predict([np.ones((9, 2)), np.ones((3, 2))]).classes) == 2


@pytest.mark.parametrize("offset", [0.0, 123_456.0, -1e7])
def test_a_channel_far_from_0_is_centred_by_its_spread(offset: float):
    """Four digits of the mean alone would leave 44 deviations of a clock or a pressure."""
    noise = np.random.default_rng(0).normal(0, 0.5, (1000, 1))
    (centre,), (spread,) = scale_of(noise + offset)
    assert abs(((noise + offset) - centre).mean()) / spread < 0.01
    assert spread == pytest.approx(noise.std(), rel=1e-3)


def test_a_channel_that_stands_still_is_only_centred():
    assert scale_of(np.full((5, 1), 7.25)) == ([7.25], [1.0])
