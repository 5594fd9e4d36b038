"""Records and run folders of schema 1 are rewritten once; scores, seeds and answers stay."""

from __future__ import annotations

import copy
import csv
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from lra.base.digests import digest
from lra.base.errors import UserError
from lra.cli import main
from lra.results import migrate
from lra.results import record as records
from lra.runs.answers import read_answers, write_answers

from ..synthetic import MODEL, PROTOCOL
from .conftest import answered


def identity(settings: dict[str, Any], fingerprint: str | None) -> str:
    """As schema 1 had it."""
    facts = json.dumps([1, settings, fingerprint], sort_keys=True)
    return hashlib.sha256(facts.encode()).hexdigest()[:12]


def training(attention: dict[str, Any], accuracy: float = 0.41249999, **more: Any) -> Any:
    """A record of schema 1: accuracies are shares, as a float32 says them."""
    protocol = copy.deepcopy(PROTOCOL) | {
        "evaluation": {"every": 50, "dev_batches": -1, "drop_last": False}
    }
    method = {"dwc": "none"} | attention
    settings = {
        "attention": method,
        "model": MODEL,
        "protocol": protocol,
        "budget": 0.02,
        "task": {"name": "listops", "source": "generated"},
        "precision": "32-true",
    }
    test = {"accuracy": accuracy, "loss": 1.5, "examples": 2000, "step": 100, "dead_rows": None}
    facts = {
        "schema": 1,
        "status": "finished",
        "identity": identity(settings, "abc"),
        "attempt": 1,
        "codes": ["a1"],
        "code": {"the backbone": "a1"},
        "seed": 3,
        "task": "listops",
        "attention": method,
        "model": "small",
        "protocol": {"name": "luna", "version": 1},
        "settings": settings,
        "budget": 0.02,
        "steps": 100,
        "batch": 32,
        "precision": "32-true",
        "preset": "matched",
        "compute": {"parameters": 5, "flops": 7},
        "data": {
            "fingerprint": "abc",
            "source": "generated",
            "majority": 0.1005,
            "examples": {"train": 100, "val": 500, "test": 2000},
        },
        "dev": {"accuracy": 0.35199999809265137, "step": 100},
        "curve": [[50, 0.281], [100, 0.352]],
        "test": test | {"select": "best"},
        "test_best": test,
        "test_last": test | {"accuracy": 0.4},
        "steps_per_second": 5.0,
        "peak_memory_mib": 400.0,
        "machine": {"device": "a CPU"},
        "times": {"finished": "2026-01-01T00:01:00+0000"},
    } | more
    return facts | {"digest": digest(facts)}


def conversion() -> Any:
    attention = {"name": "hedgehog", "layers": "all"}
    settings = {
        "task": "mrpc",
        "model": "minilm",
        "attention": attention,
        "recipe": {"epochs": 1},
        "teacher": "0",
    }
    teacher = {"accuracy": 0.8, "f1": 0.9, "score": 0.85}
    facts = {
        "schema": 1,
        "status": "finished",
        "identity": identity(settings, None),
        "task": "mrpc",
        "model": "minilm",
        "attention": attention,
        "settings": settings,
        "data": {"fingerprint": None},
        "seed": 1,
        "scores": {"teacher": teacher, "swap": teacher | {"score": 0.2}},
        "score": 0.2,
        "floor": 0.75,
        "stage1": {"after": {"dead": {"layer.0.self": [0.0]}}},
        "phi_parameters": 3,
        "machine": {"device": "cpu"},
    }
    return facts | {"digest": digest(facts)}


