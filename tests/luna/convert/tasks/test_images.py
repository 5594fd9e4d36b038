"""Image folders: crops, batches, classes, and what is wrong with a folder."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from luna.base import LunaError
from luna.convert.recipe import Augment
from luna.convert.tasks import images
from luna.convert.tasks.base import HELD_OUT
from luna.convert.tasks.images import ImageFolder, ImageNet, decode, prepare, random_box

from ..kit import PREPROCESSOR, opened, paint, processor


def whole(batches) -> torch.Tensor:
    return torch.cat([b["pixel_values"] for b in batches])


def test_random_crops_keep_their_limits():
    rng, width, height = np.random.default_rng(0), 80, 50
    shares = []
    for _ in range(400):
        left, top, right, bottom = random_box(width, height, 0.2, rng)
        assert 0 <= left < right <= width
        assert 0 <= top < bottom <= height
        assert 3 / 4 - 1e-9 <= (right - left) / (bottom - top) <= 4 / 3 + 1e-9
        shares.append((right - left) * (bottom - top) / (width * height))
    assert 0.2 - 1e-9 <= min(shares) < 0.25
    assert max(shares) > 0.75  # a crop of 4:3 is at most 5/6 of 8:5


def test_an_image_too_long_for_any_crop_is_cut_in_the_middle():
    box = random_box(1000, 10, 1.0, np.random.default_rng(0))
    assert box == pytest.approx((500 - 20 / 3, 0, 500 + 20 / 3, 10))


def test_crop_and_flip_alone(folder, plain):
    """Nothing else happens to the pixels, and a flip is a mirror image of the same crop."""
    straight, flipped = (
        whole(opened(folder, plain, images=Augment(flip=p)).train(1)) for p in (0.0, 1.0)
    )
    assert torch.equal(flipped, straight.flip(-1))
    data = opened(folder, plain)
    i = int(np.random.default_rng((0, 1, 2)).permutation(36)[0])
    image = decode(folder / data.examples[i][0])
    box = random_box(*image.size, 0.08, np.random.default_rng((0, 1, 0, i)))
    expected = image.resize((16, 16), Image.Resampling.BILINEAR, box=box)
    values = torch.from_numpy(np.array(expected)).permute(2, 0, 1) / 255
    mean, std = (torch.tensor(PREPROCESSOR[k]).view(3, 1, 1) for k in ("image_mean", "image_std"))
    torch.testing.assert_close(straight[0], (values - mean) / std, atol=1e-5, rtol=0)


def test_the_evaluation_crop_of_the_shorter_side(folder, plain):
    """0.8: to 20 on the shorter side, then the middle 16 x 16."""
    data = opened(folder, plain, images=Augment(eval_crop=0.8))
    image = decode(folder / data.scored["val"][0][0])
    w, h = image.size
    w, h = (20, 20 * h // w) if w < h else (20 * w // h, 20)
    left, top = (w - 16) // 2, (h - 16) // 2
    middle = image.resize((w, h), Image.Resampling.BILINEAR).crop((left, top, left + 16, top + 16))
    assert torch.allclose(whole(data.evaluation("val"))[0], prepare(plain, middle), atol=1e-5)


def test_an_image_size_that_is_left_open_is_an_error(tmp_path, folder):
    shorter = processor(tmp_path, PREPROCESSOR | {"size": {"shortest_edge": 16}})
    with pytest.raises(LunaError, match="leaves the image size open"):
        opened(folder, shorter).train(1)


def test_few_images_are_in_memory(folder, plain, monkeypatch):
    decoded: list[Path] = []

    def counting(path):
        decoded.append(path)
        return decode(path)

    monkeypatch.setattr(images, "decode", counting)
    for used, _ in enumerate(opened(folder, plain, batch=2).train(1), 1):
        assert len(decoded) <= 2 * (used + 1)
    assert len(decoded) == 36


@pytest.mark.parametrize("damage", ["text", "torn"])
def test_an_image_that_cannot_be_decoded_is_named(damage, tmp_path, plain):
    paint(tmp_path)
    path = tmp_path / "train/green/3.PNG"
    path.write_bytes(b"no image" if damage == "text" else path.read_bytes()[:200])
    with pytest.raises(LunaError, match=r"green/3\.PNG cannot be decoded \(.+\): replace it"):
        list(opened(tmp_path, plain).train(1))


def test_a_picture_of_another_format_is_not_opened(tmp_path, monkeypatch):
    """Pillow would start Ghostscript for EPS, whatever the name of the file."""
    monkeypatch.setattr("PIL.EpsImagePlugin.Ghostscript", lambda *_, **__: pytest.fail("started"))
    path = tmp_path / "picture.png"
    Image.new("RGB", (10, 10)).save(path, "EPS")
    with pytest.raises(LunaError, match="cannot be decoded"):
        decode(path)


def test_training_batches_depend_on_seed_and_epoch_alone(folder, plain, monkeypatch):
    data = opened(folder, plain, batch=8)
    first = data.train(1)
    assert len(first) == 5  # 36 images
    once = whole(first)
    assert torch.equal(once, whole(first))
    monkeypatch.setattr(images, "THREADS", 1)
    assert torch.equal(once, whole(data.train(1)))
    assert not torch.equal(once, whole(data.train(2)))
    assert not torch.equal(once, whole(opened(folder, plain, seed=1, batch=8).train(1)))


def test_training_images_keep_their_labels(folder, plain):
    """The colour of a class is its strongest channel."""
    drawn = list(opened(folder, plain, batch=8).train(1))
    labels = torch.cat([b["labels"] for b in drawn])
    assert labels.bincount().tolist() == [12, 12, 12]
    mean, std = (
        torch.tensor(values).view(3, 1, 1) for values in (plain.image_mean, plain.image_std)
    )
    raw = whole(drawn) * std + mean
    assert torch.equal(2 - raw.mean((2, 3)).argmax(1), labels)


def test_evaluation_batches_come_in_order(folder, plain):
    data = opened(folder, plain, batch=4)
    assert data.labels["val"].tolist() == [0] * 6 + [1] * 6 + [2] * 6
    got = whole(data.evaluation("val"))
    paths = sorted((folder / "val").glob("*/*"))
    alone = [prepare(plain, decode(p)) for p in paths]
    assert torch.equal(got, torch.stack(alone))
    assert set(next(iter(data.evaluation("val")))) == {"pixel_values"}


def test_part_of_the_examples_and_a_held_out_tenth(folder, plain):
    data = opened(folder, plain, train_examples=20, select="train_split")
    assert len(data.examples) == 18
    assert list(data.labels) == ["val", HELD_OUT]
    assert len(data.labels[HELD_OUT]) == 2
    assert len({label for _, label in data.examples}) == 3  # drawn, though files are sorted


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
    with pytest.raises(LunaError, match="ImageNet's val comes without"):
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
    with pytest.raises(LunaError, match=r"1000 folders \(extra \.\.\. n15075141\).*image_folder"):
        task.classes(tmp_path)
    (tmp_path / "train/extra").rmdir()
    with pytest.raises(LunaError, match=r"999 folders \(n01440764 \.\.\. n15075141\) instead"):
        task.classes(tmp_path)
