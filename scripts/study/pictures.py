"""Draw the pictures over several tables of this study into results/figures:

    python scripts/study/pictures.py [--data-dir data] [--only NAME ...]

`listops-depth` needs the prepared data of its runs, and is left out without them."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import examples
import ladder
import lengths
import listops
import numpy as np
import overall
import pandas as pd
import reruns
import states

import lra
from lra.bench.result import BenchResult, title_of
from lra.data.prepare import with_fingerprint
from lra.data.registry import get
from lra.figures import style as look
from lra.figures.bench import costs_of
from lra.figures.style import INK, NOTE, OTHERS, PHONE, name_above, save_figure
from lra.looks import LUNA, WORDS, look_of
from lra.report.cell import all_of, each
from lra.report.commands import study_of
from lra.report.names import names_of
from lra.report.rules import read_rules
from lra.report.table import Table

FINDINGS = {
    "costs": "Four methods recall 94 % or more in less than a tenth of softmax's time: with "
    "signed, normalised outputs LUNA is one of them; as published it recalls 50 %",
    "dead-queries": "Where more than half of its queries are dead, LUNA with relu outputs recalls "
    "less than 60 %; with other outputs less than 3 % are dead",
    "divided": "Signed LUNA recalls more if its output is normalised, not divided by the sum of "
    "weights",
    "listops-depth": "Where expressions are nested, none of three attentions is better than "
    "reading the root's own digits",
    "states": states.FINDING,
    **overall.FINDINGS,
    "reruns": reruns.FINDING,
    "lengths": lengths.FINDING,
    **examples.FINDINGS,
    "seeds": "Seven attentions whose means differ by up to 31 points on recall differ by less than "
    "3 on Image and on short ListOps",
}
N, PAIRS = 4096, 64  # tokens whose cost is shown beside the recall of these pairs
OUTPUTS = {True: LUNA, False: INK, "exp": NOTE, "softplus": OTHERS}  # colours of LUNA's outputs
LEAST = 50  # examples of a depth or length that is shown
RULES = ("constant", "first operator", "first tokens", "own digits, no median", "own digits")
PUBLISHED = look_of("luna", {}).name
SIGNED = look_of("luna", {"nonneg": False, "normalise": "rms"}).name
WELL = 94  # percent, of FINDINGS
OF_PUBLISHED = 0.97  # its time at N tokens, of LUNA as published (docs/speed.md)
APART = look_of("rff", {}).name
AVERAGING = look_of("uniform", {}).name
Tables = dict[str, Table]
SEEDS = {
    ("recall", "pairs=32"): "32 pairs",
    ("laptop", "image8"): "Image 8 × 8",
    ("leaderboard_short", "listops"): "short ListOps",
}
PLAIN = {
    "task": "listops",
    "attention.dwc": "none",
    "protocol.style.positions": "learned",
    "pretrain.name": "none",
}
# Runs that are divided or normalised, by pairs to recall: table, column, attention or any
DIVIDED = {
    128: [("divide_slower", "pairs=128", "luna"), ("normalise_128", "recall", "rff")],
    64: [("normalise", "recall", ""), ("normalise_methods", "recall", "")],
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--results", type=Path, default=Path("results"))
    parser.add_argument("--data-dir", type=Path, default=Path("data"))
    parser.add_argument("--out", type=Path, help="default: RESULTS/figures")
    parser.add_argument("--only", nargs="+", choices=[*DRAWN, "listops-depth", *TABLED])
    a = parser.parse_args()
    out = a.out or a.results / "figures"
    pictures = {name: partial(draw, a.results, out) for name, draw in DRAWN.items()}
    pictures["listops-depth"] = partial(draw_depth, a.results, a.data_dir, out)
    wanted = a.only or [*pictures, *TABLED]
    if TABLED.keys() & {*wanted}:
        tables = {table.spec.name: table for table in study_of(a.results).tables}
    for name in wanted:
        paths = pictures[name]() if name in pictures else TABLED[name](a.results, tables, out)
        print(*paths, sep="\n")


def draw_costs(results: Path, tables: Tables, out: Path) -> list[Path]:
    """Recall against the time of the attention alone, as published."""
    (file,) = sorted((results / "bench").glob("attention-*.json"))
    bench = BenchResult.load(file)
    points = costs_and_recall(bench, tables).sort_values("ms", ascending=False)
    tenth = points["ms"][look_of("softmax").name] / 10
    title, _ = title_of("train_seconds")

    def fill(figure: Any) -> None:
        recall, time = figure.subplots(1, 2)
        for y, (_, cell) in enumerate(points.iterrows()):
            style = look.style_of(cell["attention"], cell["shown"]) | {"mfc": "none", "ls": ""}
            if cell["score"] >= WELL and cell["ms"] < tenth:
                style["mfc"] = style["color"]
            recall.errorbar(
                cell["score"], y, xerr=cell["deviation"], capsize=2, elinewidth=1, **style
            )
            time.plot(cell["ms"], y, **style)
        recall.set(title=f"recall of {PAIRS} pairs, %", xlim=(28, 103))
        time.set(title=title.replace(" time", ""), xscale="log", xlim=(3, 2000))
        for axes, limit in ((recall, WELL), (time, tenth)):
            axes.axvline(limit, color=NOTE, lw=1, ls=":")
        time.set_xticks([10, 100, 1000], ["10", "100", "1,000"])
        name_above([recall, time], dict(enumerate(points.index)))
        for axes in (recall, time):
            axes.set_ylim(-0.5, len(points) - 0.2)

    heading = (
        f"{FINDINGS['costs']}\nTwo lengths: recall in {2 * PAIRS} tokens (bars: deviation of three "
        f"or five seeds), time of the attention alone at {N:,} ({bench.facts['machine']['device']},"
        f" one thread). Dotted: {WELL} % and a tenth of softmax's time; filled: both. {SIGNED} was "
        f"timed apart: {OF_PUBLISHED} of the published."
    )
    return save_figure(out / "costs", fill, heading, 3 + 0.42 * len(points), PHONE)


def costs_and_recall(bench: BenchResult, tables: Tables) -> pd.DataFrame:
    """The cells of recall with `ms`, the time at N tokens, by name. Plain averaging, which recalls
    nothing, is left out: its time of a third of a millisecond would take half of the axis."""
    title, _ = title_of("train_seconds")
    ms = {
        look_of(method, {}).name: line["mean"][N]
        for measures in costs_of(bench).values()  # one for each length, if few
        for method, line in measures.get(title, {}).items()
        if N in line.index
    }
    ms[SIGNED] = OF_PUBLISHED * ms[PUBLISHED]
    recall = by_method(tables["recall"], f"pairs={PAIRS}")
    signed = by_method(tables["normalise"], "recall").loc[[SIGNED]]
    cells = pd.concat([recall.loc[~all_of(recall, "mixed")], signed]).drop(AVERAGING)
    cells = cells[cells.index.isin(ms)]
    return cells.assign(ms=cells.index.map(ms))


def draw_seeds(_: Path, tables: Tables, out: Path) -> list[Path]:
    """Every seed of the methods that have run on all three tasks, the best on recall on top. Those
    that lack a task may differ more: of them the one is named that does."""
    cells = {key: by_method(tables[key[0]], key[1]) for key in SEEDS}
    methods = in_all(tables)

    def fill(figure: Any) -> None:
        panels = figure.subplots(1, len(SEEDS), sharey=True, squeeze=False)[0]
        for axes, (key, title) in zip(panels, SEEDS.items(), strict=True):
            for y, name in enumerate(methods):
                cell = next(each(cells[key].loc[[name]]))
                colour = look_of(cell.attention).colour
                axes.plot(cell.values, [y] * cell.seeds, "o", ms=4, mfc="none", color=colour)
                if not cell.mixed:
                    axes.plot(cell.score, y, "|", ms=11, mew=1.6, color=colour)
            axes.axvline(cells[key]["rule"].iloc[0], color=NOTE, lw=1, ls=":", zorder=1)
            axes.set_title(title)
            axes.set_xlim(0, 104 if key[0] == "recall" else 60)
        name_above(panels, dict(enumerate(methods)))
        panels[0].set_ylim(-0.5, len(methods) - 0.2)
        figure.supxlabel("test accuracy, %", fontsize=PHONE.points)

    recall, _, short = (by_method(tables[table], column) for table, column in SEEDS)
    title = (
        f"{FINDINGS['seeds']}\n○ one seed   | mean   dotted: best rule\nThese "
        f"seven and plain averaging are all that ran on all three. {APART} did not: "
        f"{recall['score'][APART]:.1f}\u00a0% on recall and {short['score'][APART]:.1f}\u00a0% on "
        "short ListOps, at the rate of all rows, 0.002."
    )
    return save_figure(out / "seeds", fill, title, 3 + 0.42 * len(methods), PHONE)


def in_all(tables: Tables) -> list[str]:
    """The methods that ran on all tasks of SEEDS, from the worst on the first one."""
    first, *others = (by_method(tables[table], column) for table, column in SEEDS)
    both = [name for name in first.index if all(name in part.index for part in others)]
    return sorted(both, key=lambda name: first["score"][name])


def by_method(table: Table, column: str) -> pd.DataFrame:
    """The cells of a column, by the name of their row; `shown` has LUNA's outputs."""
    cells, names = table.column(column), names_of(table)
    shown = [{k: v for k, v in o.items() if k == "nonneg"} for o in cells["options"]]
    return cells.assign(shown=shown).rename(index=names)


