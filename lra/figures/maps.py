"""The attention of a trained run on one example (of a linear method, what it implies), relative to
uniform attention and on one scale, so that any two figures can be compared."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lra.base.config import Pooling, UserError
from lra.figures.draw import WIDTH, rows_for, save_figure
from lra.figures.style import in_words
from lra.results.bundle import open_network
from lra.settings.presets import usual_options
from lra.training.trained import Trained

SHORT, NAMED = 64, 24  # tokens whose whole matrix is drawn, and of those whose names fit beside it
WRAP = 64  # tokens per line of a longer sequence
SPELT = 32  # lines that are drawn with their characters
SCALE = (0.1, 10.0)  # times uniform attention


class AttentionRows(NamedTuple):
    """Attention to the real tokens of one example."""

    ids: np.ndarray  # (n,) real tokens, or (n, stack)
    rows: np.ndarray  # (layers, H, queries, n): every query of a short sequence, else one row
    query: str  # the queries, in words
    heads: list[str]  # (H,) names


def draw(arguments: Namespace) -> list[Path]:
    folder, example = arguments.folder, arguments.example
    run = open_network(folder, data_dir=arguments.data_dir)
    maps = attention_rows(run, example)
    name = "-".join(folder.resolve().parts[-3:])
    title = f"{title_of(run)}\ntest example {example}, {maps.query}"
    return draw_maps(run, maps, title, arguments.out / f"maps-{name}-example-{example}")


def title_of(trained: Trained) -> str:
    """Task, attention with the options that differ from `attention=<name>`, seed, checkpoint; in a
    second line the conditions."""
    run, protocol, task = trained.run, trained.protocol, trained.task.name
    method, recipe = run.attention["name"], protocol.recipe
    usual = {"dwc": "none", "name": method} | usual_options(method, task, protocol.name)
    differ = {k: v for k, v in run.attention.items() if v != usual.get(k)}
    attention = ", ".join(filter(None, (method, in_words(differ))))
    return (
        f"{task}, {attention}, seed {run.seed}, {trained.weights} checkpoint\n"
        f"protocol {protocol.name} v{protocol.version}, model {run.model.name}, "
        f"{recipe.steps:,} steps of {recipe.batch}; data: {trained.prepared.facts['provenance']}"
    )


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
    from matplotlib.colors import LogNorm

    n_layers, n_heads, queries, n = maps.rows.shape
    grid, lines = trained.task.grid, rows_for(n, WRAP)
    shape = grid or ((queries, n) if queries > 1 else (lines, WRAP))
    words = [] if grid else [trained.task.decode(maps.ids[i : i + 1]) for i in range(n)]
    columns = n_heads + (grid is not None)
    width = min(3.0, (WIDTH - 1) / columns)
    height = width if grid or queries > 1 else 0.3 + 0.14 * lines

    def fill(figure: Any) -> None:
        panels = figure.subplots(n_layers, columns, squeeze=False)
        for axes in panels.flat:
            axes.spines[:].set_visible(False)
            axes.set(xticks=[], yticks=[])
        for i, h in np.ndindex(n_layers, n_heads):
            axes, shares, picture = panels[i, h], maps.rows[i, h] * n, np.full(shape, np.nan)
            picture.flat[: shares.size] = np.clip(shares, 1e-9, None).ravel()
            aspect = "equal" if grid or queries > 1 else "auto"
            image = axes.imshow(picture, cmap="PuOr_r", norm=LogNorm(*SCALE), aspect=aspect)
            title = f"layer {i}, {maps.heads[h]}"
            axes.set_title(f"{title}: {shares.min():.3g} to {shares.max():.3g}")
            if 1 < queries <= NAMED:
                axes.set_xticks(range(n), words, rotation=90, family="monospace")
                axes.set_yticks(range(n), [""] * n if h else words, family="monospace")
            elif not grid and queries == 1:
                starts = range(0, lines, max(1, lines // 8))
                axes.set_yticks(starts, [f"{line * WRAP:,}" for line in starts])
                spelt = lines <= SPELT and 2 * sum(len(word) == 1 for word in words) > n
                # a dot for bytes that are not a character
                for at, word in enumerate(words if spelt else []):
                    axes.text(at % WRAP, at // WRAP, word if len(word) == 1 else "·", ha="center",
                              va="center", fontsize=6, family="monospace")  # fmt: skip
        if queries > 1:
            figure.supxlabel("keys", fontsize=9)
            figure.supylabel("queries", fontsize=9)
        if grid:
            panels[0, -1].imshow(maps.ids.reshape(grid), cmap="gray")
            panels[0, -1].set_title("input")
        figure.colorbar(image, ax=list(panels.flat), extend="both", format="{x:g}", shrink=0.8,
                        label="attention × n (1: uniform)")  # fmt: skip

    size = (max(5.0, columns * width + 1), (height + 0.35) * n_layers + 0.9)
    return save_figure(stem, fill, size=size, title=title)
