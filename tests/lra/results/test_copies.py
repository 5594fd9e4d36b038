"""Records in several places, or written by several processes: all copies are looked at, none is
lost."""

from __future__ import annotations

import contextlib
import dataclasses
import multiprocessing
from pathlib import Path
from typing import Any

import pytest
import torch

from lra.cli import main
from lra.metrics.target import Classes
from lra.results import audit
from lra.results import record as records
from lra.results.export import export
from lra.runs.answers import write_answers

from ..synthetic import add_answers, edit
from .conftest import answered


def drawn() -> dict[str, Any]:
    """Answers as a network gives them, with many different log-probabilities."""
    logits = torch.randn(2000, 10, generator=torch.Generator().manual_seed(0))
    answers = Classes(10).store(logits, torch.arange(2000) % 10)
    return {"answers_of_run": answers, "hits": int(answers.right.sum())}


@pytest.fixture
def twice(proof, tmp_path: Path) -> Path:
    """Records of two files: a run, and a better copy of it that finished a day later."""
    folder, record = tmp_path / "results/records", proof()
    export({folder / "real.jsonl": [record.path]})
    better = answered(1800)
    stage = record.stage | {"score": 90.0, "right": 1800, "loss": Classes(10).loss_of(better)}
    edit(
        record.path,
        score=90.0,
        stages__best=stage | {"predicted": None},
        dev={"score": 90.0, "right": 1800, "scored": 2000, "step": 100},
        curve=[[50, 20.0], [100, 90.0]],
        times={"finished": "2026-01-02T00:00:00+0000"},
    )
    add_answers(record.path, better)
    export({folder / "fake.jsonl": [record.path]})
    tables = "- {name: fake, title: a, records: fake}\n- {name: all, title: a}\n"
    (folder.parent / "tables.yaml").write_text(tables, encoding="utf-8")
    return folder


def test_a_run_has_one_outcome_whichever_file_a_table_names(twice: Path, capsys):
    results = str(twice.parent)
    assert main(["table", "--write", "--results", results]) == 0
    assert "fake.jsonl, run" in (said := capsys.readouterr().err)
    assert "has another outcome than" in said
    tables = {path.name for path in (twice.parent / "tables").glob("*.csv")}
    assert tables == {"all.csv"}  # of the other one no record is left
    assert main(["records", "check", str(twice), "--data-dir", str(twice)]) == 0
    assert "has another outcome than" in capsys.readouterr().out


def test_a_copy_that_cannot_be_right_is_seen_beside_the_run(twice: Path, capsys):
    path = twice / "fake.jsonl"
    [record] = records.read_sweep(path)
    forged = record.facts | {"stages": record["stages"] | {"best": record.stage | {"loss": 0.1}}}
    path.write_text("\n".join(records.lines_of([forged])), encoding="utf-8")
    for command in (["records", "check", str(twice)], ["table", "--results", str(twice.parent)]):
        words = [*command, "--write"] if command[0] == "table" else command
        assert main(words) == 2
        assert "test loss is 0.1" in capsys.readouterr().err
    assert main(["table", "--runs", str(twice)]) == 0
    shown = capsys.readouterr()
    assert "left out" in shown.err
    assert "40.0" in shown.out


@pytest.mark.parametrize("how", ["labels", "removed", "another"])
def test_a_table_on_the_terminal_leaves_forged_answers_out(proof, runs: Path, how: str, capsys):
    other, record = proof(seed=2), proof()
    file = record.path.with_name("answers.npz")
    if how == "removed":
        file.unlink()
    else:
        write_answers(file, {record.run: answered(2000 if how == "labels" else 900)})
    assert main(["table", "--runs", str(runs), "--format", "csv"]) == 0
    shown = capsys.readouterr()
    assert f"left out: {record.path} cannot be right" in shown.err
    assert record.run not in shown.out
    assert other.run in shown.out


OTHER = {
    "seed": {"seed": 2},
    "method": {"attention": "linear"},
    "option": {"options": {"M": 64}},
}


