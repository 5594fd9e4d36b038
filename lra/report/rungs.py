"""The answers of a table's runs, told apart by what must be read of an example. For each test
example a file of rules says which reader is sure of it (lra/data/rules.py)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from lra.report.table import Table, rounded
from lra.results.record import Record

EXAMPLES = "examples"
RULE = "rule: "
WORDS = {"constant": f"{RULE}the most frequent label"}
NOTE = (
    "Accuracy in % on test examples, told apart by the least that a reader must read to be sure of "
    "the right answer, with a probability above 90 % (`lra data baseline`). Mean over the seeds "
    "whose answers are stored. The rules read nothing, or a few tokens: where they are as good, "
    "examples are easy, and the accuracy proves no reading."
)


def rungs_of(table: Table, lines: Mapping[str, Mapping[str, Any]]) -> pd.DataFrame:
    """Give the accuracy of every row and rule, a line each, in every group of examples, a column
    each; the first line counts these. Empty without a file of rules that tells examples apart."""
    for column in table.columns:
        if found := lines.get(column, {}).get("rungs"):
            return _rungs_of(table, column, found)
    return pd.DataFrame()


def _rungs_of(table: Table, column: str, rungs: Mapping[str, Any]) -> pd.DataFrame:
    group = np.array([int(digit) for digit in rungs["test"]])
    names = [*rungs["names"]]
    count = np.bincount(group, minlength=len(names))
    made = {EXAMPLES: count.astype(float)}
    for row, cell in table.column(column).iterrows():
        shares = [_shares(record, group, len(names)) for record in cell["records"]]
        if known := [share for share in shares if share is not None]:
            made[str(row)] = np.mean(known, axis=0)
    for name, counts in rungs["rules"].items():
        hits, of = np.array(counts, float).T
        made[WORDS.get(name, f"{RULE}{name}")] = 100 * hits / np.maximum(of, 1)
    frame = pd.DataFrame.from_dict(made, orient="index", columns=names)
    return frame.loc[:, count > 0] if len(made) > 1 + len(rungs["rules"]) else pd.DataFrame()


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
