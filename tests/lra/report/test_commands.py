"""`lra table --write` and `--check`: what they write, what they compare."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from lra.cli import main
from lra.data import hunt
from lra.results.export import export
from lra.results.record import lines_of, read_sweep

from ..synthetic import Make

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def results(make: Make, runs: Path, tmp_path: Path) -> Path:
    for m in (4, 8):
        make("luna", 0.4 + m / 100, options={"M": m})
    make("linear", 0.4)
    export({tmp_path / "results" / "records" / "mine.jsonl": [runs]})
    return tmp_path / "results"


def test_check_compares_every_file_that_was_written(results: Path, capsys: Capture):
    command = ["table", "--results", str(results)]
    template = results / "pages/two.md.jinja"
    template.parent.mkdir()
    template.write_text("{{ records() }} runs.\n", encoding="utf-8")
    assert main([*command, "--write"]) == 0
    names = {p.name for p in (results / "tables").iterdir()}
    assert names == {f"leaderboard{ending}" for ending in (".md", ".csv", ".tex", "-paper.tex")}
    assert main([*command, "--check"]) == 0
    assert "5 files are what the records give" in capsys.readouterr().out
    page, table = results / "two.md", results / "tables" / "leaderboard.md"
    table.write_text(table.read_text(encoding="utf-8").replace("48", "84"), encoding="utf-8")
    page.unlink()
    (results / "tables" / "old.md").write_text("x", encoding="utf-8")
    capsys.readouterr()
    with pytest.raises(SystemExit) as stopped:
        main([*command, "--check"])
    assert stopped.value.code == 1
    listed = {*map(Path, capsys.readouterr().out.splitlines()[:-1])}
    assert listed == {table, page, results / "tables" / "old.md"}
    assert main([*command, "--write"]) == 0
    *written, removed, said = capsys.readouterr().out.splitlines()[:4]
    assert {*map(Path, written)} == {table, page}  # the others are as they were
    assert "old.md removed" in removed
    assert said.startswith("2 of 5 files written")
    assert main([*command, "--check"]) == 0


def test_all_tables_are_one_page_where_it_is_asked_for(results: Path, capsys: Capture):
    place = results.parent / "pages/all.html"
    assert main(["table", "--results", str(results), "--page", str(place)]) == 0
    assert capsys.readouterr().out == f"{place}\n"
    assert "Leaderboard" in place.read_text(encoding="utf-8")
    assert not (results / "tables").exists()


def test_no_records_is_a_sentence(tmp_path: Path, capsys: Capture):
    assert main(["table", "--write", "--results", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert "lra records export" in said
    assert "--results" in said


def test_reports_import_no_model_code_and_start_without_scipy():
    code = (
        "import sys, lra.report.commands, lra.report.page, lra.figures.tables;"
        "heavy = ('torch', 'luna.base', 'lra.model', 'lra.training.module', 'scipy', 'matplotlib');"
        "print([module for module in heavy if module in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_records_in_no_table_are_listed(results: Path, capsys: Capture):
    spec = "- {name: mine, title: Mine, where: {attention: luna}}\n"
    (results / "tables.yaml").write_text(spec, encoding="utf-8")
    main(["table", "--write", "--results", str(results)])
    out = capsys.readouterr().out
    assert "1 of the records are in no table:" in out
    assert "mine.jsonl" in out
    assert {p.stem for p in (results / "tables").glob("*.md")} == {"mine"}, "its own tables"


def test_a_forged_record_stops_the_tables(results: Path, capsys: Capture):
    path = results / "records" / "mine.jsonl"
    first, *others = (record.facts for record in read_sweep(path))
    forged = [
        first | {"dev": first["dev"] | {"score": 50.0, "right": 1000}},
        *others,
    ]  # with fitting digests
    path.write_text("\n".join(lines_of(forged)), encoding="utf-8")
    assert main(["table", "--check", "--results", str(results)]) == 2
    assert "best dev score is 50" in capsys.readouterr().err


def test_an_edited_hunt_stops_the_tables(results: Path, capsys: Capture):
    path = results / hunt.FILE
    hunt.keep({"task": "mine", "fingerprint": "f", "found": True}, path)
    assert main(["table", "--write", "--results", str(results)]) == 0
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace('"found": true', '"found": false', 1), encoding="utf-8")
    assert main(["table", "--check", "--results", str(results)]) == 2
    assert "hunts.jsonl, line 1, is damaged or invalid" in capsys.readouterr().err
