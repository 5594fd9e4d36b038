"""Attention of [CLS] to the patches of an image, in softmax and in converted models: its row of one
layer's attention matrix, and attention rollout through all layers."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from lra.base.config import UserError
from lra.figures import students
from lra.figures.draw import WIDTH, save_figure, slug

TINT, NEGATIVE = (0.94, 0.27, 0.10), (0.20, 0.45, 0.85)


class Overlay(NamedTuple):
    """Attention of [CLS] to the patches in one model: shares (rows, columns) that sum to 1."""

    label: str
    layer: np.ndarray
    rollout: np.ndarray


def draw(arguments: Namespace) -> list[Path]:
    a = arguments
    shown = cls_to_patches(a.folders, a.image, a.teacher, a.layer)
    title = f"Attention of [CLS] to the patches of {a.image.name}"
    return draw_patches(*shown, title, a.out / f"patches-{slug(a.image.stem)}")


def cls_to_patches(
    folders: Sequence[Path], image: Path, teacher: Path, layer: int
) -> tuple[np.ndarray, list[Overlay]]:
    """The image as the models see it, (height, width, 3), and the attention of each."""
    models = students.open_students(folders)
    sizes = {getattr(model.model.config, "patch_size", None) for model in models}
    if None in sizes:
        raise UserError("patches needs vision transformers; for texts there is lra figures tokens")
    inputs = [students.pixels(model.folder, image) for model in models]
    values, visible = inputs[0]
    if len(sizes) > 1 or not all(torch.equal(other, values) for other, _ in inputs):
        raise UserError("these models scale or divide images differently: draw them one by one")
    side = [edge // sizes.copy().pop() for edge in values.shape[-2:]]
    return visible, [
        Overlay(m.label, on_patches(m.cls_row(layer), side), on_patches(rollout(m.maps)[0], side))
        for m in students.all_maps(models, teacher, {"pixel_values": values})
    ]


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
    """The patches come last, after [CLS] and whatever other tokens the model puts before them."""
    shares = row[-side[0] * side[1] :]
    return (shares / shares.sum()).reshape(*side).numpy()


def draw_patches(image: np.ndarray, overlays: list[Overlay], title: str, stem: Path) -> list[Path]:
    """The image in grey, every patch in the strength of its share, on one scale a row."""
    columns = len(overlays) + 1
    title += "\ncolour: a patch's share of the attention of [CLS], one scale a row; blue: negative"
    grey = 0.25 + 0.75 * image @ np.array([0.299, 0.587, 0.114])
    extent = (0, grey.shape[1], grey.shape[0], 0)

    def fill(figure: Any) -> None:
        panels = figure.subplots(2, columns, squeeze=False)
        for axes in panels.flat:
            axes.axis("off")
        panels[0, 0].imshow(image)
        for line, what in zip(panels, ("layer", "rollout"), strict=True):
            maps = [getattr(overlay, what) for overlay in overlays]
            top = max(float(np.abs(shares).max()) for shares in maps)
            for axes, overlay, shares in zip(line[1:], overlays, maps, strict=True):
                colours = np.where(shares[..., None] < 0, NEGATIVE, TINT)
                axes.imshow(grey, cmap="gray", vmin=0, vmax=1, extent=extent)
                axes.imshow(np.dstack([colours, 0.75 * np.abs(shares) / top]), extent=extent)
                label = f"{overlay.label}\n" if what == "layer" else ""
                most = f"{shares.max() * shares.size:.1f} × uniform"
                axes.set_title(f"{label}{what}: at most {most}")

    width = max(WIDTH, 2.4 * columns)
    return save_figure(stem, fill, size=(width, 2 * (width / columns + 0.3) + 0.9), title=title)
