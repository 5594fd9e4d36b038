"""Synthetic records: folders of runs as training leaves them, without training."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd

from lra.base.digests import digest
from lra.metrics import Answers
from lra.metrics.metric import facts_of, get
from lra.report.specs import TableSpec, select
from lra.report.table import Table
from lra.report.trainings import build
from lra.results import record as records
from lra.results.frame import frame_of
from lra.runs.answers import write_answers
from lra.runs.schema import name_of
from lra.settings.experiment import SCHEMA_VERSION, identity_of
from lra.training.conversion import record_of

OPTIONS: dict[str, dict[str, Any]] = {
    "luna": {"M": 8, "L": 8, "kernel": "learned", "envelope": "none"},
    "linear": {"eps": 1e-6},
    "softmax": {},
}
PROTOCOL = {
    "name": "luna",
    "version": 1,
    "recipe": {"batch": 32, "steps": 100, "lr": 0.002, "betas": [0.9, 0.98]},
    "evaluation": {"every": 50},
}
EXAMPLES = 2000  # of a test set
MODEL = {"name": "small", "n_layers": 2, "d_model": 64}


def facts(
    attention: str,
    accuracy: float,
    *,
    task: str = "listops",
    seed: int = 1,
    source: str = "generated",
    options: dict[str, Any] | None = None,
    steps_share: float = 0.02,
    lr: float = 0.002,
    model: str = "small",
    version: int = 1,
    protocol: str = "luna",
    pairs: int | None = None,
    **more: Any,
) -> dict[str, Any]:
    """The result.json of one run; `more` are facts of it by dotted name, `.` written `__`."""
    chosen_protocol = copy.deepcopy(PROTOCOL) | {"version": version, "name": protocol}
    chosen_protocol["recipe"]["lr"] = lr
    method = {"name": attention, "dwc": "none"} | OPTIONS.get(attention, {}) | (options or {})
    settings: dict[str, Any] = {
        "attention": method,
        "model": MODEL | {"name": model},
        "protocol": chosen_protocol,
        "steps_share": steps_share,
        "metrics": ["accuracy"],
        "task": {"name": task, "source": source},
        "precision": "32-true",
    }
    fingerprint = f"{task}-{source}"
    if pairs is not None:
        settings["task"]["pairs"] = pairs
        fingerprint = f"{fingerprint}-{pairs}"
    result: dict[str, Any] = {
        "schema": SCHEMA_VERSION,
        "kind": "training",
        "status": "finished",
        "identity": identity_of(settings, fingerprint),
        "settings": settings,
        "task": task,
        "attention": method,
        "model": model,
        "protocol": {"name": protocol, "version": version},
        "steps_share": steps_share,
        "seed": seed,
        **costs(attention),
        "data": {
            "fingerprint": fingerprint,
            "source": source,
            "provenance": "re-generated, not the released files",
        },
        **scores(accuracy),
        **surroundings(),
    }
    change(result, more)
    named(result)
    return result


def named(facts: dict[str, Any]) -> None:
    """Give a record the name of its run."""
    attempt = facts.get("attempt") or 1
    facts["run"] = name_of(facts["identity"], facts.get("codes"), facts["seed"], attempt)


def costs(attention: str) -> dict[str, Any]:
    """What a run took, and of what; longer names take more."""
    return {
        "steps": 100,
        "batch": 32,
        "compute": {
            "parameters": 80_000 + 1000 * len(attention),
            "flops": 19_188_224,
            "verdict": "matched",
            "budget": {"reference": "luna", "tolerance": {"parameters": 0.05}, "flops": 19_000_000},
            "exempt": None,
        },
        "seconds": {"training": 100 / (5 + len(attention)), "evaluation": 1.0},
        "steps_per_second": 5.0 + len(attention),
        "peak_memory_mib": 400.0 + 10 * len(attention),
    }


def scores(accuracy: float) -> dict[str, Any]:
    """What a run scored: on dev and test at its best step, on test at its last one."""
    best = stage(accuracy) | {"loss": 1.5, "step": 100, "dead_rows": 0.0}
    return {
        "metric": facts_of(get("accuracy")),
        "score": best["score"],
        "floor": 10.0,
        "select": "best",
        "stages": {"last": stage(accuracy - 0.01) | {"loss": 1.6}, "best": best},
        "dev": stage(accuracy) | {"step": 100},
        "curve": [[50, best["score"] / 2], [100, best["score"]]],
    }


def selected(record: Any) -> dict[str, Any]:
    """What a record says of the checkpoint that gives its score."""
    stage: dict[str, Any] = record["stages"][record["select"]]
    return stage


def stage(accuracy: float) -> dict[str, Any]:
    """A score and the counts that it follows from."""
    right = round(accuracy * EXAMPLES)
    score = 100 * right / EXAMPLES
    return {"score": score, "right": right, "scored": EXAMPLES, "examples": EXAMPLES}


def surroundings() -> dict[str, Any]:
    """Where and when a run took place."""
    return {
        "precision": "32-true",
        "machine": {"device": "a CPU", "kind": "cpu", "threads": 1, "processes": 1},
        "versions": {"torch": "2.13.0"},
        "git": {"revision": "0123456789abcdef", "dirty": False},
        "times": {"started": "2026-01-01T00:00:00+0000", "finished": "2026-01-01T00:01:00+0000"},
    }


def change(facts: dict[str, Any], changes: dict[str, Any]) -> None:
    """Set facts by dotted name, `.` written `__`."""
    for key, value in changes.items():
        *parents, last = key.split("__")
        place = facts
        for parent in parents:
            place = place[parent]
        place[last] = value


Make = Callable[..., Path]


def write_run(root: Path, attention: str, accuracy: float, **more: Any) -> Path:
    """A run's folder; returns its result.json."""
    name = more.pop("folder", f"seed-{more.get('seed', 1)}")
    result = facts(attention, accuracy, **more)
    folder = (
        root
        / result["task"]
        / result["protocol"]["name"]
        / "small"
        / attention
        / "-".join([result["identity"], *result.get("codes", [])])
        / name
    )
    folder.mkdir(parents=True)
    sealed = result | {"digest": digest(result)}
    (folder / "result.json").write_text(json.dumps(sealed), encoding="utf-8")
    dev = 100 * accuracy
    rows = [f"50,2.1,20,,\n50,,,2.0,{dev / 2}\n100,,,1.8,{dev}\n"]
    (folder / "metrics.csv").write_text(
        "step,train_loss,train_score,dev_loss,dev_score\n" + "".join(rows), encoding="utf-8"
    )
    return folder / "result.json"


