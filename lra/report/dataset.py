"""`lra records export --all`: a folder of results as a data set that anybody can check."""

from __future__ import annotations

import argparse
import csv
import io
import json
import shutil
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from lra.base.code import UNKNOWN
from lra.base.errors import UserError, csv_text
from lra.base.places import PACKAGE
from lra.data import hunt, rules
from lra.data.store import lock, new_folder
from lra.report.commands import study_of, texts_of
from lra.report.page import page
from lra.report.study import Study
from lra.report.table import Table
from lra.results import first_versions
from lra.results.first_versions import RECORDS
from lra.results.frame import MAIN
from lra.results.record import paths
from lra.runs.schema import TRAINING

LICENSE = "apache-2.0"  # of this project
COPIED = (rules.FILE, hunt.FILE, "tables.yaml", first_versions.FILE)
CARD = """\
---
license: {license}
pretty_name: {n} runs of the Long Range Arena by luna-lra
tags: [long-range-arena, efficient-attention, luna-lra]
configs:
- config_name: runs
  data_files: runs.csv
---
# {n} runs of efficient attention on the Long Range Arena

Records of finished runs with the answers to every test example, and the tables that follow from
them, made by luna-lra.

| | |
|---|---|
| `runs.csv` | a row per run: task, attention, seed, score, costs |
| `records/` | {records} records of these runs, a line each with all settings; in the `.npz` \
beside them the answers. {answers} runs have no answers, {code} no hash of their code |
| `protocols/` | how they were trained: the settings of each protocol by task, from the records |
| `tables/`, `index.html` | {tables} tables in Markdown, CSV and LaTeX, and all on one page |
| `rules.jsonl`, `hunts.jsonl` | what rules that understand nothing score on the same data |

## Check it

```sh
lra records check .
lra table --check --results .
```

The first computes scores, losses and costs from answers and settings, and with `--data-dir` it
compares the labels; the second makes the tables again. Neither shows that a network was trained as
its settings say: the `command` in its record repeats it.

## Runs

{counts}
"""


def export_all(a: argparse.Namespace) -> None:
    target, results = a.all, Path(a.results)
    study = study_of(results)
    with lock(target, f"another process is writing {target}; waiting for it"):
        if target.exists() and (not target.is_dir() or any(target.iterdir())):
            raise UserError(f"{target} is there already: name a new folder")
        with new_folder(target) as partial:
            _fill(partial, study, a.license)
    counts = f"{len(study.runs)} records, {len(study.tables)} tables"
    print(f"{counts}: {target}\nlra records check {target}")


def _fill(folder: Path, study: Study, license: str) -> None:
    results, runs, records = study.folder, study.runs, study.folder / RECORDS
    files = [*paths(records), *(results / name for name in COPIED)]
    files += [path.with_suffix(".npz") for path in paths(records)]
    for file in [file for file in files if file.exists()]:
        if file.is_symlink() or not file.resolve().is_relative_to(results.resolve()):
            raise UserError(f"{file} is a link, which is not passed on: put the file itself there")
        copy = folder / file.relative_to(results)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, copy)
    texts = {path.relative_to(results): text for path, text in texts_of(study).items()}
    texts[Path("index.html")] = page(study.tables, results)
    once = runs.drop_duplicates("run")  # some stand in the files of two sweeps
    texts[Path("runs.csv")] = _rows(once, records)
    texts[Path("README.md")] = _card(once, len(runs), study.tables, license)
    texts |= {Path(f"protocols/{name}.yaml"): text for name, text in _protocols(runs)}
    for path, text in texts.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text, encoding="utf-8")
    if (text_of_license := PACKAGE.parent / "LICENSE").exists() and license == LICENSE:
        shutil.copyfile(text_of_license, folder / "LICENSE")


def _rows(runs: pd.DataFrame, records: Path) -> str:
    """A row per run, with the columns that every record has."""
    out = io.StringIO()
    columns = [column for column in MAIN if column != "path"]
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([*columns, "file"])
    for _, row in runs.sort_values(["task", "protocol", "attention", "run"]).iterrows():
        cells = [row[column] for column in columns]
        file = Path(row["path"]).relative_to(records)
        texts = [csv_text(cell) if isinstance(cell, str) else cell for cell in cells]
        writer.writerow([*texts, file])
    return out.getvalue()


def _protocols(runs: pd.DataFrame) -> Iterator[tuple[str, str]]:
    """Yield the different settings of each protocol and version, by task, from the records."""
    found: dict[str, dict[str, list[Any]]] = defaultdict(lambda: defaultdict(list))
    for record in runs.loc[runs["kind"] == TRAINING, "record"]:
        name = f"{record['protocol.name']}-v{record['protocol.version']}"
        settings = record["settings.protocol"]
        if settings not in (of_task := found[name][record["task"]]):
            of_task.append(settings)
    for name, tasks in sorted(found.items()):
        of_tasks = {task: sorted(tasks[task], key=json.dumps) for task in sorted(tasks)}
        yield name, yaml.safe_dump(json.loads(json.dumps(of_tasks)), sort_keys=False)


def _card(runs: pd.DataFrame, records: int, tables: Sequence[Table], license: str) -> str:
    answers = [r.get("answers.packed") or r.get("labels") for r in runs["record"]]
    by_task = runs.groupby("task").agg(
        runs=("run", "size"), attentions=("attention", "nunique"), seeds=("seed", "nunique")
    )
    counts = ["| task | runs | attentions | seeds |", "|---|--:|--:|--:|"]
    for task, of_task in by_task.iterrows():
        counts.append("| " + " | ".join(map(str, [task, *of_task])) + " |")
    return CARD.format(
        license=license,
        n=f"{len(runs):,}",
        records=f"{records:,}",
        answers=f"{sum(not found for found in answers):,}",
        code=f"{int((runs['code'] == UNKNOWN).sum()):,}",
        tables=len(tables),
        counts="\n".join(counts),
    )
