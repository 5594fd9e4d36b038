"""Leave out the answers of runs at rates that were searched and not chosen, which are most of the
bytes of a committed sweep: python scripts/study/chosen_answers.py results/records/normalise.jsonl

Their records stay, with accuracies and losses that can no longer be recomputed."""

from __future__ import annotations

import sys
from pathlib import Path

import lra
from lra.base.disk import write_atomically
from lra.report.trainings import best_on_dev
from lra.results.record import lines_of, read_sweep
from lra.runs.answers import write_answers

RATE = "protocol.recipe.lr"


def thin(path: Path) -> None:
    chosen = set(best_on_dev(lra.records(path).to_pandas().dropna(subset=RATE), RATE)["run"])
    records = read_sweep(path)
    kept = {r.run: r.answers for r in records if r.run in chosen and r.answers is not None}
    facts = [
        r.facts
        if r.run in kept or "answers" not in r.facts
        else r.facts | {"answers": {k: v for k, v in r["answers"].items() if k != "packed"}}
        for r in records
    ]
    write_answers(path.with_suffix(".npz"), kept)
    write_atomically(path, "".join(f"{line}\n" for line in lines_of(facts)).encode())
    print(f"{path}: {len(records)} records, {len(kept)} with answers")


if __name__ == "__main__":
    for name in sys.argv[1:]:
        thin(Path(name))