def test_a_sweep_keeps_scores_and_answers_under_new_names(tmp_path: Path):
    right = answered(825)
    old = training({"name": "luna", "M": 8, "bank": "mlp"}, answers=right.digests())
    other = training({"name": "linear", "eps": 1e-6}, 0.5, attempt=2)
    path = tmp_path / "r" / "sweep.jsonl"
    path.parent.mkdir()
    lines = records.lines_of([{k: v for k, v in f.items() if k != "digest"} for f in (old, other)])
    path.write_text("\n".join(lines), encoding="utf-8")
    write_answers(path.with_suffix(".npz"), {migrate.old_name(old): right})
    with pytest.raises(UserError, match="of an earlier version: `lra records migrate <folder>`"):
        records.load_records([tmp_path / "r"])

    names = tmp_path / "names.csv"
    assert main(["records", "migrate", str(tmp_path / "r"), "--map", str(names)]) == 0
    linear, luna = records.load_records([tmp_path / "r"])
    assert (luna.score, luna.stage["right"], luna["seed"]) == (41.25, 825, 3)
    assert (luna["stages.last.score"], luna.floor) == (40.0, 10.05)
    assert luna["dev"] == {"score": 35.2, "right": 176, "step": 100, "examples": 500, "scored": 500}
    assert luna["curve"] == [[50, 28.1], [100, 35.2]]
    assert luna["steps_share"] == luna["settings.steps_share"] == 0.02
    assert luna["settings.metrics"] == ["accuracy"]
    assert "bank" not in luna["attention"]  # an option that is gone
    assert luna["attention"]["projections"] == "learned"  # one that is younger
    assert {"gate": "none", "normalise": "sum"}.items() <= linear["attention"].items()
    assert luna.answers.digests() == right.digests()
    assert linear.run.endswith("-a1-seed-3-attempt-2")
    with names.open(encoding="utf-8", newline="") as file:
        rows = dict(list(csv.reader(file))[1:])
    assert rows == {migrate.old_name(old): luna.run, migrate.old_name(other): linear.run}

    before = path.read_bytes()
    assert migrate.migrate(tmp_path / "r") == {}  # once
    assert path.read_bytes() == before


def test_the_folder_of_a_run_is_renamed_with_all_that_names_it(tmp_path: Path):
    right = answered(825)
    old = training({"name": "linear", "eps": 1e-6}, answers=right.digests())
    folder = tmp_path / "linear" / f"{old['identity']}-a1" / "seed-3"
    (folder / "checkpoints").mkdir(parents=True)
    (folder / "result.json").write_text(json.dumps(old), encoding="utf-8")
    (folder / "config.yaml").write_text(
        yaml.safe_dump({"settings": old["settings"], "data_dir": "d"}), encoding="utf-8"
    )
    rows = "step,train_loss,train_accuracy,dev_loss,dev_accuracy\n50,2,0.2,,\n50,,,2.0,0.281\n"
    (folder / "metrics.csv").write_text(rows, encoding="utf-8")
    write_answers(folder / "answers.npz", {migrate.old_name(old): right})
    torch.save({"identity": f"{old['identity']}-a1"}, folder / "checkpoints" / "best.ckpt")

    [(before, after)] = migrate.migrate(tmp_path).items()
    assert before == migrate.old_name(old)
    assert not folder.exists()
    [record] = records.load_records([tmp_path])
    assert (record.run, record.score) == (after, 41.25)
    assert record.folder == tmp_path / "linear" / after.removesuffix("-seed-3") / "seed-3"
    shown = (record.folder / "metrics.csv").read_text(encoding="utf-8").splitlines()
    assert shown[0].split(",") == ["step", "train_loss", "train_score", "dev_loss", "dev_score"]
    assert shown[1:] == ["50,2,20,,", "50,,,2.0,28.1"]
    config = yaml.safe_load((record.folder / "config.yaml").read_text(encoding="utf-8"))
    assert config == {"settings": record["settings"], "data_dir": "d"}
    stored = read_answers(record.folder / "answers.npz", after, record["answers"])
    assert stored.digests() == right.digests()
    checkpoint = torch.load(record.folder / "checkpoints" / "best.ckpt", weights_only=True)
    assert checkpoint["identity"] == after


def test_a_conversion_gets_percent_and_keys_without_dots(tmp_path: Path):
    (tmp_path / "result.json").write_text(json.dumps(conversion()), encoding="utf-8")
    [after] = migrate.migrate(tmp_path).values()
    [record] = records.load_records([tmp_path])
    assert (record.run, record.score, record.floor) == (after, 20.0, 75.0)
    assert (record["metric.name"], record["select"]) == ("accuracy_f1", "swap")
    assert record["stages.teacher"] == {"score": 85.0, "metrics": {"accuracy": 80.0, "f1": 90.0}}
    assert record["stage1"] == {"after": {"dead": {"layer/0/self": [0.0]}}}


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"seed": 4}, "its digest does not fit"),
        ({"test": {}}, "its digest does not fit"),
    ],
)
def test_an_edited_record_is_not_rewritten(tmp_path: Path, change: dict[str, Any], why: str):
    path = tmp_path / "result.json"
    text = json.dumps(training({"name": "linear"}) | change)
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match=why):
        migrate.migrate(tmp_path)
    assert path.read_text(encoding="utf-8") == text


def test_a_share_that_is_no_count_is_refused(tmp_path: Path):
    (tmp_path / "result.json").write_text(
        json.dumps(training({"name": "linear"}, 0.41237)), encoding="utf-8"
    )
    with pytest.raises(UserError, match=r"0\.41237 is no multiple of 1/2000"):
        migrate.migrate(tmp_path)
