"""Images as the checkpoint wants them, decoded lazily."""

from __future__ import annotations

import json
import threading

import numpy as np
import pytest
import torch
from PIL import Image

from luna.base import LunaError
from luna.convert.tasks import pixels

from ..kit import PREPROCESSOR, opened, paint, processor, transformers, vit

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


def test_the_evaluation_crop_of_the_shorter_side(plain):
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


def test_sizes_that_do_not_fit_are_errors(tmp_path, folder, plain):
    with pytest.raises(LunaError, match="leaves the image size open"):
        processor(tmp_path, PREPROCESSOR | {"size": {"shortest_edge": 16}})
    with pytest.raises(LunaError, match="which is not supported"):
        processor(tmp_path, PREPROCESSOR | {"size": {"longest_edge": 16}})
    larger = processor(tmp_path, PREPROCESSOR | {"size": 24})
    with pytest.raises(LunaError, match="gives images of 24 x 24, its model takes 16 x 16"):
        opened(folder, larger).check(vit())
    opened(folder, plain).check(vit())


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
        pixels.decode(path)