@pytest.mark.parametrize("of", OTHER)
def test_equal_answers_are_noted_and_refused_nowhere(proof, tmp_path: Path, of: str, capsys):
    """Two methods may be one function, as Longformer is softmax on short inputs."""
    same, records_of = drawn(), tmp_path / "records"
    one, two = proof(**same), proof(**same, **OTHER[of])
    for name, run in (("a", one), ("b", two)):
        export({records_of / f"{name}.jsonl": [run.path]})
    (tmp_path / "tables.yaml").write_text("- {name: all, title: a}\n", encoding="utf-8")
    assert main(["table", "--write", "--results", str(tmp_path)]) == 0
    assert main(["table", "--runs", str(records_of)]) == 0
    assert "left out" not in capsys.readouterr().err
    table = (tmp_path / "tables/all.csv").read_text(encoding="utf-8")
    assert one.run in table
    assert two.run in table
    assert main(["records", "check", str(records_of), "--data-dir", "none"]) == 0
    [note] = [line for line in capsys.readouterr().out.splitlines() if "note: " in line]
    assert f"the answers of {records_of}/b.jsonl, run {two.run} are" in note
    assert f"those of {records_of}/a.jsonl, run {one.run}: one is a copy" in note


def test_a_changed_answer_among_equal_ones_is_refused(proof, tmp_path: Path, capsys):
    same, file = drawn(), tmp_path / "all.jsonl"
    export({file: [proof(**same).path, proof(**same, seed=2).path]})
    first, second = records.read_sweep(file)
    log_p = second.answers.log_p.copy()
    log_p[0] -= 1
    changed = dataclasses.replace(second.answers, log_p=log_p)
    write_answers(file.with_suffix(".npz"), {first.run: first.answers, second.run: changed})
    assert main(["records", "check", str(file), "--data-dir", "none"]) == 2
    assert "not the answers of the record" in capsys.readouterr().err


def test_what_may_be_equal_is_not_noted(proof):
    """Another evaluation of one function, and networks that are sure of everything."""
    two_ways = [proof(**drawn(), options={"evaluate": how}) for how in ("exact", "pieces")]
    assert not [*audit.equal_answers(two_ways)]
    assert not [*audit.equal_answers([proof(), proof(seed=2)])]


def test_a_file_of_no_records_makes_no_table(tmp_path: Path, capsys):
    (tmp_path / "records").mkdir()
    (tmp_path / "records/empty.jsonl").touch()
    assert main(["table", "--write", "--results", str(tmp_path)]) == 2
    assert "holds no record" in capsys.readouterr().err


# ---------------------------------------------------------------------- two at once, or cut short


def export_one(path: Path, target: Path, start: Any) -> None:
    start.wait()
    export({target: [path]})


def test_exports_into_one_file_at_once_lose_nothing(proof, tmp_path: Path):
    target, context = tmp_path / "all.jsonl", multiprocessing.get_context("fork")
    paths, start = [proof(seed=seed).path for seed in range(6)], context.Barrier(6)
    jobs = [context.Process(target=export_one, args=(path, target, start)) for path in paths]
    for job in jobs:
        job.start()
    for job in jobs:
        job.join()
    assert [job.exitcode for job in jobs] == [0] * 6
    assert [r["seed"] for r in records.read_sweep(target)] == [*range(6)]
    assert all(r.answers is not None for r in records.read_sweep(target))


@pytest.mark.parametrize("writes", range(4))
def test_a_replacement_is_whole_or_not_there(proof, tmp_path: Path, monkeypatch, writes: int):
    """However many files are written before the process dies."""
    target, record = tmp_path / "all.jsonl", proof()
    export({target: [record.path]})
    better = answered(1000)
    stage = record.stage | {"score": 50.0, "right": 1000, "loss": Classes(10).loss_of(better)}
    on_dev = {"score": 50.0, "right": 1000, "scored": 2000, "step": 100}
    curve = [[50, 20.0], [100, 50.0]]
    changed = stage | {"predicted": None}
    edit(record.path, score=50.0, stages__best=changed, dev=on_dev, curve=curve)
    add_answers(record.path, better)
    left = writes

    def dying(path: Path, content: bytes) -> None:
        nonlocal left
        if not left:
            raise KeyboardInterrupt
        left -= 1
        path.write_bytes(content)

    for module in ("lra.results.export", "lra.runs.answers"):
        monkeypatch.setattr(f"{module}.write_atomically", dying)
    with contextlib.suppress(KeyboardInterrupt):
        export({target: [record.path]}, replace=True)
    [there] = records.read_sweep(target)
    audit.refuse_contradictions([there])
    assert there.score == (50.0 if writes >= 2 else 40.0)
