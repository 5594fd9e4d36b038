"""Recompute the rows of records without this project's code: every score from its answers, rates
of `tune=lr` from the trials on dev, means and deviations, by json and numpy.

    python scripts/study/recount.py results/records/newer.jsonl results/records/campaign
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

RATE = "protocol.recipe.lr="
NO_ROW = ("seed=", "trainer", "runs_dir=", "tune", "'tune", "limit_minutes=", RATE)

Record = dict[str, Any]


def main(paths: list[Path]) -> int:
    wrong = 0
    for path in paths:
        for file in sorted(path.glob("*.jsonl")) if path.is_dir() else [path]:
            lines = [*map(json.loads, file.read_text(encoding="utf-8").splitlines())]
            shared = lines.pop(0)["shared"] if "shared" in lines[0] else {}  # one record has none
            records = [record for line in lines if "dev" in (record := merged(shared, line))]
            scores = scores_of(file.with_suffix(".npz"))
            differ = [*differences(records, scores)]
            wrong += len(differ)
            print(*[f"{file.stem}  {line}" for line in rows(records, scores)], *differ, sep="\n")
            done = sum(record["run"] in scores for record in records)
            print(f"{file.stem}: {done} runs recomputed, {len(records) - done} have no answers")
    return min(wrong, 1)


def merged(shared: Record, own: Record) -> Record:
    """A record with what all of its file share."""
    groups = [key for key in shared.keys() & own if isinstance(own[key], dict)]
    return shared | own | {key: merged(shared[key], own[key]) for key in groups}


def scores_of(answers: Path) -> dict[str, float]:
    """The share of right answers of each run, in percent."""
    if not answers.exists():
        return {}
    arrays, scores = np.load(answers), dict[str, float]()
    for group in {name.partition(".")[0] for name in arrays.files}:
        labels = arrays[f"{group}.labels"]
        runs = zip(arrays[f"{group}.runs"], arrays[f"{group}.answers"], strict=True)
        scores |= {str(run): 100 * float(np.mean(given == labels)) for run, given in runs}
    return scores


def differences(records: list[Record], scores: dict[str, float]) -> Iterator[str]:
    """What a record says of its score, its trials and its rate, and does not follow."""
    on_dev = {record["run"]: record["dev"]["score"] for record in records}
    for record in records:
        name, score = record["run"], scores.get(record["run"], record["score"])
        if abs(score - record["score"]) > 1e-6:
            yield f"DIFFERS: {name} has {record['score']}, its answers {score}"
        for trial in record.get("tuning", {}).get("trials", []):
            if on_dev.get(trial["run"]) != trial["dev"]:
                yield f"DIFFERS: {name} has {trial['dev']} of {trial['run']}, which has another"
        if "tuning" in record and (chosen := chosen_by(record)) != rate_of(record):
            yield f"DIFFERS: the trials of {name} choose {chosen:g}, it has {rate_of(record):g}"


def rate_of(record: Record) -> float:
    return float(record["settings"]["protocol"]["recipe"]["lr"])


def chosen_by(record: Record) -> float:
    """The lowest rate whose mean on dev is within one standard error of the best mean."""
    on_dev = defaultdict(list)
    for trial in record["tuning"]["trials"]:
        on_dev[trial["lr"]].append(-np.inf if trial["dev"] is None else trial["dev"])
    best = max(on_dev.values(), key=np.mean)
    error = np.std(best, ddof=1) / np.sqrt(len(best)) if len(best) > 1 else 0.0
    return float(min(rate for rate, dev in on_dev.items() if np.mean(dev) >= np.mean(best) - error))


def rows(records: list[Record], scores: dict[str, float]) -> Iterator[str]:
    """A line for each row and rate: its words, its rate, and its numbers."""
    trials = {t["run"] for record in records for t in record.get("tuning", {}).get("trials", [])}
    found: dict[str, Any] = defaultdict(lambda: defaultdict(list))
    for record in records:
        if record["run"] in scores and record["run"] not in trials:
            words = [w for w in record["command"].split()[2:] if not w.startswith(NO_ROW)]
            tuned = ["tune=lr"] if "tuning" in record else []
            place = found[" ".join(words + tuned)][rate_of(record)]
            place.append((record["dev"]["score"], scores[record["run"]]))
    for row, rates in sorted(found.items()):
        most = max(map(len, rates.values()))
        whole = {rate: runs for rate, runs in rates.items() if len(runs) == most}
        best = max(whole, key=lambda rate: np.mean([dev for dev, _ in whole[rate]]))
        for rate, runs in sorted(rates.items()):
            tests = np.array([test for _, test in runs])
            spread = f" ± {tests.std(ddof=1):.1f}" if len(runs) > 1 else ""
            other = "" if rate == best else ", not the best on dev"
            yield f"{row}  lr={rate:g}  {tests.mean():.1f}{spread} ({len(runs)}){other}"


if __name__ == "__main__":
    raise SystemExit(main([Path(word) for word in sys.argv[1:]]))