class Both(NamedTuple):
    """The seeds of a method whose sums are divided, and normalised."""

    attention: str
    name: str
    divided: list[float]
    normalised: list[float]

    @property
    def gain(self) -> float:
        return float(np.mean(self.normalised) - np.mean(self.divided))


def draw_divided(_: Path, tables: Tables, out: Path) -> list[Path]:
    """A panel for each number of pairs, and in it a line per method: its seeds divided by the sum
    of weights, and normalised."""
    rows = {pairs: rows_both_ways(tables, parts) for pairs, parts in DIVIDED.items()}

    def fill(figure: Any) -> None:
        ratios = [len(of_panel) + 0.3 for of_panel in rows.values()]
        panels = figure.subplots(len(rows), 1, sharex=True, height_ratios=ratios)
        for axes, (pairs, of_panel) in zip(panels, rows.items(), strict=True):
            for y, row in enumerate(of_panel):
                _draw_both(axes, y, row)
            name_above([axes], {y: row.name for y, row in enumerate(of_panel)})
            axes.set_ylim(-0.5, len(of_panel) - 0.2)
            name, column, _ = DIVIDED[pairs][0]
            axes.axvline(tables[name].column(column)["rule"].iloc[0], color=NOTE, lw=1, ls=":")
            axes.set_title(f"{pairs} pairs")
        panels[-1].set(xlabel="recall, %", xlim=(-2, 102))

    late = sorted(v for row in tables["signed_128"].cells["values"] for v in row)[:2]
    title = (
        f"{FINDINGS['divided']}\n○ a seed, divided by the sum   | mean\n"
        "● a seed, normalised (rms)   dotted: best rule\n300 steps, five seeds, the best of "
        "three rates; of 128 pairs signed LUNA has eight seeds at 0.001: at 0.003 two of eight "
        f"normalised ones stay at {late[0]:.0f} and {late[1]:.0f}\u00a0%."
    )
    height = 3.2 + 0.42 * sum(map(len, rows.values()))
    return save_figure(out / "divided", fill, title, height, PHONE)


