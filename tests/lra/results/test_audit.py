"""Records that cannot be right are refused; the others say what their numbers follow from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from lra.base.errors import UserError
from lra.metrics.target import Classes
from lra.results import audit
from lra.results import record as records
from lra.results.export import export
from lra.runs.answers import write_answers

from .conftest import answered


def test_an_honest_record_passes_and_says_what_it_follows_from(proof, make, tmp_path: Path):
    trusted = records.read_record(make("linear", 0.3, seed=2))
    found = audit.check_records([proof(), trusted], tmp_path)
    assert found == {audit.RECOMPUTED: 1, audit.TRUSTED: 1}


def test_answers_of_another_run_are_refused(proof):
    record = proof()
    write_answers(record.path.with_name("answers.npz"), {record.run: answered(801)})
    with pytest.raises(UserError, match="not the answers of the record"):
        audit.refuse_contradictions([record])


def test_answers_travel_with_an_export(proof, runs: Path, tmp_path: Path):
    """Those on two test sets in one file."""
    generator = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(2000, 10, generator=generator)
    for seed, labels in enumerate((torch.arange(2000) % 10, torch.randint(10, (2000,)))):
        answers = Classes(10).store(logits, labels)
        hits = int(answers.right.sum())
        proof(hits=hits, seed=seed, source=f"source{seed}", answers_of_run=answers)
    before = records.load_records([runs])
    out, again = tmp_path / "out.jsonl", tmp_path / "again.jsonl"
    export({out: [runs]})
    after = records.load_records([out])
    assert len(after) == 2
    for a, b in zip(before, after, strict=True):
        assert a.run == b.run
        assert a.answers.digests() == b.answers.digests()
        assert a.answers.answers.dtype == b.answers.answers.dtype
    export({again: [out]})
    assert again.read_bytes() == out.read_bytes()
    assert again.with_suffix(".npz").read_bytes() == out.with_suffix(".npz").read_bytes()


@pytest.mark.parametrize("how", ["a changed byte", "of another run", "gone"])
def test_packed_answers_that_are_not_the_records_are_refused(
    proof, runs: Path, tmp_path: Path, how: str
):
    proof()
    out = tmp_path / "out.jsonl"
    export({out: [runs]})
    (record,) = records.load_records([out])
    file = out.with_suffix(".npz")
    if how == "of another run":
        write_answers(file, {record.run: answered(801)})
    elif how == "gone":  # the digest alone proves nothing
        file.unlink()
    else:
        content = bytearray(file.read_bytes())
        content[content.index(b".answers.npy") + 60] ^= 1
        file.write_bytes(content)
    with pytest.raises(UserError, match=r"out\.npz is damaged or invalid"):
        audit.refuse_contradictions([record])


@pytest.mark.parametrize(
    ("key", "value"), [("title", "F1"), ("unit", "points"), ("higher_is_better", False)]
)
def test_a_metric_of_ours_has_its_own_words(proof, key: str, value: Any):
    record = proof()
    record.facts["metric"][key] = value
    with pytest.raises(UserError, match=f"its metric accuracy has {key} {value!r}, not "):
        audit.refuse_contradictions([record])
