"""Attention of [CLS] to the patches of an image, in softmax and in converted models: its row of one
layer's attention matrix, and attention rollout through all layers."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lra.base.config import UserError
from lra.figures import students
from lra.figures.draw import save_figure
from lra.figures.students import Student

TINT, NEGATIVE = (0.94, 0.27, 0.10), (0.20, 0.45, 0.85)
LEGEND = """colour: a patch's share of
the attention of [CLS],
relative to the largest in
its panel (blue: negative)

above: {what}

below: rollout through
all layers, heads averaged"""


@dataclasses.dataclass(frozen=True)
class Overlay:
    """Attention of [CLS] to the patches in one model: shares (rows, columns) that sum to 1."""

    label: str
    layer: np.ndarray
    rollout: np.ndarray


@dataclasses.dataclass(frozen=True)
class Patches:
    image: np.ndarray  # (height, width, 3) in 0..1, as the model sees it
    overlays: list[Overlay]
    what: str  # layer and head
    made: str = ""  # the runs that the models come from


def cls_to_patches(
    folders: Sequence[Path],
    image: Path,
    *,
    teacher: Path | None = None,
    layer: int = -1,
    head: int | None = None,
) -> Patches:
    models = students.open_students(folders)
    for model in models:
        if not hasattr(model.model.config, "patch_size"):
            raise UserError(
                f"{model.folder} is not a vision transformer; for texts there is lra figures tokens"
            )
    inputs = [students.pixels(model.folder, image) for model in models]
    for model, one in zip(models, inputs, strict=True):
        if not torch.equal(one, inputs[0]):
            raise UserError(
                f"{model.folder} and {models[0].folder} scale or normalise images differently: "
                "draw them one by one"
            )
    maps = students.all_maps(models, teacher, {"pixel_values": inputs[0]})
    side = _sides(models[0], inputs[0])
    overlays = [
        Overlay(
            model.label,
            on_patches(model.layer(layer, head)[0], side),
            on_patches(rollout(model.maps)[0], side),
        )
        for model in maps
    ]
    what = maps[0].named(layer, head)
    return Patches(_visible(models[0], inputs[0]), overlays, what, students.made(models))


def rollout(maps: Tensor) -> Tensor:
    """Attention rollout (Abnar and Zuidema 2020, arXiv:2005.00928, eq. 1) of (layers, H, n, n):
    average the heads, add the identity for the residual connection, let rows sum to 1 again, and
    multiply the layers: R_l = A_l R_(l-1)."""
    n = maps.shape[-1]
    R = torch.eye(n, dtype=maps.dtype)
    for heads in maps:
        A = heads.mean(0) + torch.eye(n, dtype=maps.dtype)
        R = (A / A.sum(-1, keepdim=True)) @ R
    return R


def on_patches(row: Tensor, side: tuple[int, int]) -> np.ndarray:
    """The patches come last, after [CLS] and whatever other tokens the model puts before them."""
    shares = row[-side[0] * side[1] :]
    total = float(shares.sum())
    return (shares / total if total > 0 else shares).reshape(side).numpy()


def _sides(student: Student, pixel_values: Tensor) -> tuple[int, int]:
    size = student.model.config.patch_size
    height, width = (size, size) if isinstance(size, int) else size
    return pixel_values.shape[-2] // height, pixel_values.shape[-1] // width


def _visible(student: Student, pixel_values: Tensor) -> np.ndarray:
    config = students.image_config(student.folder)
    image = (pixel_values[0] - config.shift) / config.scale / 255
    return image.permute(1, 2, 0).clamp(0, 1).numpy()


def draw_patches(patches: Patches, title: str, stem: Path) -> list[Path]:
    size = (2.3 * (len(patches.overlays) + 1) + 0.6, 5.4)
    title = "\n".join(filter(None, (title, patches.made)))
    return save_figure(stem, lambda f: _fill(f, patches), size=size, title=title)


def _fill(figure: Any, patches: Patches) -> None:
    panels = figure.subplots(2, len(patches.overlays) + 1, squeeze=False)
    for axes in panels.flat:
        axes.axis("off")
    panels[0, 0].imshow(patches.image)
    panels[0, 0].set_title("image", fontsize=9)
    legend = LEGEND.format(what=patches.what.replace(", ", ",\n"))
    panels[1, 0].text(0, 0.95, legend, va="top", fontsize=8, color="0.3", linespacing=1.4)
    for overlay, column in zip(patches.overlays, panels.T[1:], strict=True):
        for axes, shares in zip(column, (overlay.layer, overlay.rollout), strict=True):
            _overlay(axes, patches.image, shares)
        column[0].set_title(f"{overlay.label}\n{_largest(overlay.layer)}", fontsize=9)
        column[1].set_title(f"rollout: {_largest(overlay.rollout)}", fontsize=9)


def _overlay(axes: Any, image: np.ndarray, shares: np.ndarray) -> None:
    """The image in grey; the strength of a patch's colour is its share relative to the largest."""
    extent = (0, image.shape[1], image.shape[0], 0)
    grey = image @ np.array([0.299, 0.587, 0.114])
    axes.imshow(0.25 + 0.75 * grey, cmap="gray", vmin=0, vmax=1, extent=extent)
    top = float(np.abs(shares).max())
    tint = np.empty((*shares.shape, 4))
    tint[..., :3] = np.where(shares[..., None] < 0, NEGATIVE, TINT)
    tint[..., 3] = 0.75 * (np.abs(shares) / top if top > 0 else 0)
    axes.imshow(tint, extent=extent, interpolation="nearest")


def _largest(shares: np.ndarray) -> str:
    return f"largest {shares.max() * shares.size:.1f} × uniform"
