"""Records in the format of Every Eval Ever."""

from __future__ import annotations

import importlib.util
import json
import os
import re
from pathlib import Path

import pytest

from lra.cli import main
from lra.results.every_eval_ever import evaluation
from lra.results.record import load_records

ROOT = Path(__file__).resolve().parents[3]
RECORDS = ROOT / "results" / "records"


def schema() -> dict:
    """Theirs: of the package, where it is installed, or of the file that a variable names."""
    named = os.environ.get("EVERY_EVAL_EVER_SCHEMA")
    found = None if named else importlib.util.find_spec("every_eval_ever")
    if named is None and found is None:
        pytest.skip("neither every_eval_ever nor EVERY_EVAL_EVER_SCHEMA is there")
    path = Path(named or Path(found.origin).with_name("schemas") / "eval.schema.json")
    return json.loads(path.read_text(encoding="utf-8"))


def test_a_score_keeps_its_unit_its_direction_and_its_noise():
    record = next(r for r in load_records([RECORDS / "recall"]) if r.stage.get("noise"))
    log = evaluation(record, "A Lab")
    [result] = log["evaluation_results"]
    assert result["score_details"]["score"] == record.score
    assert result["score_details"]["uncertainty"] == {
        "standard_error": {"value": record.stage["noise"]},
        "num_samples": record.stage["scored"],
    }
    metric = result["metric_config"]
    assert metric["metric_id"] == "accuracy"
    assert (metric["metric_unit"], metric["min_score"], metric["max_score"]) == ("percent", 0, 100)
    assert metric["lower_is_better"] is False
    assert result["source_data"]["additional_details"]["fingerprint"] == record["data.fingerprint"]
    details = log["model_info"]["additional_details"]
    assert details["settings.protocol.recipe.lr"] == str(record["settings.protocol.recipe.lr"])
    assert all(isinstance(value, str) for value in details.values())


def test_every_committed_record_has_a_name_of_its_own():
    records = load_records([RECORDS])
    logs = [evaluation(record, "A Lab") for record in records]
    assert len({log["evaluation_id"] for log in logs}) == len(records) > 1000
    lower = {log["evaluation_results"][0]["metric_config"]["lower_is_better"] for log in logs}
    assert lower == {r["metric.higher_is_better"] is False for r in records}
    for log in logs:
        assert re.fullmatch(r"[\w.-]+/[\w.-]+", log["model_info"]["id"])


def test_their_schema_takes_every_committed_record():
    validator = pytest.importorskip("jsonschema").Draft7Validator(schema())
    for record in load_records([RECORDS]):
        errors = [error.message for error in validator.iter_errors(evaluation(record, "A Lab"))]
        assert errors == [], record.where


def test_the_command_writes_a_file_a_run_and_the_same_one_again(tmp_path, capsys):
    words = ["records", "export", str(tmp_path), "--runs", str(RECORDS / "conversion.jsonl")]
    words += ["--format", "every-eval-ever", "--organization", "A Lab/of ours"]
    assert main(words) in (0, None)
    files = sorted(tmp_path.rglob("*.json"))
    printed = capsys.readouterr().out
    assert printed.startswith(f"{len(files)} evaluations in {tmp_path}")
    assert {len(file.relative_to(tmp_path).parts) for file in files} == {5}
    assert {file.relative_to(tmp_path).parts[2] for file in files} == {"A-Lab-of-ours"}
    main(words)
    assert sorted(tmp_path.rglob("*.json")) == files


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--format", "every-eval-ever"], "needs --organization NAME"),
        (["x.jsonl", "--format", "every-eval-ever", "--organization", "A"], "name a folder"),
        (["--organization", "A"], "belongs to --format every-eval-ever"),
    ],
)
def test_what_cannot_be_exported_is_one_sentence(words, said, capsys):
    assert main(["records", "export", *words]) == 2
    assert said in capsys.readouterr().err
