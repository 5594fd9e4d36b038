"""Pictures over tables: rules beside published and measured ListOps (docs/listops.md), accuracy
against time and memory, every seed of every method, dead queries, ListOps by depth and length."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from lra.base.errors import UserError
from lra.bench.result import BenchResult, title_of
from lra.data.prepare import with_fingerprint
from lra.data.registry import get
from lra.figures import style as look
from lra.figures.bench import costs_of
from lra.figures.style import INK, NOTE, OTHERS, save_figure
from lra.figures.tables import write_figures
from lra.looks import LUNA, WORDS, look_of
from lra.report.commands import tables_of
from lra.report.published import published
from lra.report.rules import read_rules
from lra.report.table import Table, is_mixed, of_both_kinds, rounded
from lra.results.frame import frame_of
from lra.results.record import load_records

# Rules with the line of their label above the axes, so that labels do not cover each other.
SHOWN = {
    "constant": 0,
    "first operator": 3,
    "first tokens": 2,
    "own digits, no median": 0,
    "own digits": 1,
}
LENGTHS = {"min_length": 500, "max_length": 2000}  # of the benchmark
BRACKETS = {"lost": "brackets lost", "kept": "brackets kept", "unknown": "brackets not known"}
N, PAIRS = 4096, 64  # tokens whose cost is shown beside the recall of these pairs
OUTPUTS = {True: LUNA, False: look.PALETTE[0], "exp": look.PALETTE[1], "softplus": INK}
LEAST = 50  # examples of a depth or length that is shown
Tables = dict[str, Table]
SEEDS = {
    ("recall", "pairs=32"): "recall, 32 pairs",
    ("laptop", "image8"): "Image, 8 x 8",
    ("leaderboard_short", "listops"): "short ListOps",
}
PLAIN = {
    "task": "listops",
    "attention.dwc": "none",
    "protocol.style.positions": "learned",
    "pretrain.name": "none",
}


def draw(arguments: Namespace) -> list[Path]:
    """Draw everything that the records, rules and benchmarks of a folder of results have."""
    results = Path(arguments.results)
    out = arguments.out or results / "figures"
    runs, tables = tables_of(results)
    named = {table.spec.name: table for table in tables}
    paths = write_figures([table for table in tables if table.costs], out)
    for picture in (draw_rules, draw_costs, draw_seeds, draw_dead):
        paths += picture(results, runs, named, out)
    return paths


def draw_rules(results: Path, runs: pd.DataFrame, _: Any, out: Path) -> list[Path]:
    """ListOps at the benchmark's length: rules, published rows and runs, on one axis."""
    scored = [
        line
        for line in read_rules(results)
        if "balanced" not in line["options"] and LENGTHS.items() <= line["options"].items()
    ]
    rules = next((line["rules"] for line in scored if line["options"]["brackets"] == "keep"), None)
    if rules is None:
        return []
    ours = runs[runs["fingerprint"].isin([line["fingerprint"] for line in scored])]
    measured = list(zip(ours["attention"], ours["score"], strict=True))
    rows = {**_published(), "measured here, brackets lost or kept": measured}

    def fill(figure: Any) -> None:
        axes = figure.subplots()
        for i, scores in enumerate(reversed(rows.values())):
            for method, score in scores:
                is_luna = method == "luna"
                axes.plot(
                    score,
                    i,
                    "D" if is_luna else "o",
                    ms=6 if is_luna else 4.5,
                    mec="white",
                    mew=0.5,
                    color=LUNA if is_luna else INK,
                    zorder=4 + is_luna,
                )
        axes.set_yticks(range(len(rows)), [*reversed(rows)])
        for name, line in SHOWN.items():
            score = rules[name]["test"]
            axes.axvline(score, color=OTHERS, lw=1.2, zorder=1)
            axes.annotate(
                f"{name} {rounded(score, 1)}",
                (score, len(rows) - 0.35 + 0.045 * len(rows) * line),
                ha="center",
                color=NOTE,
                annotation_clip=False,
            )
        axes.tick_params(axis="y", labelsize=8)
        axes.set(xlabel="test accuracy, %", xlim=(12, 66), ylim=(-0.6, len(rows) - 0.5))
        axes.plot([], [], "D", color=LUNA, label="LUNA (2025)")
        axes.plot([], [], "o", color=INK, label="another method")
        axes.legend(loc="lower left", bbox_to_anchor=(0, 0.1), frameon=False)
        axes.grid(axis="y")

    title = (
        "ListOps: most published efficient Transformers score about what a few tokens give\n"
        "Lines: rules that read no nested expression, on expressions drawn anew, as our runs are. "
        "Published rows are on the released files. S4, SGConv, DSS and Mega pass these rules; "
        "where their budget is known, it is at least 24 times the tokens of our runs. They are not "
        "measured here yet."
    )
    return save_figure(out / "listops-rules", fill, title, 6.0)


