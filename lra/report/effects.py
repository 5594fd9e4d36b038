"""What tables say beyond their cells: effects, the change by each setting while all others are
equal, over any crossed set of runs; and agreements, whether two tables put methods in the same
order (Spearman's rank correlation of their means)."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import pandas as pd

from lra.base.config import UserError
from lra.report.stats import half_width, rank_correlation
from lra.report.table import Table, differing, pairs_of, short_name, sortable
from lra.results.frame import options_of, usual_of

BASES = ("softmax", "none")  # the others are compared with these, else the usual or smallest value
SHARED = (
    "attention.dwc",
    "attention.normalise",
    "pretrain.name",
    "processes",
)  # may differ in every table
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
    levels = _levels(runs, [*SHARED, *vary], code=False)
    if levels.duplicated().any():  # runs repeated after the code had changed
        levels = _levels(runs, [*SHARED, *vary], code=True)
    one = runs["attention"].nunique() == 1
    options = usual_of(runs["record"].iloc[0]) if one else {}
    usual = {key: _number_or_text(value) for key, value in options.items()}
    if names := [short_name(key) for key in together]:
        for name in names:
            if name not in levels:
                raise UserError(f"`together` names '{name}', in which these runs do not differ")
        joined = " x ".join(names)
        levels.insert(0, joined, levels[names].map(str).agg(" x ".join, axis=1))
        levels = levels.drop(columns=names)
        usual = usual | {joined: " x ".join(str(usual.get(name)) for name in names)}
    if levels.duplicated().any():
        raise UserError("runs differ in settings that no effect shows; name them in `vary`")
    lines = []
    for setting in levels.columns.drop(MATCHED):
        values = sorted(levels[setting].unique(), key=sortable)
        base = next((b for b in (*BASES, usual.get(setting)) if b in values), values[0])
        others = [*levels.columns.drop(setting)]
        scored = levels.assign(score=runs["score"])
        pairs = scored.merge(scored[scored[setting] == base], on=others, suffixes=("", "_of_base"))
        pairs["difference"] = pairs["score"] - pairs["score_of_base"]
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
                # Over pairs of rows; one or two say nothing of others, so over their seeds.
                "half_width": half_width([means] if len(cells) > 2 else cells),
            })  # fmt: skip
    return pd.DataFrame(lines)


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


def _number_or_text(value: Any) -> float | str:
    return value if isinstance(value, int | float) else str(value)


def agreements(table: Table, other: Table) -> pd.DataFrame:
    """Every column of a table beside every column of another that shares enough methods with it:
    column, other and title (of the table), with (its column), methods (a data frame: here and
    there, by attention), correlation, low and high of its 95 % interval."""
    lines = []
    for column, task in itertools.product(table.columns, other.columns):
        here, there = (_methods(t, c) for t, c in ((table, column), (other, task)))
        here = here[here.index.isin(there.index.drop_duplicates(keep=False))]
        theirs = there.loc[here.index, "record"]
        pairs = zip(here["record"], theirs, strict=True)
        # Of several rows here, that whose options differ least from those there counts, then the
        # first by label, because a choice by score would favour the method.
        here = here.assign(differing=[_options_differing(*pair) for pair in pairs])
        here = here.sort_values(["differing", "row"])["score"].groupby(level=0, sort=False).first()
        methods = pd.DataFrame({"here": here, "there": there.loc[here.index, "score"]})
        methods = methods.reindex(there.index.intersection(here.index))
        if len(methods) >= LEAST:
            r, low, high = rank_correlation(methods["here"], methods["there"])
            lines.append({"column": column, "other": other.name, "title": other.title, "with": task,
                          "methods": methods, "correlation": r, "low": low,
                          "high": high})  # fmt: skip
    return pd.DataFrame(lines)


def _methods(table: Table, column: str) -> pd.DataFrame:
    """The cells of a column by the attention of their row."""
    cells = table.column(column).reset_index()
    return cells.set_index(cells["row"].map(table.rows["attention"]).rename("attention"))


def _options_differing(a: Any, b: Any) -> int:
    """Count the options of the attention that differ, of those that both records hold."""
    one, two = (record["settings.attention"] for record in (a, b))
    return sum(one[key] != two[key] for key in one if key in two)
