"""Records that excluded.yaml names are in no table and no frame, and a line says why."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import lra
from lra.base.errors import UserError
from lra.cli import main
from lra.results.export import export
from lra.results.record import read_all, read_sweep

from ..synthetic import edit

REASON = "its network had projections that it never used"


@pytest.fixture
def results(proof, tmp_path: Path) -> Path:
    """Three seeds of one method and a run of another one."""
    folder = tmp_path / "results"
    paths = [proof(seed=seed).path for seed in (1, 2, 3)]
    export({folder / "records/mine.jsonl": [*paths, proof(attention="linear").path]})
    return folder


def exclude(results: Path, *entries: dict[str, Any]) -> None:
    text = json.dumps([{"reason": REASON} | entry for entry in entries])
    (results / "excluded.yaml").write_text(text, encoding="utf-8")


def test_what_reads_records_leaves_it_out_and_says_so(results: Path, capsys, monkeypatch):
    records = results / "records"
    *kept, out = read_all([records])
    exclude(results, {"run": out.run})
    said = f"1 record left out, results/excluded.yaml: {REASON}\n"
    monkeypatch.chdir(results.parent)
    for words in (
        ["table", "--write", "--results", "results"],
        ["table", "--check", "--results", "results"],
        ["table", "--runs", "results/records", "--format", "csv"],
        ["records", "check", "results/records", "--data-dir", "none"],
        ["records", "check", "results/records/mine.jsonl", "--data-dir", "none"],
        ["compare", "linear", "luna", "--runs", "results/records"],
    ):
        assert main(words) == 0
        shown = capsys.readouterr()
        assert shown.err.count(said) == 1, words
        assert out.run not in shown.out
    assert out.run not in (results / "tables/leaderboard.md").read_text(encoding="utf-8")
    assert {*lra.records("results/records").to_pandas()["run"]} == {r.run for r in kept}
    assert capsys.readouterr().err == said


def test_an_identity_is_all_seeds_of_a_run(results: Path, capsys):
    identity = next(r["identity"] for r in read_all([results / "records"]) if r["seed"] == 3)
    exclude(results, {"identity": identity})
    assert [r["seed"] for r in read_all([results / "records"])] == [1]  # of the other method
    assert f"3 records left out, {results}/excluded.yaml: {REASON}" in capsys.readouterr().err
    read_all([results / "records"], quiet=True)
    assert not capsys.readouterr().err


def test_a_list_holds_for_the_records_beside_it_alone(results: Path, tmp_path: Path):
    exclude(results, {"run": read_all([results / "records"])[0].run})
    (tmp_path / "other").mkdir()
    for file in (results / "records").iterdir():
        (tmp_path / "other" / file.name).write_bytes(file.read_bytes())
    assert len(read_all([tmp_path / "other"])) == 4


def test_a_list_changes_when_it_is_written_again(results: Path):
    one, two, *_ = read_all([results / "records"])
    for runs in ([one.run], [one.run, two.run]):
        exclude(results, *({"run": run} for run in runs))
        assert len(read_all([results / "records"])) == 4 - len(runs)


def test_an_export_keeps_it_in_its_file_even_if_it_cannot_be_right(results: Path, proof):
    """Else the list would be a way to lose records, and one that is wrong would stop all others."""
    file = results / "records/mine.jsonl"
    out = read_sweep(file)[0]
    exclude(results, {"run": out.run})
    added = proof(attention="luna", seed=9).path
    edit(added, times={"begun": None, "finished": "2026-01-01T00:00:00+0000"})
    export({file: [added]})
    assert [r.run for r in read_sweep(file)].count(out.run) == 1
    assert len(read_sweep(file)) == 5


@pytest.mark.parametrize(
    ("entries", "why"),
    [
        ([{"reason": REASON}], "one of the two"),
        ([{"run": "a-seed-1", "identity": "a", "reason": REASON}], "one of the two"),
        ([{"run": "a-seed-1"}], "reason"),
        ([{"run": "a-seed-1", "reason": "bad"}], "at least 10"),
        ([{"run": "a-seed-1", "reason": f"{REASON}\n* a line"}], "pattern"),
        ([{"run": "a-seed-1", "reason": f"{REASON}\x1b[2J"}], "could steer a terminal"),
        ([{"run": "../a", "reason": REASON}], "run"),
        ([{"run": 3, "reason": REASON}], "run"),
        ([{"run": "a-seed-1", "reason": REASON, "more": 1}], "more"),
        ([{"run": "a-seed-1", "reason": REASON}] * 2, "named twice"),
        ({"run": "a-seed-1", "reason": REASON}, "list"),
        (["a-seed-1"], "valid dictionary or instance of Excluded"),
    ],
)
def test_a_list_that_says_something_else_is_refused(results: Path, entries: Any, why: str):
    text = json.dumps(entries)
    (results / "excluded.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match=rf"excluded\.yaml is damaged or invalid .*{why}"):
        read_all([results / "records"])
