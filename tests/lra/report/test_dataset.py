"""`lra records export --all`: what it writes can be checked without the project's folders."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
import yaml

import lra
from lra.cli import main
from lra.data import hunt, rules
from lra.results.export import export

from ..synthetic import Make

Capture = pytest.CaptureFixture[str]
LINE = {"task": "listops", "fingerprint": "listops-generated", "options": {}}


@pytest.fixture
def results(make: Make, runs: Path, tmp_path: Path) -> Path:
    folder = tmp_path / "project/results"
    for m in (4, 8):
        make("luna", 0.4 + m / 100, options={"M": m})
    make("softmax", 0.3, task="image")
    export({folder / "records/one.jsonl": [runs / "listops"]})
    export({folder / "records/more/two.jsonl": [runs / "image"]})
    metric = lra.records(folder / "records")[0]["metric"]
    one = {"reads": "nothing", "val": 10.0, "test": 10.0}
    rules.keep(LINE | {"metric": metric, "rules": {"constant": one}}, folder / rules.FILE)
    hunt.keep(LINE | {"found": False}, folder / hunt.FILE)
    return folder


def test_a_data_set_is_checked_on_another_machine(
    results: Path, tmp_path: Path, capsys: Capture, monkeypatch
):
    folder = tmp_path / "elsewhere/set"
    assert main(["records", "export", "--all", str(folder), "--results", str(results)]) == 0
    results.rename(tmp_path / "gone")
    monkeypatch.chdir(folder)
    capsys.readouterr()
    assert main(["records", "check", ".", "--data-dir", "none"]) == 0
    assert "3 records: 0 follow" in capsys.readouterr().out
    assert main(["table", "--check", "--results", "."]) == 0
    assert len(lra.records(".")) == 3


def test_a_folder_of_results_is_checked_by_its_records(
    results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    (results / "lines.jsonl").write_text('{"no": "record"}\n', encoding="utf-8")
    assert main(["records", "check", str(results)]) == 0
    assert "damaged" not in capsys.readouterr().err
    words = ["records", "export", "--all", str(tmp_path / "all"), "--results", str(results)]
    assert main([*words, "--runs", "elsewhere"]) == 2
    assert "leave TARGET and --runs out" in capsys.readouterr().err


def test_its_card_and_rows_say_what_is_inside(results: Path, tmp_path: Path):
    (results / "records/again.jsonl").write_bytes((results / "records/more/two.jsonl").read_bytes())
    folder = tmp_path / "set"
    words = ["--all", str(folder), "--results", str(results), "--license", "cc-by-4.0"]
    assert main(["records", "export", *words]) == 0
    card = (folder / "README.md").read_text(encoding="utf-8")
    _, head, text = card.split("---\n", 2)
    facts = yaml.safe_load(head)
    assert facts["license"] == "cc-by-4.0"
    assert not (folder / "LICENSE").exists(), "which is ours"
    assert "4 records of these runs" in text
    assert "3 runs have no answers, 3 no hash of their code" in text
    assert "| listops | 2 | 1 | 1 |\n" in text
    with (folder / facts["configs"][0]["data_files"]).open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [(r["task"], r["attention"], r["file"]) for r in rows] == [
        ("image", "softmax", "again.jsonl"),
        ("listops", "luna", "one.jsonl"),
        ("listops", "luna", "one.jsonl"),
    ]
    protocol = yaml.safe_load((folder / "protocols/luna-v1.yaml").read_text(encoding="utf-8"))
    assert {task: [p["recipe"]["lr"] for p in of] for task, of in protocol.items()} == {
        "image": [0.002],
        "listops": [0.002],
    }


@pytest.mark.parametrize("what", ["a file there", "a link", "a forged record"])
def test_nothing_is_written_where_something_is_wrong(
    results: Path, tmp_path: Path, what: str, capsys: Capture
):
    folder = tmp_path / "set"
    if what == "a file there":
        folder.mkdir()
        (folder / "mine.txt").write_text("mine", encoding="utf-8")
    elif what == "a link":
        (tmp_path / "secret").write_text("{}", encoding="utf-8")
        (results / "tables.yaml").symlink_to(tmp_path / "secret")
        (tmp_path / "secret").write_text("- {name: a, title: a}\n", encoding="utf-8")
    else:
        path = results / "records/one.jsonl"
        path.write_text(path.read_text("utf-8").replace('"seed":1', '"seed":2'), encoding="utf-8")
    before = sorted(folder.rglob("*"))
    assert main(["records", "export", "--all", str(folder), "--results", str(results)]) == 2
    said = {"a file there": "name a new folder", "a link": "is a link"}.get(what, "digest")
    assert said in capsys.readouterr().err
    assert sorted(folder.rglob("*")) == before
