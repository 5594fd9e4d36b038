"""Pages, tables and files."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from lra.bench.rows import BenchResult, median
from lra.bench.sheet import SheetTable, by_length, page, rounds_of, with_range, write

from .results import result_of


@pytest.fixture
def found() -> BenchResult:
    return result_of({
        ("g", "base", 128, "seconds"): [0.01, 0.03], ("g", "base", 256, "seconds"): [0.04, 0.04],
        ("g", "base", 512, "seconds"): "> 9 s",
        ("g", "own", 128, "seconds"): [0.02, 0.02], ("g", "own", 256, "seconds"): [0.03, 0.03],
        ("g", "own", 512, "seconds"): [0.06, 0.06],
        ("g", "own", 128, "peak_bytes"): [3 << 20], ("g", "own", 512, "peak_bytes"): [500 << 20],
    }, settings={"rounds": 2, "seconds": 9.0, "mib": 64.0})  # fmt: skip


def test_a_table_by_length_has_units_ratios_and_reasons(found: BenchResult):
    last = ("cases", lambda rows, case: f"{len(rows)} {case}")
    assert by_length(found, "g", "seconds", base="base", last=last) == SheetTable(
        "G: time, ms",
        ["g", "128", "256", "512", "cases"],
        [["`base`", "10", "40", "> 9 s", "2 base"],
         ["`own`", "20 (2.00×)", "30 (0.75×)", "60", "2 own"]],
    )  # fmt: skip
    medians = by_length(found, "g", "seconds", summary=median)
    assert medians.lines[0] == ["`base`", "20", "40", "> 9 s"]
    title, head, lines = by_length(found, "g", "peak_bytes")
    assert (title, head) == ("G: peak memory, MiB", ["g", "128", "512"])
    assert lines == [["`own`", "3", "500"]]


def test_cases_that_got_further_come_first_then_cheaper_ones():
    costs = {"dear": [9.0], "cheap": [1.0], "stopped": "killed"}
    found = result_of({("g", case, n, "seconds"): values if n == 2 else [5.0]
                    for case, values in costs.items() for n in (1, 2)})  # fmt: skip
    lines = by_length(found, "g", "seconds", cheapest_first=True).lines
    assert [line[0] for line in lines] == ["`cheap`", "`dear`", "`stopped`"]


def test_rounds_are_shown_as_median_and_range(found: BenchResult):
    assert with_range([3.0, 1.0, 2.0], ".1f") == "2.0 (1.0 .. 3.0)"
    assert (with_range([3.0], ".1f"), with_range([], ".1f")) == ("3.0", "–")
    rows = found.select("g", "seconds")["base"]
    assert rounds_of(rows[128], ".0f", 1e3) == "20 (10 .. 30)"
    assert rounds_of(rows[512], ".0f") == "> 9 s"


def test_a_page_says_where_numbers_come_from_and_its_columns_end_alike(found: BenchResult):
    table = SheetTable("Costs", ["case", "n"], [["a", "1,000"], ["longer", "2"]])
    lines = page(found, [table]).splitlines()
    assert lines[0] == "# A title"
    assert "- machine: a CPU, 1 torch thread(s), Linux" in lines
    assert "- versions: torch 2.0, python 3.11, luna-lra 0.1 (no checkout), 2026-01-01" in lines
    # Three times were measured twice at different costs: 3, 1, 1, 1, 1.
    noise = "- noise: slowest / fastest of 2 rounds: 1.00 in the median of all times, at most 3.00"
    assert noise in lines
    assert any(line.startswith("- `> 9 s` or `> 64 MiB` in a cell") for line in lines)
    assert "- A note." in lines
    assert lines[-4:] == [
        "| case   |     n |", "| ------ | ----: |", "| a      | 1,000 |", "| longer |     2 |",
    ]  # fmt: skip


def test_files_hold_the_same_rows(found: BenchResult, tmp_path: Path):
    paths = write(found, "the page\n", tmp_path / "new" / "name-torch2.0")
    assert [path.name for path in paths] == [
        f"name-torch2.0.{end}" for end in ("json", "csv", "md")
    ]
    assert BenchResult.load(paths[0]) == found
    with paths[1].open(newline="") as file:
        lines = list(csv.DictReader(file))
    assert len(lines) == len(found.rows)
    assert lines[0] == {
        "group": "g", "case": "base", "n": "128", "measure": "seconds", "fastest": "0.01",
        "median": "0.02", "slowest": "0.03", "stopped": "",
    }  # fmt: skip
    assert (lines[2]["median"], lines[2]["stopped"]) == ("", "> 9 s")
    assert paths[2].read_text(encoding="utf-8") == "the page\n"