def _draw_both(axes: Any, y: int, row: Both) -> None:
    colour = look_of(row.attention).colour
    for values, face in ((row.divided, "white"), (row.normalised, colour)):
        axes.plot(values, [y] * len(values), "o", ms=4.5, mfc=face, color=colour, zorder=3)
        axes.plot(np.mean(values), y, "|", color=colour, ms=13, mew=1.6, zorder=2)
    means = [np.mean(row.divided), np.mean(row.normalised)]
    axes.plot(means, [y, y], color=colour, lw=3, alpha=0.35, zorder=2)


def rows_both_ways(tables: Tables, parts: Sequence[tuple[str, str, str]]) -> list[Both]:
    """The rows of a panel, from the bottom up: methods of (table, column, attention or any)."""
    rows = [
        row
        for name, column, attention in parts
        for row in _both_ways(tables[name].column(column))
        if attention in ("", row.attention)
    ]
    return sorted(rows, key=lambda row: row.gain)


def _both_ways(cells: pd.DataFrame) -> Iterator[Both]:
    """The methods of a column that ran in both ways; of LUNA those with M = L = 8, named by their
    outputs."""
    values: dict[tuple[str, str], dict[str, list[float]]] = {}
    for _, cell in cells.iterrows():
        options = dict(cell["options"])
        if options.get("M", 8) == 8:
            outputs = {k: v for k, v in options.items() if k == "nonneg"}
            name = look_of(cell["attention"], outputs or None).name
            name += "; ○ as published" if outputs.get("nonneg") is True else ""
            of_name = values.setdefault((cell["attention"], name), {})
            of_name[options.get("normalise", "")] = cell["values"]
    for (attention, name), ways in values.items():
        if {"sum", "rms"} <= ways.keys():
            yield Both(attention, name, ways["sum"], ways["rms"])


