"""Records in the format of Every Eval Ever."""

from __future__ import annotations

from pathlib import Path

import pytest

from lra.cli import main
from lra.results.every_eval_ever import evaluation
from lra.results.record import read_record

from ..synthetic import Make

Capture = pytest.CaptureFixture[str]


def test_a_score_keeps_its_unit_its_direction_and_its_noise(make: Make):
    record = read_record(make("luna", 0.4, stages__best__noise=1.1))
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


def test_the_command_writes_a_file_a_run_and_the_same_one_again(
    make: Make, convert: Make, runs: Path, tmp_path: Path, capsys: Capture
):
    make("luna", 0.4)
    convert("luna", 0.8)
    out = tmp_path / "out"
    words = ["records", "export", str(out), "--runs", str(runs)]
    words += ["--format", "every-eval-ever", "--organization", "A Lab/of ours"]
    assert main(words) in (0, None)
    files = sorted(out.rglob("*.json"))
    printed = capsys.readouterr().out
    assert printed.startswith(f"{len(files)} evaluations in {out}")
    assert {len(file.relative_to(out).parts) for file in files} == {5}
    assert {file.relative_to(out).parts[2] for file in files} == {"A-Lab-of-ours"}
    main(words)
    assert sorted(out.rglob("*.json")) == files


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