def _published() -> dict[str, list[tuple[str, float]]]:
    """The published scores on ListOps by source, with what is known of its brackets."""
    contents, rows = published(), dict[str, list[tuple[str, float]]]()
    for table in contents.tables.values():
        for method, row in table.rows.items() if "listops" in table.tasks else ():
            name, brackets = contents.labels[row.source], contents.brackets[row.source]
            source = f"{name}: {BRACKETS[brackets]}"
            score = row.values[table.tasks.index("listops")]
            if score is not None and (method, score) not in rows.setdefault(source, []):
                rows[source].append((method, score))
    return dict(sorted(rows.items(), key=lambda item: -len(item[1])))


def draw_costs(results: Path, _: pd.DataFrame, tables: Tables, out: Path) -> list[Path]:
    """Recall against time and memory of the attention alone."""
    files = sorted((results / "bench").glob("attention-*.json"))
    if "recall" not in tables or not files:
        return []
    bench, cells = BenchResult.load(files[0]), _by_method(tables["recall"], f"pairs={PAIRS}")
    cells = cells[~of_both_kinds(cells)]
    scores, spread, panels = cells["score"], cells["deviation"].fillna(0), {}
    for title in (title_of(measure)[0] for measure in ("train_seconds", "peak_bytes")):
        panels[title] = [
            look.Point(line["mean"][N], scores[case], case, spread[case])
            for measures in costs_of(bench).values()  # one for each length, if few
            for case, line in measures.get(title, {}).items()
            if case in scores and N in line.index
        ]
    if not all(panels.values()):
        return []

    def fill(figure: Any) -> None:
        for axes, (title, points) in zip(figure.subplots(2, 1), panels.items(), strict=True):
            styles = [look.style_of(point.name.partition(",")[0]) for point in points]
            look.draw_front(axes, points, styles)
            axes.set(xlabel=title, ylabel="recall, %")

    title = (
        f"Accuracy against time and memory: recall of {PAIRS} pairs, LUNA as published\n"
        f"cost of the attention alone at {N:,} tokens, {bench.facts['machine']['device']}, "
        f"{bench.facts['date']}; the line joins methods that no cheaper one exceeds"
    )
    return save_figure(out / "costs", fill, title, 7.5)


def draw_seeds(_: Path, __: pd.DataFrame, tables: Tables, out: Path) -> list[Path]:
    """Every seed of every method on three tasks."""
    columns = {key: title for key, title in SEEDS.items() if key[0] in tables}
    cells = {key: _by_method(tables[key[0]], key[1]) for key in columns}
    methods = [*dict.fromkeys(name for part in cells.values() for name in part.index)][::-1]

    def fill(figure: Any) -> None:
        panels = figure.subplots(1, len(columns), sharey=True, squeeze=False)[0]
        for axes, (key, title) in zip(panels, columns.items(), strict=True):
            for name, cell in cells[key].iterrows():
                colour, y = LUNA if cell["attention"] == "luna" else INK, methods.index(name)
                axes.plot(cell["values"], [y] * cell["seeds"], "o", ms=4, mfc="none", color=colour)
                if not is_mixed(cell):
                    axes.plot(cell["score"], y, "|", ms=11, mew=1.6, color=colour)
            if "rule" in cells[key]:  # the best on dev
                axes.axvline(cells[key]["rule"].iloc[0], color=look.PALETTE[1], lw=1.2, zorder=1)
            axes.set_title(title)
            axes.grid()
        panels[0].set_yticks(range(len(methods)), methods)
        panels[0].set_ylim(-0.7, len(methods) - 0.3)
        figure.supxlabel("test accuracy, %", fontsize=9)

    title = "The seeds of every method\n○ one seed   | mean   yellow: best rule without attention"
    height = 1.2 + 0.19 * len(methods)
    return save_figure(out / "seeds", fill, title, height) if columns else []


