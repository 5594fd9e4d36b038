"""What settings change, and whether two tables have methods in the same order."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pandas as pd

from lra.figures import points as dots
from lra.figures import style as look
from lra.looks import BLACK, WORDS, in_words, look_of
from lra.report import render
from lra.report.effects import AVERAGED
from lra.report.notes import conditions
from lra.report.table import Table


def write_effects(table: Table, folder: Path) -> list[Path]:
    """The effects of a table: a stroke per pair of runs, their mean, its 95 % interval."""
    lines = len(table.effects) + table.effects["setting"].nunique()
    stem = folder / f"{table.spec.name}-effects"
    title = f"{table.spec.title}\n{conditions(table.runs)}"
    if finding := table.spec.findings.get("effects"):
        title = f"{finding}\n{table.spec.title}"
    return look.save_figure(stem, lambda f: draw_effects(f, table), title, 1.4 + 0.27 * lines)


def draw_effects(figure: Any, table: Table) -> None:
    axes = figure.subplots()
    axes.axvline(0, color=look.NOTE, lw=1)
    y, ticks = 0.0, dict[float, str]()
    right = {"va": "center", "xycoords": axes.get_yaxis_transform(), "fontsize": 8}
    groups = table.effects.groupby(["setting", "base"], sort=False)
    pretrained = "pretrain" in {*table.effects["setting"]}
    for (setting, base), group in groups:
        ticks[y] = (
            f"{table.spec.words.get(setting, setting)}, against {_level(setting, base, bare=True)}"
        )
        if setting == "attention" and pretrained:
            ticks[y] += ",\nwithout self-pretraining"
        texts = render.lines_of(group, render.EFFECT)
        for effect, text in zip(group.to_dict("records"), texts.to_dict("records"), strict=True):
            y -= 1
            seen = f", {_where(effect['where'])}" if effect["where"] else ""
            ticks[y] = f"{_level(setting, effect['level'])}{seen}"
            half = effect["high"] - effect["mean"]
            clear = abs(effect["mean"]) > half  # not where there is no interval
            over_rows = effect["pairs"] >= AVERAGED  # else the interval is over seeds
            differences = effect["differences"]
            axes.plot(differences, [y] * len(differences), "|", color="0.6", ms=7)
            axes.errorbar(
                effect["mean"],
                y,
                xerr=None if pd.isna(half) else half,
                fmt="o",
                color=BLACK if clear else look.OTHERS,
                capsize=3,
                lw=1.8,
                mfc=None if over_rows else "w",
            )
            shown = f"{text['difference']}   [{text['95 % interval']}]   {text['pairs (runs)']}"
            axes.annotate(shown, (1.02, y), **right)
        y -= 1.4
    axes.set_yticks([*ticks], [*ticks.values()], parse_math=False)
    for label in axes.get_yticklabels():
        label.set_fontweight("bold" if ", against " in label.get_text() else "normal")
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(y + 0.7, 0.7)
    axes.annotate("mean   [95 % interval]   pairs (runs)", (1.02, 0), color=look.NOTE, **right)
    axes.set_xlabel(_explained(table.effects["pairs"]))
    axes.grid(axis="x")


def _explained(pairs: pd.Series) -> str:
    """What the signs of a figure mean; `pairs` has how many pairs of rows each line averages."""
    signs = ["| a pair of runs"]
    if (pairs >= AVERAGED).any():
        signs.append("● mean and interval over pairs of rows")
    if (pairs < AVERAGED).any():
        signs.append("○ over seeds of one pair")
    return (
        "change of the test score, all other settings equal; black: the interval leaves out 0\n"
        + "   ".join(signs)
    )


def _level(setting: str, value: Any, *, bare: bool = False) -> str:
    """A value of a setting in words; `bare` ones stand behind the name of the setting."""
    if setting == "attention":
        return _where(str(value))
    return str(value) if bare else WORDS.get(setting, {}).get(str(value), str(value))


def _where(rows: str) -> str:
    """In which rows an effect was seen: a method, or `M=8 nonneg=exp`."""
    pairs = re.findall(r"((?:\w+ x )*\w+)=(\d+(?: x \d+)+|\S+)", rows)
    method = rows[: rows.index(f"{pairs[0][0]}=")].strip() if pairs else rows
    options = dict(pairs)
    return look_of(method, options).name if method else in_words(options)


def write_agreement(table: Table, folder: Path) -> list[Path]:
    """The column that shares most methods with the other table, a point per method. Ranks, the best
    on top and at the right: means of many methods lie on one another."""
    best = table.agreements.loc[table.agreements["methods"].idxmax()]
    text = render.lines_of(best.to_frame().T, render.AGREEMENT).iloc[0]
    title = (
        f"{table.spec.title}: {best['column']}\nagainst {best['title']}: {best['with']}\n"
        f"{text['methods']} methods, rank correlation {text['correlation']} "
        f"({text['95 % interval']})"
    )
    ranks = best["means"][["here", "there"]].rank()

    def fill(figure: Any) -> None:
        axes = figure.subplots()
        points = [dots.Point(x, y, look_of(name).name) for name, x, y in ranks.itertuples()]
        for (x, y, *_), style in zip(points, map(look.style_of, ranks.index), strict=True):
            axes.plot(x, y, marker=style["marker"], color=style["color"], ms=7)
        axes.plot([1, len(ranks)], [1, len(ranks)], color=look.OTHERS, lw=0.8, ls=":", zorder=1)
        axes.margins(x=0.1, y=0.1)
        axes.set_xlabel(f"rank on {best['column']} (right: better)")
        axes.set_ylabel(f"rank on {best['with']}, {table.spec.against} (up: better)")
        axes.grid()
        dots.beside(axes, points)

    stem = folder / f"{table.spec.name}-against-{table.spec.against}"
    return look.save_figure(stem, fill, title, height=5)
