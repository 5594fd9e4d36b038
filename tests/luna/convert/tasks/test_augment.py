"""Augmentation: drawn from the generator, within its limits, with labels that match the pixels."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from luna.convert.recipe import Augment
from luna.convert.tasks.augment import OPERATIONS, augmented, mix, random_box

BILINEAR = Image.Resampling.BILINEAR


def noise(width: int = 24, height: int = 18) -> Image.Image:
    values = np.random.default_rng(0).integers(0, 256, (height, width, 3))
    return Image.fromarray(values.astype(np.uint8))


def test_random_crops_keep_their_limits():
    rng, width, height = np.random.default_rng(0), 80, 50
    shares = []
    for _ in range(400):
        left, top, right, bottom = random_box(width, height, 0.2, rng)
        assert left >= 0
        assert top >= 0
        assert right <= width
        assert bottom <= height
        assert 3 / 4 - 1e-9 <= (right - left) / (bottom - top) <= 4 / 3 + 1e-9
        shares.append((right - left) * (bottom - top) / (width * height))
    assert min(shares) >= 0.2 - 1e-9
    assert min(shares) < 0.25
    assert max(shares) > 0.75  # a crop of 4:3 is at most 5/6 of 8:5


def test_an_image_too_long_for_any_crop_is_cut_in_the_middle():
    box = random_box(1000, 10, 1.0, np.random.default_rng(0))
    assert box == pytest.approx((500 - 20 / 3, 0, 500 + 20 / 3, 10))


def test_crop_and_flip_alone():
    """Nothing else happens to the pixels, and a flip is a mirror image of the same crop."""
    image = noise()
    both = [
        np.asarray(augmented(image, (8, 8), BILINEAR, Augment(flip=p), np.random.default_rng(3)))
        for p in (0.0, 1.0)
    ]
    box = random_box(24, 18, 0.08, np.random.default_rng(3))
    assert np.array_equal(both[0], np.asarray(image.resize((8, 8), BILINEAR, box=box)))
    assert np.array_equal(both[1], both[0][:, ::-1])


def test_randaugment_operations():
    image = noise()
    for operation in OPERATIONS:
        for sign in (-1, 1):
            out = operation(image, 0.3, sign)
            assert (out.size, out.mode) == (image.size, "RGB")
    changed = [not np.array_equal(np.asarray(o(image, 0.5, 1)), image) for o in OPERATIONS]
    # The identity; noise already has every grey, so stretching and equalizing do next to nothing.
    assert not changed[0]
    assert sum(changed) >= len(OPERATIONS) - 3
    # Translation by 0.45 of the width at full strength, to the left for +1.
    moved = np.asarray(OPERATIONS[-2](noise(20, 10), 1.0, 1))
    assert np.array_equal(moved[:, :11], np.asarray(noise(20, 10))[:, 9:])
    assert (moved[:, 12:] == 128).all()


def test_randaugment_depends_on_the_generator():
    how = Augment(randaugment=2, magnitude=15)
    same, again, other = (
        np.asarray(augmented(noise(), (16, 16), BILINEAR, how, np.random.default_rng(seed)))
        for seed in (1, 1, 2)
    )
    assert np.array_equal(same, again)
    assert not np.array_equal(same, other)


def batch(b: int = 6):
    """Images whose pixels are their index."""
    pixels = torch.arange(float(b)).view(b, 1, 1, 1).expand(b, 3, 20, 10).clone()
    return pixels, torch.arange(b)


def test_mixup_mixes_pixels_and_labels_alike():
    pixels, labels = batch()
    mixed, targets = mix(pixels, labels, 6, Augment(mixup=0.8), np.random.default_rng(1))
    assert torch.allclose(targets.sum(1), torch.ones(6))
    expected = targets @ torch.arange(6.0)
    assert torch.allclose(mixed, expected.view(-1, 1, 1, 1).expand_as(mixed), atol=1e-6)
    assert len(torch.unique(targets)) > 2


def test_cutmix_labels_are_the_areas():
    sizes = set()
    for seed in range(8):
        pixels, labels = batch()
        mixed, targets = mix(pixels, labels, 6, Augment(cutmix=1.0), np.random.default_rng(seed))
        shares = torch.stack([(mixed[:, 0] == c).float().mean((1, 2)) for c in range(6)], 1)
        assert torch.allclose(shares, targets, atol=1e-6)
        sizes.add(round(float(targets.max(1).values.min()), 4))
    assert len(sizes) > 3


def test_without_mixing_labels_stay_classes():
    pixels, labels = batch()
    assert mix(pixels, labels, 6, Augment(), np.random.default_rng(0)) == (pixels, labels)


def test_mixup_and_cutmix_are_drawn_in_turn():
    def cut(seed: int) -> bool:
        how = Augment(mixup=1.0, cutmix=1.0)
        mixed = mix(*batch(), 6, how, np.random.default_rng(seed))[0]
        return bool((mixed == mixed.round()).all())

    assert 3 < sum(cut(seed) for seed in range(20)) < 17
