"""The main finding in one picture: on ListOps of full length, what a few tokens give, what was
published, and what each of our runs has; below it how every run gets there, a line per seed.

Its letters have 12 pixels where a phone shows it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd

import lra
from lra.figures.schemes import BAND
from lra.figures.style import INK, NOTE, OTHERS, PHONE, save_figure
from lra.looks import BLACK, LUNA, look_of
from lra.report.cell import rounded
from lra.report.published import published
from lra.report.rules import read_rules

FINDING = (
    "On ListOps no efficient Transformer here{} is more than 2.1 points above a rule that reads "
    "three tokens"
)
ABOVE = 2.1  # points, of FINDING
RECORDS = "published_listops.jsonl"
LENGTHS = {"min_length": 500, "max_length": 2000, "brackets": "keep"}  # of the benchmark
FEW = "the first 1 to 3 tokens give"
BRACKETS = {
    "lost": "Transformers,\nbrackets lost",
    "unknown": "Transformers,\nbrackets not known",
    "kept": "Transformers,\nbrackets kept",
}
STATES = "State spaces and Mega"
APART = 0.22  # of the height of a row, between the seeds of a method
LANE = 0.25  # inches: of a row
Rows = dict[str, list[tuple[str, float]]]


def draw(results: Path, out: Path) -> list[Path]:
    """Write listops.png and listops.pdf."""
    rules, theirs, ours = rules_of(results), published_rows(), our_rows(results)
    lanes = sum(2 if "\n" in name else 1 for name in (*theirs, *ours)) + 3.6
    heights = [LANE * lanes, 2.6]

    def fill(figure: Any) -> None:
        above, below = figure.subfigures(2, 1, height_ratios=heights)
        scores, leap = above.subplots(), below.subplots()
        draw_scores(scores, rules, theirs, ours)
        draw_leap(leap, rules_of(results, "val"), runs_of(results))

    title = (
        f"{finding(rules, theirs)}\n"
        "500 to 2,000 tokens; all trained from scratch. Published: the released files; rules and "
        "our runs: expressions drawn anew. Where brackets are lost, no nesting is left to read."
    )
    return save_figure(out / "listops", fill, title, sum(heights) + 2.1, PHONE)


def finding(rules: dict[str, float], theirs: Rows) -> str:
    """The title, with the published Transformers of which it is not true."""
    names = sorted({method for method, _ in exceptions(rules, theirs)})
    return FINDING.format(f" but {' and '.join(names)}" if names else "")


def exceptions(rules: dict[str, float], theirs: Rows) -> list[tuple[str, float]]:
    """Published Transformers that are further above the rule of three tokens."""
    most = rules["first tokens"] + ABOVE
    rows = (scores for what, scores in theirs.items() if what != STATES)
    return [(method, s) for scores in rows for method, s in scores if round(s - most, 6) > 0]


def rules_of(results: Path, split: str = "test") -> dict[str, float]:
    """The accuracy of every rule at the benchmark's length; one of them needs brackets."""
    (rules,) = (
        line["rules"]
        for line in read_rules(results)
        if LENGTHS.items() <= line["options"].items() and "balanced" not in line["options"]
    )
    return {name: rule[split] for name, rule in rules.items()}


def runs_of(results: Path) -> pd.DataFrame:
    """Our runs at the full budget on a GPU."""
    runs = lra.records(results / "records" / RECORDS).to_pandas()
    return runs[(runs["task.brackets"] == "drop") & (runs["machine.kind"] == "cuda")]


def our_rows(results: Path) -> Rows:
    """A row per method, the best mean on top, with the score of every seed."""
    rows: Rows = {}
    for (attention, signed, divisor), part in runs_of(results).groupby(
        ["attention", "attention.nonneg", "attention.normalise"], dropna=False
    ):
        options = {"nonneg": signed} if signed is False else {}
        options |= {"normalise": divisor} if divisor != "sum" else {}
        name = look_of(attention, options).name.replace(", n", ",\nn")
        rows[name] = [(attention, s) for s in part["score"]]
    return dict(sorted(rows.items(), key=lambda row: -sum(s for _, s in row[1]) / len(row[1])))


