"""The attention of a trained run on one example (of a linear method, what it implies), relative to
uniform attention and on one scale, so that any two figures can be compared."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lra.base.config import Pooling, UserError
from lra.figures.draw import WIDTH, rows_for, save_figure
from lra.figures.trained import title_of
from lra.results.bundle import open_network
from lra.training.trained import Trained

SHORT = 64  # tokens of the longest sequence whose whole matrix is drawn
NAMED = 24  # tokens whose names fit beside a matrix
WRAP = 64  # tokens per line of a longer sequence
LEAST, MOST = 0.1, 10.0  # times uniform attention, the ends of the scale


class AttentionRows(NamedTuple):
    """Attention to the real tokens of one example."""

    ids: np.ndarray  # (n,) real tokens, or (n, stack)
    rows: np.ndarray  # (layers, H, queries, n): every query of a short sequence, else one row
    query: str  # the queries, in words
    heads: list[str]  # (H,) names


def draw(arguments: Namespace) -> list[Path]:
    folder, example = arguments.folder, arguments.example
    run = open_network(folder, data_dir=arguments.data_dir)
    rows = attention_rows(run, example)
    title = f"{title_of(run)}\ntest example {example}, {rows.query}"
    name = "-".join(folder.resolve().parts[-3:])
    return draw_maps(run, rows, title, arguments.out / f"maps-{name}-example-{example}")


def attention_rows(trained: Trained, example: int) -> AttentionRows:
    """Every row of a short sequence; else that of CLS if the model pools by it, or the mean over
    queries. Of a pair of texts, the first one is shown."""
    part = trained.prepared.split("test")
    if not 0 <= example < len(part):
        raise UserError(f"there is no test example {example}: choose from 0 to {len(part) - 1}")
    index = np.array([example])
    pairs = zip(part.ids(index).reshape(-1, part.width), part.lengths(index).ravel(), strict=True)
    texts = [ids[:n] for ids, n in pairs]
    A, heads, ids, real = trained.attention_maps(texts if trained.task.dual else texts[0])
    if trained.protocol.style.pooling is Pooling.cls:
        rows, query = A[:, :, :1, 1:][..., real], "row of CLS"
    else:
        rows, query = A[:, :, real][..., real], "a row per query"
        if trained.task.grid is not None or len(ids[real]) > SHORT:
            rows, query = rows.mean(2, keepdim=True), "mean over queries"
    return AttentionRows(ids[real].numpy(), rows.numpy(), query, heads)


def draw_maps(trained: Trained, maps: AttentionRows, title: str, stem: Path) -> list[Path]:
    """A panel per layer and head: over pixels, a matrix, or lines of a long sequence."""
    n_layers, n_heads, queries, n = maps.rows.shape
    grid = trained.task.grid
    columns = n_heads + (grid is not None)
    width = min(3.0, (WIDTH - 1) / columns)
    height = width if grid or queries > 1 else 0.3 + 0.14 * rows_for(n, WRAP)
    size = (max(5.0, columns * width + 1), (height + 0.35) * n_layers + 0.9)
    words = [] if grid else [trained.task.decode(maps.ids[i : i + 1]) for i in range(n)]

    def fill(figure: Any) -> None:
        from matplotlib.colors import LogNorm

        panels = figure.subplots(n_layers, columns, squeeze=False)
        for (i, j), axes in np.ndenumerate(panels):
            axes.spines[:].set_visible(False)
            axes.set(xticks=[], yticks=[])
            if j == n_heads:
                axes.axis("off")
                continue
            shares = np.clip(maps.rows[i, j] * n, 1e-9, None)
            picture = _picture(shares, grid)
            image = axes.imshow(picture, cmap="PuOr_r", norm=LogNorm(LEAST, MOST),
                                aspect="auto" if picture.shape[1] == WRAP else "equal")  # fmt: skip
            low, high = maps.rows[i, j].min() * n, maps.rows[i, j].max() * n
            axes.set_title(f"layer {i}, {maps.heads[j]}: {low:.3g} to {high:.3g}")
            if queries > 1 and n <= NAMED:
                axes.set_xticks(range(n), words, rotation=90, family="monospace")
                axes.set_yticks(range(n), words if j == 0 else [""] * n, family="monospace")
            elif grid is None and queries == 1:
                _letters(axes, words)
        if queries > 1:
            figure.supxlabel("keys", fontsize=9)
            figure.supylabel("queries", fontsize=9)
        if grid is not None:
            panels[0, -1].imshow(maps.ids.reshape(grid), cmap="gray")
            panels[0, -1].set_title("input")
        figure.colorbar(image, ax=list(panels.flat), extend="both", format="{x:g}", shrink=0.8,
                        label="attention × n (1: uniform)")  # fmt: skip

    return save_figure(stem, fill, size=size, title=title)


def _picture(shares: np.ndarray, grid: tuple[int, int] | None) -> np.ndarray:
    """(queries, n) as a picture: the matrix, or its only row over pixels or in lines of WRAP."""
    queries, n = shares.shape
    if queries > 1:
        return shares
    if grid is not None:
        return shares.reshape(grid)
    lines = np.full(rows_for(n, WRAP) * WRAP, np.nan)
    lines[:n] = shares[0]
    return lines.reshape(-1, WRAP)


def _letters(axes: Any, words: list[str]) -> None:
    """Positions of a long sequence's lines, and its characters if it is made of them."""
    lines = rows_for(len(words), WRAP)
    starts = range(0, lines, max(1, lines // 8))
    axes.set_yticks(list(starts), [f"{line * WRAP:,}" for line in starts])
    if lines <= 32 and sum(len(word) == 1 for word in words) > len(words) / 2:
        for at, word in enumerate(words):  # a dot for bytes that are not a character
            axes.text(at % WRAP, at // WRAP, word if len(word) == 1 else "·", ha="center",
                      va="center", fontsize=6, family="monospace")  # fmt: skip
