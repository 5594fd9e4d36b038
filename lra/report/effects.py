"""What tables say beyond their cells: effects, the change by each setting while all others are
equal, over any crossed set of runs; and agreements, whether two tables put methods in the same
order (Spearman's rank correlation of their means)."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import pandas as pd

from lra.base.config import UserError
from lra.report.stats import half_width, interval_of_spearman, spearman
from lra.report.table import Table, differing, pairs_of, short_name, sortable
from lra.results.frame import options_of, usual_of

BASES = ("softmax", "none")  # the others are compared with these, else the usual or smallest value
SHARED = ("attention.dwc", "pretrain.name", "processes")  # may differ in every table
LEAST = 5  # methods, for a rank correlation
MATCHED = ["task", "seed", "tried"]  # two runs of a pair share them; rates tried are a choice


def effects(
    runs: pd.DataFrame, vary: Sequence[str] = (), together: Sequence[str] = ()
) -> pd.DataFrame:
    """Every level of every setting against the setting's base, as far as there are pairs of runs
    that differ in nothing else: setting, level, base, cells (points of accuracy: a list per pair of
    rows, a number per seed), differences (all of them), mean, half_width of the 95 % interval.

    The settings are the attention (its options, where all runs have the same one), its local
    branch, self-pretraining, and those of `vary`. Those of `together`, such as M and L where their
    product is constant, count as one. Rows with other values to choose from make no pair.
    """
    shared = [*SHARED, *vary]
    levels = _levels(runs, shared, code=False)
    if levels.duplicated().any():  # runs repeated after the code had changed
        levels = _levels(runs, shared, code=True)
    usual = {}
    if runs["attention"].nunique() == 1:
        usual = {k: _number_or_text(v) for k, v in usual_of(runs["record"].iloc[0]).items()}
    if together:
        levels, usual = _as_one(levels, usual, [short_name(key) for key in together])
    if levels.duplicated().any():
        raise UserError("runs differ in settings that no effect shows; name them in `vary`")
    return pd.DataFrame([
        line
        for setting in levels.columns.drop(MATCHED)
        for line in _effects_of(str(setting), levels, runs["score"], usual)
    ])  # fmt: skip


def _effects_of(
    setting: str, levels: pd.DataFrame, scores: pd.Series, usual: dict[str, Any]
) -> list[dict[str, Any]]:
    values = sorted(levels[setting].unique(), key=sortable)
    base = next((b for b in (*BASES, usual.get(setting)) if b in values), values[0])
    others = [*levels.columns.drop(setting)]
    scored = levels.assign(score=scores)
    pairs = scored.merge(scored[scored[setting] == base], on=others, suffixes=("", "_of_base"))
    pairs["difference"] = pairs["score"] - pairs["score_of_base"]
    lines = []
    for value in values:
        of_value = pairs[pairs[setting] == value]
        if value == base or of_value.empty:
            continue
        rows = of_value.groupby([c for c in others if c != "seed"], sort=False, dropna=False)
        cells = [d.tolist() for _, d in rows["difference"]]
        means = [sum(cell) / len(cell) for cell in cells]
        lines.append({
            "setting": setting,
            "level": str(value),
            "base": str(base),
            "cells": cells,
            "differences": sorted(of_value["difference"]),
            "mean": sum(means) / len(means),
            # Over pairs of rows; one or two of them say nothing of others, so over their seeds.
            "half_width": half_width([means] if len(cells) > 2 else cells),
        })  # fmt: skip
    return lines


def _levels(runs: pd.DataFrame, shared: Sequence[str], *, code: bool) -> pd.DataFrame:
    """The value of every setting in each run, a column per setting."""
    task, tried = runs.get("task.name", runs["task"]), runs.get("tried", "")
    levels = pd.DataFrame({"task": task, "seed": runs["seed"], "tried": tried})
    several = runs["attention"].nunique() > 1
    for name, of_method in runs.groupby("attention", sort=False):
        options = dict.fromkeys(f"attention.{option}" for record in of_method["record"]
                                for option in options_of(record))  # fmt: skip
        special = [option for option in options if option not in SHARED]
        names = differing(of_method, [*special, "code"] if code else special)
        values = of_method[names].map(_number_or_text).astype(object).rename(columns=short_name)
        if several:
            labels = [f"{name} {pairs_of(row)}".strip() for _, row in values.iterrows()]
            levels.loc[values.index, "attention"] = labels
        else:
            levels[values.columns] = values
    for name in shared:
        levels[short_name(name)] = runs[name].fillna("none").map(_number_or_text)
    return levels


def _as_one(
    levels: pd.DataFrame, usual: dict[str, Any], names: Sequence[str]
) -> tuple[pd.DataFrame, dict[str, Any]]:
    """The settings of these names as one setting, `M x L`, with values such as `64 x 1`."""
    for name in names:
        if name not in levels:
            raise UserError(
                f"`together` names '{name}', which is no setting in which these runs differ"
            )
    joined = " x ".join(names)
    values = levels[names].map(str).agg(" x ".join, axis=1)
    if usual:
        usual = usual | {joined: " x ".join(str(usual.get(name)) for name in names)}
    return pd.concat([values.rename(joined), levels.drop(columns=names)], axis=1), usual


def _number_or_text(value: Any) -> float | str:
    return value if isinstance(value, int | float) else str(value)


# ---------------------------------------------------------------------- orders of two tables


def agreements(table: Table, other: Table) -> pd.DataFrame:
    """Every column of a table beside every column of another that shares enough methods with it:
    column, other and title (of the table), with (its column), methods (a data frame: here and
    there, by attention), correlation, low and high of its 95 % interval."""
    lines = []
    for column, task in itertools.product(table.columns, other.columns):
        methods = _shared(table, column, other, task)
        if len(methods) >= LEAST:
            r = spearman(methods["here"], methods["there"])
            low, high = interval_of_spearman(r, len(methods)) or (None, None)
            lines.append({"column": column, "other": other.name, "title": other.title, "with": task,
                          "methods": methods, "correlation": r, "low": low,
                          "high": high})  # fmt: skip
    return pd.DataFrame(lines)


def _shared(table: Table, column: str, other: Table, task: str) -> pd.DataFrame:
    """The methods that have one row in the other table, and one or more here. If more, the row
    counts whose options differ least from those in the other table; of equal ones the first by
    label, because a choice by score would favour the method."""
    here, there = table.column(column), other.column(task)
    names = other.rows.loc[there.index, "attention"]
    lines = {}
    for row, attention in names.items():
        rows = [r for r in here.index if table.rows.loc[r, "attention"] == attention]
        if rows and (names == attention).sum() == 1:
            theirs = there.loc[row]
            best = min(rows, key=lambda r: (_differing(here.loc[r, "record"], theirs["record"]), r))
            lines[attention] = {"here": here.loc[best, "score"], "there": theirs["score"]}
    return pd.DataFrame.from_dict(lines, orient="index")


def _differing(a: pd.Series, b: pd.Series) -> int:
    """Count the options of the attention that differ, of those that both records hold."""
    one, two = (record["settings.attention"] for record in (a, b))
    return sum(one[key] != two[key] for key in one if key in two)
