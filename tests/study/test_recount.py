"""scripts/study/recount.py: the rows of the tables, from answers alone, by a program of its own."""

from __future__ import annotations

import csv
import json
import re
import shutil
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

RESULTS = Path(__file__).resolve().parents[2] / "results"
RECORDS = RESULTS / "records"
TABLES = [
    "equal",
    "equal_longer",
    "equal_latest",
    "shapes",
    "shapes_s3",
    "shapes_rungs",
    "tracking",
    "tracking_a5",
    "rungs3",
    "newer",
    "newer_group",
    "group",
    "image16_s4",
    "image16_luna",
]
FILES = sorted(path for path in RECORDS.rglob("*.jsonl") if path.with_suffix(".npz").exists())


@pytest.fixture
def recount(study: dict[str, ModuleType]) -> ModuleType:
    return study["recount"]


@pytest.mark.parametrize("file", FILES, ids=lambda path: str(path.relative_to(RECORDS)))
def test_answers_give_the_scores_of_every_record(recount, file, capsys):
    assert recount.main([file]) == 0
    assert "DIFFERS" not in capsys.readouterr().out


@pytest.mark.parametrize("table", TABLES)
def test_rows_are_those_of_the_tables(recount, table, capsys):
    recount.main([RECORDS / f"{table.partition('_')[0]}.jsonl"])
    found = re.findall(r"([\d.]+)(?: ± ([\d.]+))? \((\d+)\)(.*)$", capsys.readouterr().out, re.M)
    with (RESULTS / "tables" / f"{table}.csv").open(encoding="utf-8") as lines:
        for line in csv.DictReader(lines):
            named = "lr=" in line["row"].split()[-1]  # else the row is that of the best rate
            printed = [[float(n or 0) for n in row[:3]] for row in found if named or not row[3]]
            values = np.array(line["values"].split(), float)
            row = values.mean(), values.std(ddof=1) if len(values) > 1 else 0, len(values)
            assert any(np.allclose(row, other, atol=0.06) for other in printed), line["row"]


def test_a_wrong_answer_trial_or_rate_is_named(recount, tmp_path, capsys):
    file = tmp_path / "newer.jsonl"
    shared, *lines = (RECORDS / "newer.jsonl").read_text(encoding="utf-8").splitlines()
    records = [json.loads(line) for line in lines]
    tuned = next(record for record in records if "tuning" in record)
    trials = tuned["tuning"]["trials"]
    trials[0]["dev"], tuned["score"] = 100.0, tuned["score"] + 1
    trials[0]["lr"] = tuned["settings"]["protocol"]["recipe"]["lr"] / 2
    file.write_text("\n".join([shared, *map(json.dumps, records)]), encoding="utf-8")
    shutil.copy(RECORDS / "newer.npz", tmp_path)
    assert recount.main([file]) == 1
    found = [line for line in capsys.readouterr().out.splitlines() if line.startswith("DIFFERS")]
    assert len(found) == 3
    assert all(tuned["run"] in line for line in found)
    words = "its answers", "which has another", "choose"
    assert all(word in line for word, line in zip(words, found, strict=True))
