"""The attention of a trained run on one example: one row of the attention matrix per layer and head
(for a linear method, of the matrix that it implies)."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np

from lra.base.config import Pooling, UserError
from lra.figures.draw import rows_for, save_figure
from lra.report.styles import PALETTE
from lra.training.trained import Trained

SHORT = 80  # tokens that fit on one line
WRAP = 64  # tokens per line of a longer sequence
SPELT = 2048  # tokens of the longest sequence that is drawn with its characters


@dataclasses.dataclass(frozen=True)
class AttentionRows:
    """One row of the attention matrix per layer and head, on one example."""

    ids: np.ndarray  # (n,) real tokens, or (n, stack)
    rows: np.ndarray  # (layers, H, n)
    query: str  # the query that the row belongs to, in words
    heads: list[str]  # (H,) names


def attention_rows(trained: Trained, example: int) -> AttentionRows:
    """The row of the CLS token if the model pools by it, else the mean over the real queries. Of a
    pair of texts, the first one is shown."""
    part = trained.prepared.split("test")
    if not 0 <= example < len(part):
        raise UserError(f"there is no test example {example}: choose from 0 to {len(part) - 1}")
    index = np.array([example])
    pairs = zip(part.ids(index).reshape(-1, part.width), part.lengths(index).ravel(), strict=True)
    texts = [ids[:n] for ids, n in pairs]
    A, heads, ids, real = trained.attention_maps(texts if trained.task.dual else texts[0])
    if trained.protocol.style.pooling is Pooling.cls:
        rows, query = A[:, :, 0, 1:][:, :, real], "row of CLS"
    else:
        rows, query = A[:, :, real][..., real].mean(2), "mean over queries"
    return AttentionRows(ids[real].numpy(), rows.numpy(), query, heads)


def draw_maps(trained: Trained, maps: AttentionRows, title: str, stem: Path) -> list[Path]:
    """Over pixels if the task has a grid, else over characters or tokens."""
    n_layers, n_heads, n = maps.rows.shape
    if trained.task.grid is not None:
        size = (2.1 * (n_heads + 1) + 0.9, 2.2 * n_layers + 0.5)
        picture = maps.ids.reshape(trained.task.grid)
        return save_figure(stem, lambda f: _pixels(f, maps, picture), size=size, title=title)
    words = [trained.task.decode(maps.ids[i : i + 1]) for i in range(n)]
    if n <= SHORT:
        size = (max(6, 0.16 * n + 2), 1.8 * n_layers + 0.9)
        return save_figure(stem, lambda f: _bars(f, maps, words), size=size, title=title)
    lines = rows_for(n, WRAP)
    size = (1 + 5.2 * n_heads, (0.8 + 0.15 * lines) * n_layers + 0.8)
    return save_figure(stem, lambda f: _shaded(f, maps, words), size=size, title=title)


def _pixels(figure: Any, maps: AttentionRows, picture: np.ndarray) -> None:
    """The image, and beside it every layer and head on one scale."""
    n_layers, n_heads, n = maps.rows.shape
    panels = figure.subplots(n_layers, n_heads + 1, squeeze=False)
    for i, row in enumerate(panels):
        row[0].axis("off")
        for h, axes in enumerate(row[1:]):
            image = axes.imshow(maps.rows[i, h].reshape(picture.shape) * n, **_scale(maps))
            axes.set(xticks=[], yticks=[])
            axes.spines[:].set_visible(False)
            axes.set_title(_head(maps, i, h), fontsize=9)
        row[1].set_ylabel(f"layer {i}")
    panels[0][0].imshow(picture, cmap="gray")
    panels[0][0].set_title("input", fontsize=9)
    _scale_beside(figure, maps, image, panels)


def _shaded(figure: Any, maps: AttentionRows, words: list[str]) -> None:
    """A long sequence in lines of WRAP tokens, coloured by attention."""
    n_layers, n_heads, n = maps.rows.shape
    lines = rows_for(n, WRAP)
    panels = figure.subplots(n_layers, n_heads, squeeze=False)
    for i, row in enumerate(panels):
        for h, axes in enumerate(row):
            whole = np.full(lines * WRAP, np.nan)
            whole[:n] = maps.rows[i, h] * n
            scale = _scale(maps)
            image = axes.imshow(whole.reshape(lines, WRAP), aspect="auto", **scale)
            if n <= SPELT and sum(len(word) == 1 for word in words) > n / 2:
                for at, word in enumerate(words):  # a dot for bytes that are not a character
                    dark = image.norm(whole[at]) < 0.55
                    axes.text(at % WRAP, at // WRAP, word if len(word) == 1 else "·", ha="center",
                              va="center", fontsize=6.5, family="monospace",
                              color="w" if dark else "k")  # fmt: skip
            starts = range(0, lines, max(1, lines // 8))
            axes.set_yticks(list(starts), [f"{line * WRAP:,}" for line in starts], fontsize=7)
            axes.set_xticks([])
            axes.spines[:].set_visible(False)
            axes.set_title(_head(maps, i, h), fontsize=9)
        row[0].set_ylabel(f"layer {i}")
    _scale_beside(figure, maps, image, panels)


def _head(maps: AttentionRows, layer: int, head: int) -> str:
    """Title of a panel: its head and the range of its attention, which a common scale may hide."""
    shares = maps.rows[layer, head] * maps.rows.shape[-1]
    name = maps.heads[head].replace(", ", "\n")
    return f"{name}: {shares.min():.2f} to {shares.max():.2f}"


def _scale(maps: AttentionRows) -> dict[str, Any]:
    """The scale of all panels, so that flat attention looks flat: from 0 to near the maximum."""
    shares = maps.rows * maps.rows.shape[-1]
    top = max(2.0, float(np.quantile(shares, 0.999)))
    return {"cmap": "magma", "vmin": min(0.0, float(shares.min())), "vmax": top}


def _scale_beside(figure: Any, maps: AttentionRows, image: Any, panels: np.ndarray) -> None:
    cut = maps.rows.max() * maps.rows.shape[-1] > image.norm.vmax
    figure.colorbar(
        image, ax=list(panels.flat), label="attention × n (1 if uniform)", shrink=0.8,
        extend="max" if cut else "neither",
    )  # fmt: skip


def _bars(figure: Any, maps: AttentionRows, words: list[str]) -> None:
    """A short sequence: bars of every head for every token, and a line at uniform attention."""
    n_layers, n_heads, n = maps.rows.shape
    panels = figure.subplots(n_layers, 1, squeeze=False, sharex=True)[:, 0]
    width = 0.8 / n_heads
    for i, axes in enumerate(panels):
        for h in range(n_heads):
            at = np.arange(n) + (h - (n_heads - 1) / 2) * width
            axes.bar(
                at, maps.rows[i, h], width, color=PALETTE[h % len(PALETTE)], label=maps.heads[h]
            )
        axes.axhline(1 / n, color="0.4", lw=0.8, ls=":", label="uniform")
        axes.set_ylabel(f"layer {i}, attention")
        axes.margins(x=0.01)
    panels[-1].set_xticks(range(n), words, fontsize=8, rotation=90, family="monospace")
    panels[0].legend(fontsize=8, loc="upper left", bbox_to_anchor=(1.005, 1), frameon=False)
