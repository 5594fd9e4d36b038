"""Attention of [CLS] to the patches of an image, in softmax and in converted models: its row of one
layer's attention matrix, and attention rollout through all layers."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lra.base.config import UserError
from lra.figures.draw import WIDTH, save_figure, slug
from lra.figures.students import all_maps, open_students, pixels

TINT, NEGATIVE = (0.94, 0.27, 0.10), (0.20, 0.45, 0.85)
Shares = dict[str, dict[str, np.ndarray]]  # of layer and rollout, by model: (rows, columns)


def draw(arguments: Namespace) -> list[Path]:
    a = arguments
    image, shares = cls_to_patches(a.folders, a.image, a.teacher, a.layer)
    return draw_patches(image, shares, a.image.name, a.out / f"patches-{slug(a.image.stem)}")


def cls_to_patches(
    folders: Sequence[Path], file: Path, teacher: Path, layer: int
) -> tuple[np.ndarray, Shares]:
    """The image as the models see it, (height, width, 3), and the attention of each."""
    models = open_students(folders)
    sizes: set[Any] = {getattr(model.model.config, "patch_size", None) for model in models}
    if None in sizes:
        raise UserError("patches needs vision transformers; for texts there is lra figures tokens")
    (values, image), *others = [pixels(model.folder, file) for model in models]
    if len(sizes) > 1 or not all(torch.equal(other, values) for other, _ in others):
        raise UserError("these models scale or divide images differently: draw them one by one")
    side = [edge // size for edge in values.shape[-2:] for size in sizes]
    maps = all_maps(models, teacher, {"pixel_values": values})
    return image, {
        "layer": {m.label: on_patches(m.cls_row(layer), side) for m in maps},
        "rollout": {m.label: on_patches(rollout(m.maps)[0], side) for m in maps},
    }


def rollout(maps: Tensor) -> Tensor:
    """Attention rollout (Abnar and Zuidema 2020, arXiv:2005.00928, eq. 1) of (layers, H, n, n):
    average the heads, add the identity for the residual connection, let rows sum to 1 again, and
    multiply the layers: R_l = A_l R_(l-1)."""
    R = identity = torch.eye(maps.shape[-1], dtype=maps.dtype)
    for heads in maps:
        A = heads.mean(0) + identity
        R = (A / A.sum(-1, keepdim=True)) @ R
    return R


def on_patches(row: Tensor, side: Sequence[int]) -> np.ndarray:
    """Shares that sum to 1. The patches come last, after [CLS] and other tokens of the model."""
    shares = row[-side[0] * side[1] :]
    return (shares / shares.sum()).reshape(*side).numpy()


def draw_patches(image: np.ndarray, shares: Shares, name: str, stem: Path) -> list[Path]:
    """The image in grey, every patch in the strength of its share, on one scale a row."""
    columns = len(shares["layer"]) + 1
    grey = 0.25 + 0.75 * image @ np.array([0.299, 0.587, 0.114])
    extent = (0, grey.shape[1], grey.shape[0], 0)

    def fill(figure: Any) -> None:
        panels = figure.subplots(2, columns, squeeze=False)
        for axes in panels.flat:
            axes.axis("off")
        panels[0, 0].imshow(image)
        for (first, *row), (what, maps) in zip(panels, shares.items(), strict=True):
            first.set_title(what)
            top = max(float(np.abs(shares).max()) for shares in maps.values())
            for axes, (label, of_model) in zip(row, maps.items(), strict=True):
                colours = np.where(of_model[..., None] < 0, NEGATIVE, TINT)
                axes.imshow(grey, cmap="gray", vmin=0, vmax=1, extent=extent)
                axes.imshow(np.dstack([colours, 0.75 * np.abs(of_model) / top]), extent=extent)
                most = of_model.max() * of_model.size
                axes.set_title(f"{label}\nat most {most:.1f} × uniform")

    title = f"Attention of [CLS] to the patches of {name}"
    title += "\ncolour: a patch's share, relative to the largest of its row; blue: negative"
    size = (max(WIDTH, 2.4 * columns), 2 * (max(WIDTH / columns, 2.4) + 0.4) + 0.7)
    return save_figure(stem, fill, size=size, title=title)
