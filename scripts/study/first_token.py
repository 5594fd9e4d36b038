"""Which answers do networks give on full-length ListOps, by the first token of an expression?

    lra data prepare listops --protocol nystrom brackets=drop
    python scripts/study/first_token.py

Without brackets an expression begins with its root's operator. For every run with answers: its
accuracy, then for each first operator the most frequent answer and how often it is given."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd

import lra
from lra.base.errors import UserError
from lra.data.listops.tokens import OPENING, TOKENS
from lra.data.prepare import with_fingerprint
from lra.report.render import grid

ROOT = Path(__file__).resolve().parents[2]
RECORDS = ROOT / "results" / "records" / "published_listops.jsonl"


@cache
def operators(data: Path, fingerprint: str) -> np.ndarray:
    """The first operator of every test example, in order."""
    prepared = with_fingerprint(data, "listops", fingerprint)
    if prepared is None:
        raise UserError("prepare them: lra data prepare listops --protocol nystrom brackets=drop")
    split = prepared.split("test")
    return split.ids(np.arange(len(split)), 1)[:, 0]


def lines(runs: pd.DataFrame, data: Path) -> Iterator[dict[str, object]]:
    """A line per run whose records have answers and whose data are without brackets."""
    for record in runs["record"]:
        if record["data.options.brackets"] != "drop" or (answers := record.answers) is None:
            continue
        first = operators(data, record["data.fingerprint"])[: len(answers)]
        of_first = {}
        for token in OPENING:
            given = answers.answers[first == token]
            answer, times = np.unique(given, return_counts=True)
            of_first[TOKENS[token - 1]] = (
                f"{answer[times.argmax()]} ({100 * times.max() / len(given):.1f} %)"
            )
        accuracy = f"{100 * answers.right.mean():.2f}"
        yield {"attention": record.attention, "seed": record["seed"], "%": accuracy} | of_first


def main() -> None:
    runs = lra.records(RECORDS).to_pandas()
    frame = pd.DataFrame(lines(runs, ROOT / "data")).sort_values("%", ascending=False)
    print(grid(frame.set_index("attention")))


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        sys.exit(str(error))
