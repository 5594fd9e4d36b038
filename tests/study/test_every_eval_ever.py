"""Every committed record in the format of Every Eval Ever."""

from __future__ import annotations

import importlib.util
import json
import os
import re
from pathlib import Path

import pytest

from lra.results.every_eval_ever import evaluation
from lra.results.record import load_records

RECORDS = Path(__file__).resolve().parents[2] / "results" / "records"


def schema() -> dict:
    """Theirs: of the package, where it is installed, or of the file that a variable names."""
    named = os.environ.get("EVERY_EVAL_EVER_SCHEMA")
    found = None if named else importlib.util.find_spec("every_eval_ever")
    if named is None and found is None:
        pytest.skip("neither every_eval_ever nor EVERY_EVAL_EVER_SCHEMA is there")
    path = Path(named or Path(found.origin).with_name("schemas") / "eval.schema.json")
    return json.loads(path.read_text(encoding="utf-8"))


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