def published_rows() -> Rows:
    """Published scores by what was measured: state spaces and Mega, and Transformers by what is
    known of the brackets in their data."""
    contents, rows = published(), dict[str, list[tuple[str, float]]]()
    for name, table in contents.tables.items():
        for method, row in table.rows.items() if "listops" in table.tasks else ():
            of_states = name == "states" and not method.startswith("Softmax")
            what = STATES if of_states else BRACKETS[contents.brackets[row.source]]
            score = row.values[table.tasks.index("listops")]
            if score is not None and (method, score) not in rows.setdefault(what, []):
                rows[what].append((method, score))
    return {what: rows[what] for what in (STATES, *BRACKETS.values()) if what in rows}


def draw_scores(axes: Any, rules: dict[str, float], theirs: Rows, ours: Rows) -> None:
    """Rows from the top down: published ones, then ours."""
    low, high = rules["first operator"], rules["first tokens"]
    others = exceptions(rules, theirs)
    y, ticks, headings = 0.0, dict[float, str](), dict[float, str]()
    for heading, rows in (("Published", theirs), ("Our runs, by seed", ours)):
        headings[y] = heading
        y -= 1
        for name, scores in rows.items():
            y -= 0.5 * name.count("\n")
            ticks[y] = name
            lowest = APART * (len(scores) - 1) / 2 if rows is ours else 0
            for i, (method, score) in enumerate(scores):
                is_luna = method == "luna"
                shape = {"color": LUNA, "marker": "D", "ms": 5} if is_luna else {"color": BLACK}
                style = {"marker": "o", "ms": 4.5, "mec": "white", "mew": 0.5, "alpha": 0.85}
                at = y - lowest + APART * i if rows is ours else y
                axes.plot(score, at, zorder=4 + is_luna, **style | shape)
                if is_luna and rows is theirs:
                    said = f"LUNA {rounded(score, 1)}"
                    place = {"ha": "right", "va": "center"}
                    axes.annotate(said, (low - 0.5, y), color=LUNA, **place)
                if (method, score) in others:
                    axes.annotate(method, (65.5, y - 0.9), ha="right", va="center")
            y -= 1 + 0.5 * name.count("\n")
    axes.axvspan(low, high, color=BAND, lw=0, zorder=0)
    for name, said in (("constant", "one answer"), ("own digits", "own digits")):
        axes.axvline(rules[name], color=OTHERS, lw=1, zorder=0)
        axes.annotate(f" {said}", (rules[name], 0), va="center", color=NOTE)
    axes.annotate(
        f"{FEW} {rounded(low, 0)} to {rounded(high, 0)} %",
        (65.5, 1.1),
        ha="right",
        color=INK,
        fontweight="bold",
        annotation_clip=False,
    )
    axes.set_yticks(list(ticks), list(ticks.values()))
    for at, heading in headings.items():
        place = {"xycoords": axes.get_yaxis_transform(), "annotation_clip": False}
        axes.annotate(heading, (-0.02, at), ha="right", va="center", fontweight="bold", **place)
    axes.tick_params(axis="y", length=0)
    axes.set(xlabel="test accuracy, %", xlim=(13, 66), ylim=(y + 0.4, 0.8))
    for label in axes.get_yticklabels():
        label.set_color(LUNA if label.get_text().startswith("LUNA") else INK)


def draw_leap(axes: Any, rules: dict[str, float], runs: pd.DataFrame) -> None:
    """Accuracy on dev by step of every run."""
    low, high = rules["first operator"], rules["first tokens"]
    axes.axhspan(low, high, color=BAND, lw=0, zorder=0)
    said = f"1 to 3 tokens, on dev: {rounded(low, 1)} to {rounded(high, 1)} %"
    axes.annotate(said, (100, high + 1.2), color=INK)
    looks = {"luna": (LUNA, 1.3, 3), "softmax": (BLACK, 1.3, 2)}
    for attention, record in zip(runs["attention"], runs["record"], strict=True):
        colour, width, order = looks.get(attention, (OTHERS, 0.9, 1))
        steps, scores = zip(*record["curve"], strict=True)
        axes.plot(steps, scores, color=colour, lw=width, zorder=order)
    for i, (name, colour) in enumerate((("LUNA", LUNA), ("Softmax", BLACK), ("others", NOTE))):
        axes.annotate(
            name,
            (0.03, 0.68 - 0.18 * i),
            xycoords="axes fraction",
            color=colour,
            fontweight="bold" if i < 2 else "normal",
        )
    axes.set(xlabel="training step", ylabel="dev accuracy, %", xlim=(0, 5250), ylim=(13, 44))
    axes.set_title("A line is a run: it waits, leaps, or never does")