def draw_dead(_: Path, tables: Tables, out: Path) -> list[Path]:
    """Accuracy of LUNA's runs against the share of queries whose weights sum to 0."""
    runs = tables["recall_luna"].runs

    def fill(figure: Any) -> None:
        axes = figure.subplots()
        for i, (output, colour) in enumerate(OUTPUTS.items()):
            part = runs[runs["attention.nonneg"] == output]
            dead = 100 * part["dead_queries"]
            axes.plot(
                dead.where(dead > 0, 0.02 * i - 0.06),
                part["score"],
                look_of("luna", {"nonneg": output}).marker,
                ms=6,
                color=colour,
                mec="white",
                mew=0.5,
                label=f"{WORDS['nonneg'][str(output)]} ({len(part)})",
            )
        axes.set_xscale("symlog", linthresh=0.1)
        axes.set_xticks([0, 0.1, 1, 10, 100], ["0", "0.1", "1", "10", "100"])
        axes.set(xlabel="dead queries, % of all", ylabel="recall of 32 pairs, %", xlim=(-0.08, 130))
        axes.legend(loc="lower center", frameon=False)
        axes.grid()

    title = (
        f"{FINDINGS['dead-queries']}\n{len(runs)} runs of LUNA, a point each, by the output of its "
        "functions. The weights of a dead query sum to 0; the share in the worst layer. The axis "
        "is linear up to 0.1; outputs are side by side at 0."
    )
    return save_figure(out / "dead-queries", fill, title, 5.2, PHONE)


def draw_depth(results: Path, data_dir: Path, out: Path) -> list[Path]:
    """Short ListOps by the depth of nesting, from the answers of runs."""
    runs = lra.records(results / "records" / "recipe.jsonl").to_pandas()
    runs = runs[(runs[[*PLAIN]] == pd.Series(PLAIN)).all(axis=1)]
    fingerprint = runs["fingerprint"].iloc[0]
    data = with_fingerprint(data_dir, "listops", fingerprint)
    scored = [s for s in read_rules(results) if s["fingerprint"] == fingerprint]
    if data is None:
        options = " ".join(f"{k}={v}" for k, v in scored[0]["options"].items())
        print(f"listops-depth needs the data of its runs: lra data prepare listops {options}")
        return []
    test = data.split("test")
    depths = np.asarray(get("listops").groups(test))
    rules = {
        name: {int(g): 100 * right / n for g, (right, n) in rule["by"].items()}
        for name, rule in scored[0]["rules"].items()
        if name in RULES
    }

    def fill(figure: Any) -> None:
        axes, lines = figure.subplots(), []
        for name, of_name in runs.groupby("attention", sort=False):
            right = [
                pd.Series(100.0 * record.answers.right).groupby(depths).mean()
                for record in of_name["record"]
            ]
            line = pd.concat(right, axis=1).agg(["mean", "min", "max"], axis=1)
            line = line[np.unique(depths, return_counts=True)[1] >= LEAST]
            lines.append((look_of(name, {}).name, line, look.style_of(name)))
        for name, by in rules.items():
            line = pd.DataFrame(dict.fromkeys(("mean", "min", "max"), by))
            name = name.replace(", ", ",\n")
            lines.append((name, line, {"color": NOTE, "ls": ":", "lw": 1}))
        axes.set(xlabel="depth of nesting", ylabel="accuracy, %", xticks=sorted(set(depths)))
        look.draw_lines(axes, lines, gap=0.07)

    steps, seeds = runs["steps"].iloc[0], runs["seed"].nunique()
    title = (
        f"{FINDINGS['listops-depth']}\nShort ListOps, {steps} steps, {seeds} seeds. Dotted: "
        "rules that never look into a nested expression."
    )
    return save_figure(out / "listops-depth", fill, title, 5, PHONE)


DRAWN = {
    "listops": listops.draw,
    "ladder": ladder.draw,
    "reruns": reruns.draw,
    "lengths": lengths.draw,
    "examples": lambda _, out: examples.draw("examples", out),
    "examples-probes": lambda _, out: examples.draw("examples-probes", out),
}
TABLED = {
    "costs": draw_costs,
    "divided": draw_divided,
    "seeds": draw_seeds,
    "dead-queries": draw_dead,
    "states": lambda _, tables, out: states.draw(tables, out),
    "methods-tasks": lambda _, tables, out: overall.draw_methods(tables, out),
    "luna-softmax": lambda _, tables, out: overall.draw_luna(tables, out),
}

if __name__ == "__main__":
    main()