def _by_method(table: Table, column: str) -> pd.DataFrame:
    """The cells of methods as published, and of LUNA with signed outputs, by name."""
    cells = table.column(column)
    output = cells["options"].map(lambda options: options.get("nonneg", True))
    names = cells["attention"] + output.map({True: "", False: ", signed"})
    return cells.set_index(names)[names.notna().to_numpy()]


def draw_dead(_: Path, __: pd.DataFrame, tables: Tables, out: Path) -> list[Path]:
    """Accuracy of LUNA's runs against the share of queries whose weights sum to 0."""
    if "recall_luna" not in tables:
        return []
    runs = tables["recall_luna"].runs

    def fill(figure: Any) -> None:
        axes = figure.subplots()
        for marker, (output, colour) in zip("oDs^", OUTPUTS.items(), strict=True):
            part = runs[runs["attention.nonneg"] == output]
            axes.plot(
                100 * part["dead_queries"],
                part["score"],
                marker,
                ms=5,
                color=colour,
                mec="white",
                mew=0.5,
                label=f"{WORDS['nonneg'][str(output)]} ({len(part)})",
            )
        axes.set_xscale("symlog", linthresh=0.1)
        axes.set_xticks([0, 0.1, 1, 10, 100], ["0", "0.1", "1", "10", "100"])
        axes.set(xlabel="dead queries, % of all", ylabel="recall of 32 pairs, %", xlim=(-0.02, 130))
        axes.legend(loc="lower center", frameon=False)
        axes.grid()

    title = (
        f"Dead queries against accuracy: {len(runs)} runs of LUNA on recall\n"
        "the weights of a dead query sum to 0; share in the worst layer, by output of the functions"
    )
    return save_figure(out / "dead-queries", fill, title, 3.8)


def draw_depth(arguments: Namespace) -> list[Path]:
    """Short ListOps by the depth of nesting and by length, from the answers of runs."""
    runs = frame_of(load_records([arguments.results / "records" / "recipe.jsonl"]))
    runs = runs[(runs[[*PLAIN]] == pd.Series(PLAIN)).all(axis=1)]
    fingerprint, out = runs["fingerprint"].iloc[0], arguments.out
    data = with_fingerprint(Path(arguments.data_dir), "listops", fingerprint)
    scored = [s for s in read_rules(arguments.results) if s["fingerprint"] == fingerprint]
    if data is None:
        options = " ".join(f"{k}={v}" for k, v in scored[0]["options"].items())
        raise UserError(f"prepare the data of these runs: lra data prepare listops {options}")
    test = data.split("test")
    lengths = test.lengths(np.arange(len(test)))
    groups = {
        "depth of nesting": np.asarray(get("listops").groups(test)),
        "tokens, in bins of ten": lengths // 10 * 10 + 5,
    }
    rules = {
        name: {int(g): 100 * right / n for g, (right, n) in rule["by"].items()}
        for name, rule in scored[0]["rules"].items()
        if name in SHOWN
    }

    def fill(figure: Any) -> None:
        for axes, (title, group) in zip(figure.subplots(2, 1), groups.items(), strict=True):
            lines = []
            for name, of_name in runs.groupby("attention", sort=False):
                right = [
                    pd.Series(100.0 * r.answers.right).groupby(group).mean()
                    for r in of_name["record"]
                ]
                line = pd.concat(right, axis=1).agg(["mean", "min", "max"], axis=1)
                line = line[np.unique(group, return_counts=True)[1] >= LEAST]
                lines.append((look_of(name).name, line, look.style_of(name)))
            for name, by in rules.items() if title == "depth of nesting" else ():
                line = pd.DataFrame(dict.fromkeys(("mean", "min", "max"), by))
                lines.append((f"rule: {name}", line, {"color": NOTE, "ls": ":", "lw": 1}))
            axes.set(xlabel=title, ylabel="accuracy, %", xticks=sorted(set(group)))
            look.draw_lines(axes, lines, gap=0.085)

    steps, seeds = runs["steps"].iloc[0], runs["seed"].nunique()
    title = (
        f"Short ListOps by depth and by length\n{steps} steps, {seeds} seeds with their range; "
        "rules that never look into a nested expression are dotted"
    )
    return save_figure(out / "listops-depth", fill, title, 5.6)
