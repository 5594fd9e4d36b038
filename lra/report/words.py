"""Rows in the words of a command line, `luna,M=8,task.pairs=32`: found by them, named in them."""

from __future__ import annotations

import ast
import contextlib
from pathlib import Path
from typing import Any

import pandas as pd

from lra.base.errors import UserError, nearest
from lra.report.columns import PARTS
from lra.report.specs import select
from lra.report.table import short_name
from lra.results.frame import frame_of, options_of, usual_of
from lra.results.record import Record, load_records
from lra.runs.folder import RESULT
from lra.runs.schema import TRAINING

LISTED = 8  # rows named in an error, or settings in which two differ


def find_runs(word: str, runs: pd.DataFrame) -> pd.DataFrame:
    """The runs of the row that a word names: a run's folder, the name of a run as tables cite it,
    with its seed or without, or an attention with some of its options and settings,
    `luna,M=8,task.pairs=32`."""
    if (Path(word) / RESULT).exists():
        return frame_of(load_records([word]))
    attention, *options = word.replace(",", " ").split() or [""]  # tables print spaces
    where: dict[str, Any] = {"attention": attention}
    for key, _, text in (option.partition("=") for option in options):
        with contextlib.suppress(ValueError, SyntaxError):  # it stays a text
            text = ast.literal_eval(text)
        where[_setting(key, runs)] = text
    by_name = runs[(runs["run"] == word) | (runs["run"].str.rpartition("-seed-")[0] == word)]
    named = select(runs, where) if by_name.empty else by_name
    if named.empty:
        raise UserError(f"'{word}' names no run; the rows here are:\n{rows_of(runs)}")
    if (n := len(named[["identity", "code"]].drop_duplicates())) > 1:
        raise UserError(f"'{word}' names {n} rows, give one of them:\n{rows_of(named, runs)}")
    return named


def _setting(name: str, runs: pd.DataFrame) -> str:
    """The column of a setting that is named whole, without `attention.`, or as tables name it."""
    for column in (name, f"attention.{name}"):
        if column in runs:
            return column
    known = [column for column in runs if column.split(".")[0] in PARTS]
    called = [column for column in known if short_name(column) == name]
    if len(called) == 1:
        return called[0]
    several = f"; give one of {', '.join(called)}"
    hint = several if called else nearest(name, {*map(short_name, known)})
    raise UserError(f"the runs here have no setting '{name}'{hint}")


def rows_of(runs: pd.DataFrame, among: pd.DataFrame | None = None) -> str:
    """A line per row in the words of `find_runs`, which name no other row of `among`: those with
    usual options first, at most LISTED."""
    among = (runs if among is None else among).drop_duplicates(["identity", "code"])
    rows = in_order(runs)
    shown = rows[:LISTED].sort_values(["attention", "task"], kind="stable")
    lines = [_word(row, among) for _, row in shown.iterrows()]
    more = [f"and {len(rows) - LISTED} more"] if len(rows) > LISTED else []
    return "\n".join(f"  {line}" for line in [*lines, *more]) or "  none"


def in_order(runs: pd.DataFrame) -> pd.DataFrame:
    """A line per row: those that have answers first, and of each task one after the other, those
    with usual options first."""
    rows = runs.drop_duplicates(["identity", "code"])
    rows = rows.assign(silent=~rows["record"].map(answered), unusual=rows["record"].map(_unusual))
    rows = rows.sort_values(["silent", "unusual", "attention"], kind="stable")
    turn = rows.groupby(["silent", "task"]).cumcount()
    return rows.assign(turn=turn).sort_values(["silent", "turn"], kind="stable")


def example(runs: pd.DataFrame) -> str:
    """The words of two rows that can be compared; empty without such."""
    rows = in_order(runs)
    for _, same in rows[~rows["silent"]].groupby(["task", "fingerprint"], sort=False, dropna=False):
        firsts = same.drop_duplicates("attention")
        pair = firsts if len(firsts) > 1 else same
        if len(pair) > 1:
            return " ".join(_word(row, rows) for _, row in pair[:2].iterrows())
    return ""


def answered(record: Record) -> bool:
    """Whether a record has the answers that a comparison needs."""
    return record.get("answers.packed") is not None or bool(record.get("labels"))


def _unusual(record: Record) -> int:
    """How many options are not what the attention has by default."""
    usual = usual_of(record) if record.kind == TRAINING else {}
    return sum(str(value) != str(usual.get(key)) for key, value in options_of(record).items())


def _word(row: pd.Series, among: pd.DataFrame) -> str:
    """The attention of a row with the settings that tell it from all others, that which leaves the
    fewest chosen first; the name of its runs where settings do not."""
    left, chosen = among[among["attention"] == row["attention"]], list[str]()
    free = [key for key in sorted(differences(left), key=rank_of) if not pd.isna(row[key])]
    while len(left) > 1:
        kept = {key: left[left[key].map(str) == str(row[key])] for key in free}
        key = min(kept, key=lambda key: len(kept[key]), default="")
        if not key or len(kept[key]) == len(left):
            return str(row["run"]).rpartition("-seed-")[0]
        left = kept[key]
        chosen.append(key)
    named = [f"{key.removeprefix('attention.')}={row[key]}" for key in sorted(chosen, key=rank_of)]
    return ",".join([str(row["attention"]), *named])


def rank_of(setting: str) -> tuple[int, str]:
    """Order settings that say equally much about a row: the task first, the code last."""
    first = ("task", "attention.", "protocol.recipe.", "")
    place = next(i for i, start in enumerate(first) if setting.startswith(start))
    return len(first) if setting == "code" else place, setting


def differences(runs: pd.DataFrame) -> dict[str, list[str]]:
    """The settings in which runs differ, with their values."""
    values = {
        c: [*dict.fromkeys(runs[c].fillna("absent").map(str))]
        for c in runs
        if c == "code" or c.split(".")[0] in PARTS
    }
    return {key: texts for key, texts in values.items() if len(texts) > 1}
