"""Image folders: classes, pixels as the checkpoint wants them, lazy batches, bad input."""

from __future__ import annotations

import importlib.util
import json
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from luna.base import LunaError
from luna.convert import pixels
from luna.convert.images import ImageFolder, ImageNet, Images
from luna.convert.pixels import Pixels
from luna.convert.recipe import Augment, Recipe
from luna.convert.tasks import HELD_OUT, task

from .kit import PREPROCESSOR, paint, transformers, vit


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("colours")
    paint(root)
    return root


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    return processor(tmp_path_factory.mktemp("checkpoint"), PREPROCESSOR)


def processor(where: Path, config: dict) -> Pixels:
    (where / "preprocessor_config.json").write_text(json.dumps(config), encoding="utf-8")
    return Pixels.read(str(where))


def opened(folder, plain, *, seed=0, **numbers) -> Images:
    return task("image_folder").open(folder, plain, Recipe(**numbers), seed=seed)


def whole(batches) -> torch.Tensor:
    return torch.cat([b["pixel_values"] for b in batches])


# ---------------------------------------------------------------------- pixels

IMAGENET = {"image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225]}
SHORTER = {"size": {"shortest_edge": 20}, "crop_size": {"height": 16, "width": 16}}


@pytest.mark.parametrize(
    "config",
    [
        PREPROCESSOR,
        PREPROCESSOR | {"size": 16, "resample": 3} | IMAGENET,  # as early files have it
        PREPROCESSOR | {"size": 20, "do_center_crop": True, "crop_size": 16},  # DeiT
        PREPROCESSOR | SHORTER | {"do_center_crop": True},
        PREPROCESSOR | {"do_normalize": False},
    ],
)
@pytest.mark.parametrize("size", [(24, 24), (31, 18), (13, 40)])
def test_pixels_are_those_of_the_checkpoints_own_processor(config, size, tmp_path):
    values = np.random.default_rng(0).integers(0, 256, (*size, 3)).astype(np.uint8)
    image = Image.fromarray(values)
    ours = processor(tmp_path, config)
    theirs = transformers.ViTImageProcessorPil(**config)(image, return_tensors="pt")
    got = ours.tensor([np.asarray(ours.fitted(image))])
    assert got.shape == (1, 3, 16, 16)
    assert torch.allclose(got, theirs["pixel_values"], atol=1e-5)


def test_an_evaluation_crop_of_the_shorter_side(plain):
    """0.8: to 20 on the shorter side, then the middle 16 x 16."""
    image = Image.fromarray((np.arange(40 * 80 * 3) % 251).astype(np.uint8).reshape(40, 80, 3))
    expected = image.resize((40, 20), Image.Resampling.BILINEAR).crop((12, 2, 28, 18))
    assert np.array_equal(np.asarray(plain.fitted(image, 0.8)), np.asarray(expected))


def test_a_processor_is_saved_as_it_came(plain, tmp_path):
    plain.save_pretrained(tmp_path)
    assert (
        json.loads((tmp_path / "preprocessor_config.json").read_text(encoding="utf-8"))
        == PREPROCESSOR
    )


def test_sizes_that_do_not_fit_are_told(tmp_path, folder, plain):
    with pytest.raises(LunaError, match="leaves the image size open"):
        processor(tmp_path, PREPROCESSOR | {"size": {"shortest_edge": 16}})
    with pytest.raises(LunaError, match="a size this cannot read"):
        processor(tmp_path, PREPROCESSOR | {"size": {"longest_edge": 16}})
    larger = processor(tmp_path, PREPROCESSOR | {"size": 24})
    with pytest.raises(LunaError, match="gives images of 24 x 24, its model takes 16 x 16"):
        opened(folder, larger).check(vit())
    opened(folder, plain).check(vit())


# ---------------------------------------------------------------------- batches


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
    assert data.n_train == 18
    assert list(data.labels) == ["val", HELD_OUT]
    assert len(data.labels[HELD_OUT]) == 2
    paths = {path for path, _ in data.examples}
    assert not paths & {path for path, _ in data.scored[HELD_OUT]}
    assert len({label for _, label in data.examples}) == 3  # drawn, though files are sorted
    again = opened(folder, plain, seed=7, train_examples=20, select="train_split")
    assert data.examples == again.examples


def test_few_images_are_in_memory(folder, plain, monkeypatch):
    decoded, lock, decode = [0], threading.Lock(), pixels.decode

    def counting(path):
        with lock:
            decoded[0] += 1
        return decode(path)

    monkeypatch.setattr(pixels, "decode", counting)
    for used, _ in enumerate(opened(folder, plain, batch=2).train(1), 1):
        assert decoded[0] <= 2 * (used + pixels.AHEAD)
    assert decoded == [36]
    stream = iter(opened(folder, plain, batch=2).train(1))
    next(stream)
    stream.close()
    assert decoded[0] <= 36 + 2 * (1 + pixels.AHEAD)


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
    kind = ImageFolder()
    assert kind.classes(folder) == ("blue", "green", "red")
    kind.check_head(["blue", "green", "red"], folder)
    kind.check_head(["LABEL_0", "LABEL_1", "LABEL_2"], folder)
    with pytest.raises(LunaError, match="class 0 is 'red', the folder's is 'blue'"):
        kind.check_head(["red", "green", "blue"], folder)
    paint(tmp_path)
    assert kind.fingerprint(folder) == kind.fingerprint(tmp_path)
    (tmp_path / "val/red/0.jpg").rename(tmp_path / "val/red/other.jpg")
    assert kind.fingerprint(folder) != kind.fingerprint(tmp_path)


def test_missing_folders_say_what_belongs_there(tmp_path):
    kind = ImageFolder()
    with pytest.raises(LunaError, match=r"'image_folder' needs data\.path=<folder> with one"):
        kind.classes(None)
    with pytest.raises(LunaError, match=r"there is no folder .*/train: one folder for each class"):
        kind.classes(tmp_path)
    paint(tmp_path)
    (tmp_path / "train/violet").mkdir()
    with pytest.raises(LunaError, match="train/violet holds no images"):
        kind.fingerprint(tmp_path)
    (tmp_path / "train/violet").rmdir()
    (tmp_path / "val/violet").mkdir()
    with pytest.raises(LunaError, match=r"not in train: violet"):
        kind.classes(tmp_path)
    (tmp_path / "flat/train/one").mkdir(parents=True)
    (tmp_path / "flat/val").mkdir()
    with pytest.raises(LunaError, match="ImageNet's val comes flat"):
        kind.classes(tmp_path / "flat")


@pytest.mark.parametrize("damage", ["text", "torn"])
def test_an_image_that_cannot_be_decoded_is_named(damage, tmp_path, plain):
    paint(tmp_path)
    path = tmp_path / "train/green/3.PNG"
    path.write_bytes(b"no image" if damage == "text" else path.read_bytes()[:200])
    with pytest.raises(LunaError, match=r"green/3\.PNG cannot be decoded \(.+\): replace it"):
        list(opened(tmp_path, plain).train(1))


def synsets() -> list[str]:
    """The 1000 names, from a package that ships them."""
    package = importlib.util.find_spec("tensorflow_datasets")
    where = Path(package.origin).parent / "image_classification/imagenet_resized_labels.txt"
    return sorted(where.read_text(encoding="utf-8").split())


def test_imagenet_is_its_thousand_synsets_in_order(tmp_path):
    names = synsets()
    for split in ("train", "val"):
        for name in reversed(names):
            (tmp_path / split / name).mkdir(parents=True)
    kind = ImageNet()
    assert kind.classes(tmp_path) == tuple(names)
    words = ["tench, Tinca tinca", *["word"] * 998, "toilet tissue, toilet paper, bathroom tissue"]
    kind.check_head(words, tmp_path)
    kind.check_head(names, tmp_path)
    with pytest.raises(LunaError, match="class 0 is 'toilet tissue"):
        kind.check_head(words[::-1], tmp_path)
    (tmp_path / "train" / names[3]).rename(tmp_path / "train/extra")
    (tmp_path / "val" / names[3]).rmdir()
    with pytest.raises(LunaError, match=r"1000 folders \(extra is not a synset\).*image_folder"):
        kind.classes(tmp_path)
    (tmp_path / "train/extra").rmdir()
    with pytest.raises(LunaError, match=r"999 folders \(n01440764 \.\.\. n15075141\) instead"):
        kind.classes(tmp_path)
