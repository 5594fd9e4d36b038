"""Pictures over all tasks: each method on each task, and LUNA beside softmax."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lra.figures.style import NOTE, PHONE, name_above, save_figure, style_of, weight
from lra.looks import LUNA, look_of
from lra.report.cell import Cell, rounded
from lra.report.grids import DARK, LIGHT, colour_of, ink_on
from lra.report.overview import BEST, Line, Task, lines_of, tasks_of
from lra.report.stats import Welch, welch_of
from lra.report.table import Table

FINDINGS = {
    "methods-tasks": "Each at its best setting, no method is more than a point above softmax on "
    "{softmax} of {tasks} tasks, and none more than a point above LUNA on {luna}",
    "luna-softmax": "LUNA is not shown to be ahead of softmax on any of {tasks} tasks, and is "
    "shown to be behind on {published} as published and on {best} at its best setting",
}
LEAST_METHODS = 7  # of a task that is shown
LEAST_TASKS = 2  # of a method that is shown
NEAR = 1.0  # points
NARROW = "cmss10"  # a font of matplotlib's whose `100` fits into a cell of a phone
LINEAR = 5  # points, up to which the axis of differences is linear
SHORT = {"ListOps, 4 to 60 tokens": "short ListOps", "ListOps, full length": "full ListOps"}
RULE = "best rule"


class Shown(NamedTuple):
    tasks: list[Task]
    lines: list[Line]  # with a place for each of the tasks


def shown(tables: Sequence[Table]) -> Shown:
    """Tasks on which many methods ran, and the methods that ran on several of these."""
    every = tasks_of(tables)
    there = [task for task in every if task.usual]
    kept = [i for i, task in enumerate(there) if len(task.usual) >= LEAST_METHODS]
    lines = []
    for line in lines_of(tables, every):
        places = [line.places[i] for i in kept]
        if sum(place is not None for place in places) >= LEAST_TASKS:
            lines.append(Line(line.key, line.name, line.method, places))
    tasks = [there[i] for i in kept]
    own = {line.method: line for line in lines if not line.key.endswith(BEST)}
    return Shown(tasks, [line for line in lines if line is own[line.method] or _other(line, own)])


def _other(line: Line, own: dict[str, Line]) -> bool:
    """Whether its best setting is more than NEAR points from the usual one on a task."""
    pairs = zip(line.places, own[line.method].places, strict=True)
    return any(a and b and abs(a.cell.score - b.cell.score) > NEAR for a, b in pairs)


def words_of(task: Task) -> str:
    return SHORT.get(task.words, task.words)


def share_of(cell: Cell, best: float) -> float:
    """How far a score is from one answer to everything, 0, to the best of its task, 1."""
    return float(np.clip((cell.score - cell.floor) / (best - cell.floor), 0, 1))


def best_of(view: Shown) -> list[float]:
    """The best mean of each task."""
    columns = zip(*(line.places for line in view.lines), strict=True)
    return [max(place.cell.score for place in column if place) for column in columns]


def near_the_best(view: Shown, key: str) -> int:
    """On how many tasks no method is more than NEAR points above this line."""
    line = {line.key: line for line in view.lines}[key]
    both = zip(line.places, best_of(view), strict=True)
    return sum(place is not None and best - place.cell.score <= NEAR for place, best in both)


def draw_methods(tables: dict[str, Table], out: Path) -> list[Path]:
    """A heat map, a row per method by family, a column per task; empty where nothing has run."""
    view = shown([*tables.values()])
    logging.getLogger("fontTools").setLevel(logging.ERROR)  # NARROW has no date, says a warning
    counts = {m: near_the_best(view, f"{m}{BEST}") for m in ("softmax", "luna")}
    finding = FINDINGS["methods-tasks"].format(**counts, tasks=len(view.tasks))
    title = (
        f"{finding}\nTest accuracy, %. Colour: from one answer to everything (pale) to the "
        "column's best (strong). Each column has data and a budget of its own: compare within "
        "one. No number: not run. “best”: of each task the setting that is best on dev, where that "
        "moves more than a point."
    )
    return save_figure(
        out / "methods-tasks",
        lambda figure: fill_methods(figure, view),
        title,
        3.6 + 0.22 * (len(view.lines) + 1),
        PHONE,
    )


def fill_methods(figure: Any, view: Shown) -> None:
    from matplotlib.colors import LinearSegmentedColormap

    axes, best = figure.subplots(), best_of(view)
    shares = np.full((len(view.lines), len(view.tasks)), np.nan)
    for y, line in enumerate(view.lines):
        for x, place in enumerate(line.places):
            if place is not None:
                shares[y, x] = share = share_of(place.cell, best[x])
                _write(axes, x, y, place.cell.score, ink_on(colour_of(share, (0, 1))))
    ends = [[part / 255 for part in end] for end in (LIGHT, DARK)]
    scale = LinearSegmentedColormap.from_list("shares", ends)
    axes.pcolormesh(np.ma.masked_invalid(shares), cmap=scale, vmin=0, vmax=1, ec="w", lw=1)
    below = len(view.lines) + 0.2
    for x, task in enumerate(view.tasks):
        _write(axes, x, below, next(iter(task.usual.values())).cell.rule, NOTE)
    names = ["best" if line.key.endswith(BEST) else line.method for line in view.lines]
    axes.set_yticks([*np.arange(len(names)) + 0.5, below + 0.5], [*names, RULE])
    axes.set_xticks(np.arange(len(view.tasks)) + 0.5, map(words_of, view.tasks), rotation=90)
    axes.set(xlim=(0, len(view.tasks)), ylim=(below + 1, 0))
    axes.tick_params(length=0, labeltop=True, labelbottom=False, pad=2)
    axes.spines[:].set_visible(False)
    for label, line in zip(axes.get_yticklabels(), view.lines, strict=False):
        label.set(color=look_of(line.method).colour, fontweight=weight(look_of(line.method).name))


def _write(axes: Any, x: float, y: float, score: float, colour: Any) -> None:
    place = {"ha": "center", "va": "center", "color": colour, "family": NARROW}
    axes.annotate(rounded(score, 0), (x + 0.5, y + 0.5), **place)


# ---------------------------------------------------------------------- LUNA and softmax


def differences(view: Shown) -> dict[str, dict[str, Welch]]:
    """By setting, then by task: both methods as they are by default, and both at their best."""
    lines = {line.key: line for line in view.lines}
    found: dict[str, dict[str, Welch]] = {}
    for setting, end in (("published", ""), ("best", BEST)):
        places = zip(lines[f"luna{end}"].places, lines[f"softmax{end}"].places, strict=True)
        for task, (luna, softmax) in zip(view.tasks, places, strict=True):
            if luna and softmax:
                values = welch_of(luna.cell.values, softmax.cell.values)
                found.setdefault(setting, {})[words_of(task)] = values
    return found


def draw_luna(tables: dict[str, Table], out: Path) -> list[Path]:
    """LUNA minus softmax on every task, as published and at its best."""
    found = differences(shown([*tables.values()]))
    behind = {name: sum(d.high < 0 for d in tasks.values()) for name, tasks in found.items()}
    finding = FINDINGS["luna-softmax"].format(tasks=len(found["best"]), **behind)
    title = (
        f"{finding}\n◇ both as published   ◆ both at the setting that is best on dev, where that "
        "is another\nBars: 95 % intervals over two to five seeds of each (Welch). The axis is "
        f"linear up to {LINEAR} points."
    )
    order = sorted(found["best"], key=lambda task: found["best"][task].difference)

    def fill(figure: Any) -> None:
        axes = figure.subplots()
        axes.axvline(0, color=NOTE, lw=1)
        for y, task in enumerate(order):
            for setting, face, lift in (("published", "white", 0.07), ("best", LUNA, -0.07)):
                d = found[setting][task]
                if setting == "best" and d == found["published"][task]:
                    continue
                reach = [[d.difference - d.low], [d.high - d.difference]]
                look = style_of("luna") | {"mfc": face, "ms": 6, "linewidth": 1.2, "ls": ""}
                ends = {"capsize": 2, "ecolor": LUNA if face == LUNA else NOTE}
                axes.errorbar(d.difference, y + lift, xerr=reach, **look | ends)
        name_above([axes], dict(enumerate(order)))
        axes.set_xscale("symlog", linthresh=LINEAR)
        ticks = [-100, -30, -5, 0, 5, 30]
        axes.set_xticks(ticks, [f"{tick:+d}".replace("-", "−") if tick else "0" for tick in ticks])
        axes.minorticks_off()
        axes.set(xlabel="LUNA minus softmax, points of accuracy", ylim=(-0.5, len(order) - 0.2))

    return save_figure(out / "luna-softmax", fill, title, 2.8 + 0.42 * len(order), PHONE)
