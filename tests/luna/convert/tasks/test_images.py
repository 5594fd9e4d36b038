"""Image folders: classes, batches, and what is wrong with a folder."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest
import torch

from luna.base import LunaError
from luna.convert.recipe import Augment
from luna.convert.tasks import pixels
from luna.convert.tasks.base import HELD_OUT
from luna.convert.tasks.images import ImageFolder, ImageNet

from ..kit import opened, paint, vit


def whole(batches) -> torch.Tensor:
    return torch.cat([b["pixel_values"] for b in batches])


def test_training_batches_depend_on_seed_and_epoch_alone(folder, plain, monkeypatch):
    data = opened(folder, plain, batch=8, images=Augment(randaugment=1))
    first = data.train(1)
    assert len(first) == 5  # 36 images
    once = whole(first)
    assert torch.equal(once, whole(first))
    monkeypatch.setattr(pixels, "THREADS", 1)
    assert torch.equal(once, whole(data.train(1)))
    assert not torch.equal(once, whole(data.train(2)))
    assert not torch.equal(once, whole(opened(folder, plain, seed=1, batch=8).train(1)))


def test_training_images_keep_their_labels(folder, plain):
    """The colour of a class is its strongest channel."""
    drawn = list(opened(folder, plain, batch=8).train(1))
    labels = torch.cat([b["labels"] for b in drawn])
    assert labels.bincount().tolist() == [12, 12, 12]
    raw = (whole(drawn) - plain.shift) / plain.scale
    assert torch.equal(2 - raw.mean((2, 3)).argmax(1), labels)


def test_evaluation_batches_come_in_order(folder, plain):
    data = opened(folder, plain, batch=4)
    assert data.labels["val"].tolist() == [0] * 6 + [1] * 6 + [2] * 6
    got = whole(data.evaluation("val"))
    paths = sorted((folder / "val").glob("*/*"))
    alone = [plain.tensor([np.asarray(plain.fitted(pixels.decode(p)))])[0] for p in paths]
    assert torch.equal(got, torch.stack(alone))
    assert set(next(iter(data.evaluation("val")))) == {"pixel_values"}


def test_part_of_the_examples_and_a_held_out_tenth(folder, plain):
    data = opened(folder, plain, train_examples=20, select="train_split")
    assert len(data.examples) == 18
    assert list(data.labels) == ["val", HELD_OUT]
    assert len(data.labels[HELD_OUT]) == 2
    paths = {path for path, _ in data.examples}
    assert not paths & {path for path, _ in data.scored[HELD_OUT]}
    assert len({label for _, label in data.examples}) == 3  # drawn, though files are sorted
    again = opened(folder, plain, seed=7, train_examples=20, select="train_split")
    assert data.examples == again.examples


def test_the_loss_takes_numbers_and_mixtures(folder, plain):
    model = vit()
    how = Augment(mixup=1.0, label_smoothing=0.1)
    plainly, mixed = (opened(folder, plain, batch=8, images=a) for a in (Augment(), how))
    one, two = next(iter(plainly.train(1))), next(iter(mixed.train(1)))
    assert two["labels"].shape == (8, 3)
    with torch.no_grad():
        own = model(**one).loss
        logp = model(two["pixel_values"]).logits.log_softmax(-1)
    assert torch.allclose(plainly.loss(model, one), own)
    smooth = 0.9 * two["labels"] + 0.1 / 3
    assert torch.allclose(mixed.loss(model, two), -(smooth * logp).sum(-1).mean(), atol=1e-6)


# ---------------------------------------------------------------------- folders


def test_classes_are_the_sorted_folders(folder, tmp_path):
    task = ImageFolder()
    assert task.classes(folder) == ("blue", "green", "red")
    task.check_head(["blue", "green", "red"], folder)
    task.check_head(["LABEL_0", "LABEL_1", "LABEL_2"], folder)
    with pytest.raises(LunaError, match="class 0 is 'red', that of 'image_folder' is 'blue'"):
        task.check_head(["red", "green", "blue"], folder)
    paint(tmp_path)
    assert task.fingerprint(folder) == task.fingerprint(tmp_path)
    (tmp_path / "val/red/0.jpg").rename(tmp_path / "val/red/other.jpg")
    assert task.fingerprint(folder) != task.fingerprint(tmp_path)


def test_what_is_missing_in_a_folder_is_named(tmp_path):
    task = ImageFolder()
    with pytest.raises(LunaError, match=r"'image_folder' needs data\.path=<folder> with one"):
        task.classes(None)
    with pytest.raises(LunaError, match=r"the folder .*/train is missing: one folder per class"):
        task.classes(tmp_path)
    paint(tmp_path)
    (tmp_path / "train/violet").mkdir()
    with pytest.raises(LunaError, match="train/violet contains no images"):
        task.fingerprint(tmp_path)
    (tmp_path / "train/violet").rmdir()
    (tmp_path / "val/violet").mkdir()
    with pytest.raises(LunaError, match=r"not in train: violet"):
        task.classes(tmp_path)
    (tmp_path / "flat/train/one").mkdir(parents=True)
    (tmp_path / "flat/val").mkdir()
    with pytest.raises(LunaError, match="ImageNet's val comes without folders"):
        task.classes(tmp_path / "flat")


def synsets() -> list[str]:
    """The 1000 names, from a package that contains them."""
    package = importlib.util.find_spec("tensorflow_datasets")
    where = Path(package.origin).parent / "image_classification/imagenet_resized_labels.txt"
    return sorted(where.read_text(encoding="utf-8").split())


def test_imagenet_is_its_thousand_synsets_in_order(tmp_path):
    names = synsets()
    for split in ("train", "val"):
        for name in reversed(names):
            (tmp_path / split / name).mkdir(parents=True)
    task = ImageNet()
    assert task.classes(tmp_path) == tuple(names)
    words = ["tench, Tinca tinca", *["word"] * 998, "toilet tissue, toilet paper, bathroom tissue"]
    task.check_head(words, tmp_path)
    task.check_head(names, tmp_path)
    with pytest.raises(LunaError, match="class 0 is 'toilet tissue"):
        task.check_head(words[::-1], tmp_path)
    (tmp_path / "train" / names[3]).rename(tmp_path / "train/extra")
    (tmp_path / "val" / names[3]).rmdir()
    with pytest.raises(LunaError, match=r"1000 folders \(extra: not a synset\).*image_folder"):
        task.classes(tmp_path)
    (tmp_path / "train/extra").rmdir()
    with pytest.raises(LunaError, match=r"999 folders \(n01440764 \.\.\. n15075141\) instead"):
        task.classes(tmp_path)
