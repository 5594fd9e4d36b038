"""What tables say beyond their cells: effects, the change by each setting while all others are
equal, over any crossed set of runs; and agreements, whether two tables put methods in the same
order (Spearman's rank correlation of their means)."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from statistics import fmean
from typing import Any

import pandas as pd

from lra.base.errors import UserError
from lra.report.columns import Use, used_as
from lra.report.stats import half_width, rank_correlation
from lra.report.table import Table, is_option, pairs_of, short_name, sortable
from lra.results.frame import usual_of
from lra.settings.presets import AROUND

BASES = ("softmax", "none", "sum")  # the others are compared with these, else the usual or smallest
# Settings that may differ in every table.
SHARED = (*(f"attention.{name}" for name in AROUND), *used_as(Use.row))
LEAST = 5  # methods, for a rank correlation
AVERAGED = 3  # pairs of rows, for a line that averages several
MATCHED = ["task", "seed", "tried"]  # two runs of a pair share them; rates tried are a choice


def effects(
    runs: pd.DataFrame, vary: Sequence[str] = (), together: Sequence[str] = ()
) -> pd.DataFrame:
    """Every level of every setting against the setting's base, as far as there are pairs of runs
    that differ in nothing else: setting, level, base; `where` this was seen; mean, low and high of
    the 95 % interval, in points of accuracy; pairs of rows and of runs, with the differences, least
    and largest of these.

    The settings are the attention (its options, where all runs have the same one), its local
    branch, self-pretraining, and those of `vary`. Those of `together`, such as M and L where their
    product is constant, count as one. Rows with other values to choose from make no pair.

    Among several attentions an option is a part of each method's name. One that `vary` names has
    lines too, over the runs of each attention that has it.

    An average over methods that gain and methods that lose is true of none, and one over two pairs
    may lie where no run does. So each method has a line of its own, and so has each pair where
    there are fewer than AVERAGED.

    Self-pretraining changes each attention by an amount of its own, so attentions are compared
    among the runs without it.
    """
    options = [setting for setting in vary if is_option(setting)]
    others = [setting for setting in vary if setting not in options]
    lines = _of_settings(runs, others, together)
    if options and runs["attention"].nunique() > 1:
        lines += _of_options(runs, others, options)
    return pd.DataFrame(lines)


def _of_options(
    runs: pd.DataFrame, vary: Sequence[str], options: Sequence[str]
) -> Iterator[dict[str, Any]]:
    """The lines of these options, which name the attention that has them."""
    names = [short_name(option) for option in options]
    for attention, of_method in runs.groupby("attention", sort=False):
        for line in _of_settings(of_method, vary):
            if line["setting"] in names:
                yield line | {"where": f"{attention} {line['where']}".strip()}


def _of_settings(
    runs: pd.DataFrame, vary: Sequence[str], together: Sequence[str] = ()
) -> list[dict[str, Any]]:
    """The lines of every setting in which these runs differ."""
    levels, usual = _compared(runs, vary, together)
    scored = levels.assign(score=runs["score"])
    lines = []
    for setting in levels.columns.drop(MATCHED):
        values = sorted(levels[setting].unique(), key=sortable)
        base = next((b for b in (*BASES, usual.get(setting)) if b in values), values[0])
        others = [*levels.columns.drop(setting)]
        of_base = scored[scored[setting] == base]
        pairs = scored.merge(of_base, on=others, suffixes=("", "_of_base"))
        pairs["difference"] = pairs["score"] - pairs["score_of_base"]
        for value in values:
            of_value = pairs[pairs[setting] == value]
            of_value = _plain(of_value) if setting == "attention" else of_value
            if value == base or of_value.empty:
                continue
            names = {"setting": setting, "level": str(value), "base": str(base)}
            for where, part in _averaged(of_value, others):
                lines.append(names | {"where": where} | _numbers(part, others))
    return lines


def _plain(pairs: pd.DataFrame) -> pd.DataFrame:
    """The pairs without self-pretraining, if there are some."""
    plain = pairs[pairs["pretrain"] == "none"]
    return pairs if plain.empty else plain


def _compared(
    runs: pd.DataFrame, vary: Sequence[str], together: Sequence[str]
) -> tuple[pd.DataFrame, dict[str, Any]]:
    """The settings in which runs differ, a column each, and their usual values."""
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
    return levels, usual


def _averaged(pairs: pd.DataFrame, others: Sequence[str]) -> Iterator[tuple[str, pd.DataFrame]]:
    """The pairs of one level that a line averages, with the words that say where they were seen."""
    method = ["attention"] if "attention" in others else []
    for names, of_method in pairs.groupby(method, sort=False) if method else [((), pairs)]:
        settings = [key for key in others if key not in ("seed", "tried")]
        if len(of_method.groupby(settings, dropna=False)) >= AVERAGED:
            yield " ".join(names), of_method
            continue
        differing = [key for key in settings if key not in method and of_method[key].nunique() > 1]
        if not differing:
            yield " ".join(names), of_method
            continue
        for values, pair in of_method.groupby(differing, sort=False):
            where = pairs_of(dict(zip(differing, values, strict=True)))
            yield " ".join([*names, where]), pair


def _numbers(pairs: pd.DataFrame, others: Sequence[str]) -> dict[str, Any]:
    """The mean difference of pairs of runs, its interval, and what it is made of."""
    rows = pairs.groupby([key for key in others if key != "seed"], sort=False, dropna=False)
    cells = rows["difference"].agg(list).tolist()
    means = [fmean(cell) for cell in cells]
    mean = fmean(means)
    # Over pairs of rows; a single pair says nothing of others, so over its seeds.
    half = half_width([means] if len(cells) >= AVERAGED else cells)
    differences = sorted(pairs["difference"])
    return {
        "mean": mean,
        "low": mean - half,
        "high": mean + half,
        "pairs": len(cells),
        "runs": len(differences),
        "differences": differences,
        "least": differences[0],
        "largest": differences[-1],
    }


def _levels(runs: pd.DataFrame, shared: Sequence[str], code: bool) -> pd.DataFrame:
    levels = pd.DataFrame(
        {
            "task": runs.get("task.name", runs["task"]),
            "seed": runs["seed"],
            "tried": runs.get("tried", ""),
        }
    )
    left_out = {*map(short_name, shared), *(() if code else ("code",))}
    options = [
        {key: _number_or_text(value) for key, value in of_run.items() if key not in left_out}
        for of_run in runs["options"]
    ]
    if runs["attention"].nunique() > 1:
        pairs = zip(runs["attention"], options, strict=True)
        levels["attention"] = [f"{name} {pairs_of(of_run)}".strip() for name, of_run in pairs]
    else:
        levels = levels.join(pd.DataFrame(options, runs.index, dtype=object))
    for name in shared:
        levels[short_name(name)] = runs[name].fillna("none").map(_number_or_text)
    return levels


def _number_or_text(value: Any) -> float | str:
    return value if isinstance(value, int | float) else str(value)


def agreements(table: Table, other: Table) -> pd.DataFrame:
    """Every column of a table beside every column of another that shares enough methods with it:
    column, title (of the other table), with (its column), means (a data frame: here and there, by
    attention), methods (how many), correlation, low and high of its 95 % interval."""
    lines = []
    for column, task in itertools.product(table.columns, other.columns):
        here, there = (
            t.column(c).reset_index().set_index("attention")
            for t, c in ((table, column), (other, task))
        )
        here = here[here.index.isin(there.index.drop_duplicates(keep=False))]
        pairs = zip(
            *(
                [record["settings.attention"] for record in cells["record"]]
                for cells in (here, there.loc[here.index])
            ),
            strict=True,
        )
        # Of several rows here, that whose options differ least from those there counts, then the
        # first by label, because a choice by score would favour the method.
        here = here.assign(differing=[sum(a[k] != b[k] for k in a.keys() & b) for a, b in pairs])
        here = here.sort_values(["differing", "row"])["score"].groupby(level=0, sort=False).first()
        methods = pd.DataFrame({"here": here, "there": there.loc[here.index, "score"]})
        methods = methods.reindex(there.index.intersection(here.index))
        if len(methods) >= LEAST:
            r, low, high = rank_correlation(methods["here"], methods["there"])
            lines.append(
                {
                    "column": column,
                    "title": other.spec.title,
                    "with": task,
                    "means": methods,
                    "methods": len(methods),
                    "correlation": r,
                    "low": low,
                    "high": high,
                }
            )
    return pd.DataFrame(lines)
