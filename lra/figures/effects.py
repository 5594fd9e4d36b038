"""What settings change, and whether two tables have methods in the same order."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from lra.figures import points as dots
from lra.figures import style as look
from lra.looks import BLACK, WORDS, in_words, look_of
from lra.report import render
from lra.report.effects import AVERAGED
from lra.report.table import Table


def write_effects(table: Table, folder: Path) -> list[Path]:
    """The effects of a table: a stroke per pair of runs, their mean, its 95 % interval."""
    lines, settings = len(table.effects), {*table.effects["setting"]}
    finding = table.spec.findings.get("effects")
    title = f"{finding}\n" if finding else ""
    title += f"{table.spec.title}. {_explained(table.effects['pairs'])}"
    if {"attention", "pretrain"} <= settings:
        title += ". Attentions are compared without self-pretraining"
    stem, height = folder / f"{table.spec.name}-effects", 3 + 0.42 * lines + 0.31 * len(settings)
    size = look.PHONE._replace(both=bool(finding))
    return look.save_figure(stem, lambda f: draw_effects(f, table), title, height, size)


def draw_effects(figure: Any, table: Table) -> None:
    """Groups of lines; above each line its name and its numbers."""
    axes = figure.subplots()
    axes.axvline(0, color=look.NOTE, lw=1)
    y, names = 0.0, dict[float, str]()
    place = {"xycoords": axes.get_yaxis_transform(), "va": "bottom", "annotation_clip": False}
    for (setting, base), group in table.effects.groupby(["setting", "base"], sort=False):
        word = table.spec.words.get(setting, setting)
        levels = {_level(setting, level) for level in group["level"]}
        one = levels.pop() if len(levels) == 1 and group["where"].all() else ""
        heading = f"{word}: {one}" if one and str(base) != "none" else word
        heading = f"{heading}, against {_level(setting, base, bare=True)}"
        axes.annotate(heading, (0, y + 0.22), fontweight="bold", color=look.INK, **place)
        texts = render.lines_of(group, render.EFFECT)
        y += 0.35
        for effect, text in zip(group.to_dict("records"), texts.to_dict("records"), strict=True):
            y -= 1
            level = "" if one else _level(setting, effect["level"])
            where = _where(effect["where"]) if effect["where"] else ""
            names[y] = ", ".join(filter(None, (level, where)))
            _draw_effect(axes, y, effect)
            shown = f"{text['difference']} ({text['95 % interval']})"
            axes.annotate(shown, (1, y + 0.22), color=look.NOTE, ha="right", **place)
        y -= 1.1
    look.name_above([axes], names)
    axes.set(ylim=(y + 0.6, 0.8), xlabel="change of the test score, points")


def _draw_effect(axes: Any, y: float, effect: Mapping[str, Any]) -> None:
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


def _explained(pairs: pd.Series) -> str:
    """What the signs of a figure mean; `pairs` has how many pairs of rows each line averages."""
    signs = ["All other settings are equal; | a pair of runs"]
    if (over := pairs[pairs >= AVERAGED]).size:
        low, high = over.min(), over.max()
        many = low if low == high else f"{low} to {high}"
        signs.append(f"● mean and 95 % interval over {many} pairs of rows")
    if (pairs < AVERAGED).any():
        signs.append("○ over seeds of one pair")
    return ", ".join(signs) + "; black: the interval leaves out\u00a00"


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
