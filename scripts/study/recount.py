"""Recompute the rows of a campaign without this project's code: scores from the answers, the rate
that is best on dev, mean and deviation, by json and numpy.

    python scripts/study/recount.py results/records/campaign
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

RATE = "protocol.recipe.lr="


def scores_of(answers: Path) -> dict[str, float]:
    """The share of right answers of each run, in percent."""
    arrays, scores = np.load(answers), {}
    for group in {name.partition(".")[0] for name in arrays.files}:
        labels = arrays[f"{group}.labels"]
        runs = zip(arrays[f"{group}.runs"], arrays[f"{group}.answers"], strict=True)
        scores |= {str(run): 100 * float(np.mean(given == labels)) for run, given in runs}
    return scores


def recount(records: Path) -> None:
    """Print a line for each row: its words, its rate and its numbers."""
    scores = scores_of(records.with_suffix(".npz"))
    rows: dict[str, Any] = defaultdict(lambda: defaultdict(list))
    _shared, *lines = records.read_text(encoding="utf-8").splitlines()
    for line in lines:
        record = json.loads(line)
        words = record["command"].split()
        kept = ("experiment=", "task", "steps_share", "attention")
        rate = next((word for word in words if word.startswith(RATE)), "")
        row = " ".join(word for word in words if word.startswith(kept))
        rows[row][rate].append((record["dev"]["score"], scores[record["run"]]))
    for row, rates in sorted(rows.items()):
        most = max(map(len, rates.values()))
        whole = {rate: runs for rate, runs in rates.items() if len(runs) == most}
        best = max(whole, key=lambda rate: np.mean([dev for dev, _ in whole[rate]]))
        tests = np.array([test for _, test in whole[best]])
        spread = tests.std(ddof=1) if most > 1 else float("nan")
        print(f"{records.stem}  {row}  {best}  {tests.mean():.1f} ± {spread:.1f} ({most})")


if __name__ == "__main__":
    for path in sorted(Path(sys.argv[1]).glob("*.jsonl")):
        recount(path)