def add_answers(path: Path, answers: Answers) -> None:
    """Put answers beside a record, and their digests into it."""
    edit(path, answers=answers.digests())
    write_answers(path.with_name("answers.npz"), {records.read_record(path).run: answers})


def edit(path: Path, **changes: Any) -> None:
    """Change facts of a record by dotted name, and give them a digest that fits."""
    facts = json.loads(path.read_text(encoding="utf-8"))
    change(facts, changes)
    if "run" not in changes:
        named(facts)
    facts["digest"] = digest(facts)
    path.write_text(json.dumps(facts), encoding="utf-8")


CONVERSION_RECIPE = {
    "stage1": "ce",
    "stage1_lr": 0.01,
    "stage1_steps": 250,
    "batch": 8,
    "lr": 1e-5,
    "phi_lr": None,
    "epochs": 10,
    "patience": 3,
}
TEACHERS = {"sst2": 0.9, "mrpc": 0.8}


def write_conversion(
    root: Path,
    attention: str | None,
    score: float,
    *,
    task: str = "sst2",
    seed: int = 1,
    key: str = "k",
    **more: Any,
) -> Path:
    """The folder of a conversion (of a teacher, without an attention); returns its result.json."""
    facts: dict[str, Any] = {
        "schema": 1,
        "status": "finished",
        "task": task,
        "attention": attention,
        "options": {"layers": "all"} | more.pop("options", {}),
        "recipe": CONVERSION_RECIPE | more.pop("recipe", {}),
        "seed": seed,
        "teacher": f"hash-{task}",
        "scores": {"teacher": {"score": TEACHERS[task]}, "best": {"score": score}},
        "score": score,
        "floor": 0.5,
        "stage1": None if attention == "softmax" else {"loss": 1},
        "stage2": {"epochs": []},
        "phi_parameters": 1000,
        "device": "cpu",
        "threads": 1,
        "torch": "2.13.0",
        "versions": {},
        "seconds": 1.0,
    } | more
    place = root / "convert" / task / "minilm"
    folder = place / (f"{attention}/{key}" if attention else "teacher") / f"seed-{seed}"
    folder.mkdir(parents=True)
    made = record_of(facts, "minilm") if attention else facts
    (folder / "result.json").write_text(json.dumps(made), encoding="utf-8")
    return folder / "result.json"


def frame(folder: Path) -> pd.DataFrame:
    """The data frame of a folder's runs."""
    return frame_of(records.load_records([folder]))


def table(runs: Path, **spec: Any) -> Table:
    """The table of a folder's runs."""
    made = TableSpec(**{"name": "t", "title": "T"} | spec)
    return build(made, select(frame(runs), made.where), runs.parent)


def cell(table: Table, row: str, column: str = "listops") -> pd.Series:
    return table.cells.loc[(row, column)]
