"""Attention of [CLS] to the patches of an image."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from lra.base.config import UserError
from lra.figures import patches, students
from luna.base import LunaError

from .conftest import maps_of


def test_rollout_is_the_product_of_layers_with_the_residual():
    g = torch.Generator().manual_seed(0)
    maps = torch.rand(3, 2, 5, 5, generator=g, dtype=torch.float64)
    maps = maps / maps.sum(-1, keepdim=True)
    expected = np.eye(5)
    for layer in maps.numpy():
        expected = (0.5 * layer.mean(0) + 0.5 * np.eye(5)) @ expected  # the paper's eq. 1
    np.testing.assert_allclose(patches.rollout(maps), expected, atol=1e-12)
    np.testing.assert_allclose(patches.rollout(maps).sum(-1), 1, atol=1e-12)
    # layer 0 moves token 1 to token 0, layer 1 looks from CLS (2) at 0: so CLS sees token 1
    moves = torch.eye(3, dtype=torch.float64).repeat(2, 1, 1, 1).view(2, 1, 3, 3)
    moves[0, 0, 0] = torch.tensor([0.0, 1, 0])
    moves[1, 0, 2] = torch.tensor([1.0, 0, 0])
    np.testing.assert_allclose(patches.rollout(moves)[2], [0.25, 0.25, 0.5])


def test_overlays_are_the_cls_row_over_the_patches(image_models: dict[str, Path], picture: Path):
    shown = patches.cls_to_patches([image_models["hedgehog"], image_models["luna"]], picture)
    assert [o.label for o in shown.overlays] == [
        "softmax teacher", "hedgehog, not fitted", "luna, not fitted",
    ]  # fmt: skip
    (student,) = students.open_students([image_models["luna"]])
    values = students.pixels(image_models["luna"], picture)
    cls = maps_of(student.model, pixel_values=values)[-1].mean(0)[0, 1:]
    for i, j in ((0, 0), (1, 3), (3, 2)):  # row by row
        assert shown.overlays[2].layer[i, j] == pytest.approx(cls[4 * i + j] / cls.sum(), rel=1e-4)
    np.testing.assert_allclose(shown.image, (values[0].permute(1, 2, 0) + 1) / 2, atol=1e-6)
    extra = patches.cls_to_patches([image_models["deit"]], picture)  # CLS and a second token first
    assert extra.overlays[1].rollout.shape == (4, 4)
    (student,) = students.open_students([image_models["deit"]])
    cls = maps_of(student.model, pixel_values=values)[-1].mean(0)[0, 2:]
    np.testing.assert_allclose(extra.overlays[1].layer.flatten(), cls / cls.sum(), rtol=1e-4)


def test_damaged_images_and_text_models_are_refused(
    image_models: dict[str, Path], text_models: dict[str, Path], picture: Path, tmp_path: Path
):
    (tmp_path / "torn.png").write_bytes(picture.read_bytes()[:200])
    for name in ("torn.png", "absent.png"):
        with pytest.raises(LunaError, match="cannot be decoded"):
            patches.cls_to_patches([image_models["luna"]], tmp_path / name)
    with pytest.raises(UserError, match="is not a vision transformer"):
        patches.cls_to_patches([text_models["luna"]], picture)
