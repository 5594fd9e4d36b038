"""Results that somebody sends: what can be wrong with them is refused, and nothing is written."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from lra.base.errors import UserError
from lra.cli import main
from lra.metrics.target import Classes
from lra.report.specs import taken
from lra.results.export import export
from lra.results.frame import frame_of
from lra.results.record import read_all
from lra.results.submit import refuse_submission
from lra.training.run import train

from ..synthetic import edit
from .conftest import answered

Make = Callable[..., Any]
LABELS = torch.arange(2000) % 10


def drawn(seed: int) -> dict[str, Any]:
    """Answers and their number of right ones."""
    logits = torch.randn(2000, 10, generator=torch.Generator().manual_seed(seed))
    stored = Classes(10).store(logits, LABELS)
    return {"answers_of_run": stored, "hits": int(stored.right.sum())}


@pytest.fixture
def clone(proof: Make, tmp_path: Path, monkeypatch) -> Path:
    """A clone with one committed run, and a folder to be sent."""
    committed = proof(**drawn(0), seed=7, codes=["0a0a0a0a"])
    export({tmp_path / "clone/results/records/ours.jsonl": [committed.path]})
    shutil.rmtree(committed.folder)
    monkeypatch.chdir(tmp_path / "clone")
    return tmp_path / "clone"


@pytest.fixture
def send(clone: Path, tmp_path: Path, capsys) -> Make:
    """send(record, ...): the exit code, and what was said, of sending these."""

    def sending(*records: Any, name: str = "mine", more: tuple[str, ...] = ()) -> tuple[int, str]:
        for i, record in enumerate(records):
            export({tmp_path / f"sent/{name}/{i}.jsonl": [record.path]})
        capsys.readouterr()
        source = str(tmp_path / "sent" / name)
        code = main(["records", "submit", source, "--data-dir", str(tmp_path), *more])
        shown = capsys.readouterr()
        return code, shown.out + shown.err

    return sending


def coded(proof: Make, number: int = 1, **facts: Any) -> Any:
    return proof(**{"codes": ["0a0a0a0a"], "seed": number} | drawn(number) | facts)


def test_what_is_right_lies_in_a_folder_with_a_report(clone: Path, send: Make, proof: Make):
    sent = [coded(proof, 1), coded(proof, 2, codes=["0b0b0b0b"], machine={"device": "[a](b) |x"})]
    code, said = send(*sent)
    assert code == 0
    folder = clone / "results/records/submitted/mine"
    assert "open a pull request" in said
    assert {p.name for p in folder.iterdir() if p.name[0] != "."} == {
        "0.jsonl",
        "0.npz",
        "1.jsonl",
        "1.npz",
        "README.md",
    }
    assert [r.answers.digests() for r in read_all([folder])] == [r.answers.digests() for r in sent]
    report = (folder / "README.md").read_text(encoding="utf-8")
    assert "# 2 runs sent as *mine*" in report
    assert "| follow from their answers; the data were not at hand | 2 |" in report
    assert "| by code of which there are other records | 1 |" in report
    assert all(f"`{record.run}`" in report for record in sent)
    assert r"\[a\](b) \|x" not in report
    assert r"\[a\]\(b\) \|x" in report
    assert main(["records", "check", str(folder), "--data-dir", "none"]) == 0


def without(proof: Make, fact: str) -> list[Any]:
    record = coded(proof)
    edit(record.path, **{fact: None})
    return [record]


WRONG: dict[str, tuple[Callable[[Make], list[Any]], str]] = {
    "a committed run": (
        lambda proof: [coded(proof, 1), proof(**drawn(0), seed=7, codes=["0a0a0a0a"])],
        "it is the run of results/records/ours.jsonl, run ",
    ),
    "a committed run with another outcome": (
        lambda proof: [coded(proof, 7, **drawn(3))],
        "it is the run of results/records/ours.jsonl, run ",
    ),
    "the same run twice": (
        lambda proof: [coded(proof, 1)] * 2,
        "1.jsonl, run .*: it is the run of .*0.jsonl",
    ),
    "other labels than committed runs": (
        lambda proof: [coded(proof, answers_of_run=answered(200, labels=1), hits=200)],
        "its labels are not those of other runs on the same data",
    ),
    "no answers": (lambda proof: without(proof, "answers"), "it has no answers"),
    "no code": (lambda proof: [proof(**drawn(1))], "it does not say of which code"),
    "a second attempt": (
        lambda proof: [coded(proof, 1, attempt=2)],
        "it is attempt 2 of its run: send the first",
    ),
    "an unknown metric": (
        lambda proof: [
            coded(
                proof,
                metric={
                    "name": "mine",
                    "title": "Mine",
                    "unit": "",
                    "digits": 3,
                    "higher_is_better": True,
                },
            )
        ],
        "its metric, mine, is not known here",
    ),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_is_wrong_is_refused_and_nothing_is_written(
    what: str, clone: Path, send: Make, proof: Make
):
    make, why = WRONG[what]
    code, said = send(*make(proof))
    assert code == 2
    assert re.search(why, said), said
    assert not [p for p in (clone / "results/records/submitted").iterdir() if p.name[0] != "."]


def test_a_network_that_answers_alike_may_be_like_another_one(send: Make, proof: Make):
    alike = Classes(10).store(torch.eye(10)[torch.zeros(2000, dtype=int)], LABELS)
    same = {"answers_of_run": alike, "hits": int(alike.right.sum())}
    code, said = send(coded(proof, 1, **same), coded(proof, 2, **same))
    assert code == 0, said
    report = Path("results/records/submitted/mine/README.md").read_text(encoding="utf-8")
    assert "| one answer to everything | 2 |" in report


@pytest.mark.parametrize("other", [{"number": 8}, {"number": 7, "attention": "linear"}])
def test_the_answers_of_a_committed_run_are_noted_and_taken(
    other: dict[str, Any], send: Make, proof: Make
):
    copied = coded(proof, **other, **drawn(0))
    code, said = send(coded(proof, 1), copied)
    assert code == 0
    [note] = [line for line in said.splitlines() if line.startswith("note: ")]
    assert f"sent/mine/1.jsonl, run {copied.run} are, to the last digit, those of results/" in note
    report = Path("results/records/submitted/mine/README.md").read_text(encoding="utf-8")
    assert "| the answers of another run, to the last digit | 1 |" in report


@pytest.mark.parametrize(
    ("more", "why"),
    [
        (("--name", "../x"), "cannot name a folder"),
        (("--name", ".x"), "cannot name a folder"),
        (("--name", "a/b"), "cannot name a folder"),
        (("--name", ""), "cannot name a folder"),
        (("--into", "elsewhere/records/submitted"), "call this in a clone"),
        (("--name", "there"), "is there already: give another --name"),
    ],
)
def test_a_place_that_is_none_is_refused(
    more: tuple[str, ...], why: str, clone: Path, send: Make, proof: Make
):
    (clone / "results/records/submitted/there").mkdir(parents=True)
    code, said = send(coded(proof), more=more)
    assert code == 2
    assert why in said
    assert not read_all([clone / "results/records/submitted"])


def test_the_same_folder_twice_under_two_names_is_refused(send: Make, proof: Make):
    record = coded(proof)
    assert send(record)[0] == 0
    code, said = send(record, more=("--name", "again"))
    assert code == 2
    assert "it is the run of results/records/submitted/mine/0.jsonl" in said


def test_what_a_killed_process_left_is_no_record(clone: Path, send: Make, proof: Make):
    record = coded(proof)
    export({clone / "results/records/submitted/.mine.partial/0.jsonl": [record.path]})
    assert send(record)[0] == 0


def test_labels_are_those_of_the_data_where_these_are_at_hand(
    clone: Path, small: Make, data_dir: Path, capsys
):
    words = ("protocol.recipe.steps=2", "protocol.evaluation.every=2", "compute=report")
    path = train(small(*words))
    words = ["records", "submit", str(path.parent), "--name", "honest", "--data", str(data_dir)]
    assert main(words) == 0
    report = (clone / "results/records/submitted/honest/README.md").read_text(encoding="utf-8")
    assert "| follow from their answers and prepared data | 1 |" in report


def test_tables_show_what_others_sent_only_by_name(clone: Path, send: Make, proof: Make):
    sent = coded(proof, attention="linear")
    assert send(sent)[0] == 0
    place = clone / "results/records"
    runs = frame_of(read_all([place]))
    assert sent.run not in {*taken(runs, place, "")["run"]}
    assert len(taken(runs, place, "")) == 1
    assert {*taken(runs, place, "submitted/mine")["run"]} == {sent.run}
    assert {*taken(runs, place, "submitted")["run"]} == {sent.run}
    specs = [{"name": "all", "title": "a"}, {"name": "sent", "title": "s", "records": "submitted"}]
    (place.parent / "tables.yaml").write_text(json.dumps(specs), encoding="utf-8")
    assert main(["table", "--write"]) == 0
    pages = {p.stem: p.read_text(encoding="utf-8") for p in (place.parent / "tables").glob("*.md")}
    assert {name: sent["identity"] in text for name, text in pages.items()} == {
        "all": False,
        "sent": True,
    }


def refuse_sent(place: Path) -> None:
    for folder in (place / "submitted").glob("[!.]*/"):
        records = read_all([place])
        ours = [r for r in records if r.path.is_relative_to(folder)]
        refuse_submission(ours, [r for r in records if r not in ours])


def test_a_pull_request_by_hand_is_checked_too(clone: Path, proof: Make, send: Make):
    assert send(coded(proof))[0] == 0
    refuse_sent(clone / "results/records")
    again = coded(proof, 7, **drawn(0))
    export({clone / "results/records/submitted/by-hand/0.jsonl": [again.path]})
    with pytest.raises(UserError, match="it is the run of "):
        refuse_sent(clone / "results/records")
