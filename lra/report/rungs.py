"""The answers of a table's runs, grouped by what must be read of an example. For each test
example a file of rules says which reader is sure of it (lra/data/rules.py)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from lra.report.cell import rounded
from lra.report.table import Table
from lra.results.record import Record

EXAMPLES = "examples"
RULE = "rule: "
WORDS = {"constant": f"{RULE}the most frequent label"}
NOTE = (
    "Accuracy in % on test examples, grouped by the least that a reader must read to be sure of "
    "the right answer, with a probability above 90 % (`lra data baseline`). Mean over the seeds "
    "whose answers are stored. The rules read nothing, or a few tokens: where they are as good, "
    "examples are easy, and the accuracy proves no reading."
)
PLACES = (
    "Accuracy in % on test examples at each place. Mean over the seeds whose answers are stored. "
    "Early places have few tokens before them and are easy."
)
LAST, LEAST_PLACES = "last place", 3


class Groups(NamedTuple):
    """How the answers of a column are grouped."""

    of: np.ndarray  # (answers,) the number of each one's group
    names: list[str]
    rules: Mapping[str, Sequence[Sequence[int]]]  # right answers, of so many, in each group
    examples: np.ndarray  # (groups,) how many test examples have answers in it


def rungs_of(
    table: Table, lines: Mapping[str, Mapping[str, Any]]
) -> tuple[pd.DataFrame, dict[str, list[float]]]:
    """Give the accuracy of every row and rule, a line each, in every group of answers, a column
    each; the first line counts the examples. Groups are those of the file of rules, or the places
    of the tokens where each has a label. Then the accuracy of each run in the same groups. Empty
    where answers are not grouped."""
    for column in table.columns:
        line = lines.get(column, {})
        found = _by_depth(line["rungs"]) if line.get("rungs") else _by_place(table, column, line)
        if found is not None:
            return _rungs_of(table, column, found)
    return pd.DataFrame(), {}


def note_of(rungs: pd.DataFrame) -> str:
    return PLACES if LAST in rungs else NOTE


def _by_depth(rungs: Mapping[str, Any]) -> Groups:
    of = np.array([int(digit) for digit in rungs["test"]])
    names = [*rungs["names"]]
    return Groups(of, names, rungs["rules"], np.bincount(of, minlength=len(names)))


def _by_place(table: Table, column: str, line: Mapping[str, Any]) -> Groups | None:
    """Group the answers at all tokens of an example: 1, 2, 3 to 4, 5 to 8 and so on, and the last
    one. None where not every token has an answer."""
    record = table.column(column)["record"].iloc[0]
    examples, scored = (record.stage.get(key) or 0 for key in ("examples", "scored"))
    places = scored // max(examples, 1)
    if places < LEAST_PLACES or scored != examples * (record.get("data.width") or 0):
        return None
    at = np.arange(1, 1 + places)
    group = np.ceil(np.log2(at)).astype(int)
    group[-1] = group[-2] + 1
    names = []
    for number in range(group[-1]):
        of = at[group == number]
        names.append(f"{of[0]} to {of[-1]}" if len(of) > 1 else f"place {of[0]}")
    rules = {}
    for name, rule in line.get("rules", {}).items():
        by = rule.get("by", {})
        if {*by} == {*map(str, at)} and not rule.get("bound"):
            counts = np.array([by[str(place)] for place in at])
            rules[name] = [counts[group == g].sum(axis=0).tolist() for g in range(group[-1] + 1)]
    all_of = np.full(group[-1] + 1, examples)
    return Groups(np.tile(group, examples), [*names, LAST], rules, all_of)


def _rungs_of(
    table: Table, column: str, groups: Groups
) -> tuple[pd.DataFrame, dict[str, list[float]]]:
    names, asked = groups.names, groups.examples > 0
    of_runs: dict[str, list[float]] = {}
    made = {EXAMPLES: groups.examples.astype(float)}
    for row, records in table.column(column)["records"].items():
        shares = {record.run: _shares(record, groups.of, len(names)) for record in records}
        known = {run: share for run, share in shares.items() if share is not None}
        of_runs |= {run: share[asked].tolist() for run, share in known.items()}
        if known:
            made[str(row)] = np.mean([*known.values()], axis=0)
    if not of_runs:
        return pd.DataFrame(), {}
    for name, counts in groups.rules.items():
        hits, of = np.array(counts, float).T
        made[WORDS.get(name, f"{RULE}{name}")] = 100 * hits / np.maximum(of, 1)
    frame = pd.DataFrame.from_dict(made, orient="index", columns=names)
    return frame.loc[:, asked], of_runs


def _shares(record: Record, group: np.ndarray, names: int) -> np.ndarray | None:
    """The accuracy of a run in each group. A protocol may leave the last examples of test out."""
    answers = record.answers
    whole = not record.get("settings.protocol.evaluation.drop_last")
    if answers is None or (whole and len(answers) != len(group)):
        return None
    of = group[: len(answers)]
    count = np.bincount(of, minlength=names)
    return 100 * np.bincount(of, answers.right, names) / np.maximum(count, 1)


def in_words(rungs: pd.DataFrame) -> pd.DataFrame:
    texts = {
        row: [f"{n:,.0f}" if row == EXAMPLES else rounded(n, 1) for n in line]
        for row, line in zip(rungs.index, rungs.to_numpy(), strict=True)
    }
    return pd.DataFrame.from_dict(texts, orient="index", columns=rungs.columns).rename_axis("row")
