"""`lra table`: what it writes, what it compares, what it shows."""

from __future__ import annotations

from pathlib import Path

import pytest

from lra import records
from lra.cli import main
from lra.config import CONFIGS
from lra.report.specs import specs

from ..synthetic import Make


@pytest.fixture
def results(make: Make, runs: Path, tmp_path: Path) -> Path:
    for m in (4, 8):
        make("luna", 0.4 + m / 100, options={"M": m})
    make("linear", 0.4)
    records.export([runs], tmp_path / "results" / "records")
    return tmp_path / "results"


ENDINGS = ("md", "csv", "tex")


def test_check_passes_on_what_was_written(results: Path, capsys: pytest.CaptureFixture[str]):
    command = ["table", "--results", str(results)]
    assert main([*command, "--write"]) == 0
    names = {p.name for p in (results / "tables").iterdir()}
    assert names == {f"{t}.{s}" for t in ("leaderboard", "ablation_m") for s in ENDINGS} | {
        "leaderboard.published.tex"  # the published ablation is of another task
    }
    assert (results / "index.html").exists()
    assert main([*command, "--check"]) == 0
    assert "8 files are what the records give" in capsys.readouterr().out


@pytest.mark.parametrize("file", ["tables/leaderboard.md", "tables/ablation_m.csv", "index.html"])
def test_check_fails_on_a_changed_or_missing_file(results: Path, file: str):
    command = ["table", "--results", str(results)]
    main([*command, "--write"])
    place = results / file
    place.write_text(place.read_text(encoding="utf-8").replace("48", "84"), encoding="utf-8")
    with pytest.raises(SystemExit) as stopped:
        main([*command, "--check"])
    assert stopped.value.code == 1
    place.unlink()
    with pytest.raises(SystemExit):
        main([*command, "--check"])


def test_check_fails_when_records_changed_and_on_stale_tables(
    results: Path, make: Make, runs: Path, capsys: pytest.CaptureFixture[str]
):
    command = ["table", "--results", str(results)]
    main([*command, "--write"])
    make("softmax", 0.3)
    records.export([runs], results / "records")
    with pytest.raises(SystemExit):
        main([*command, "--check"])
    assert "leaderboard.md differs from its records" in capsys.readouterr().out
    main([*command, "--write"])
    (results / "tables" / "old.md").write_text("x", encoding="utf-8")
    with pytest.raises(SystemExit):
        main([*command, "--check"])
    assert "old.md has no records any more" in capsys.readouterr().out


def test_no_records_is_a_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["table", "--write", "--results", str(tmp_path)]) == 2
    assert "lra records export" in capsys.readouterr().err


def test_reports_import_no_model_code():
    import subprocess
    import sys

    code = (
        "import sys, lra.report.commands, lra.report.page, lra.figures.records;"
        "print([m for m in ('torch', 'luna', 'lra.model', 'lra.module') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_committed_tables_are_what_the_records_give(capsys):
    results = CONFIGS.parent / "results"
    assert main(["table", "--check", "--results", str(results)]) == 0, capsys.readouterr().out


def test_a_results_folder_names_its_own_tables(results: Path):
    (results / "tables.yaml").write_text(
        "- {name: mine, title: Mine, where: {attention: luna}}\n", encoding="utf-8"
    )
    assert [s.name for s in specs(results)] == ["mine"]
    main(["table", "--write", "--results", str(results)])
    assert {p.stem for p in (results / "tables").iterdir()} == {"mine"}
