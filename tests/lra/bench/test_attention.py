"""`lra bench attention`, from the command line to its files."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from lra.bench.attention import tables
from lra.bench.rows import BenchResult
from lra.cli import main

from .results import result_of


@pytest.mark.usefixtures("in_this_process")
def test_the_command_measures_and_writes(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    words = "--methods uniform softmax@published uniform@strict --lengths 16 64 32 --heads 1"
    words += " --head-dim 8 --rounds 2 --out"
    assert main(["bench", "attention", *words.split(), str(tmp_path)]) == 0
    written = {path.suffix: path for path in tmp_path.iterdir()}
    assert set(written) >= {".json", ".csv", ".md"}
    version = torch.__version__.partition("+")[0]
    assert all(path.stem.startswith("attention-") for path in written.values())
    assert written[".md"].stem.endswith(f"-1thread-torch{version}")

    found = BenchResult.load(written[".json"])
    settings = found.facts["settings"]
    assert (settings["head_dim"], settings["rounds"], settings["batch"]) == (8, 2, 1)
    assert found.cases["attention", "softmax (published)"]["profile"] == "published"
    times = found.select("attention", "train_seconds")
    assert [(case, list(rows)) for case, rows in times.items()] == [
        (case, [16, 32, 64]) for case in ("uniform", "softmax (published)")
    ]
    assert all(len(row.values) == 2 for rows in times.values() for row in rows.values())
    flops = found.select("attention", "flops")["softmax (published)"]
    assert {n: row.values for n, row in flops.items()} == {n: [4 * n * n * 8] for n in (16, 32, 64)}

    page, out = written[".md"].read_text(encoding="utf-8"), capsys.readouterr().out
    assert page in out
    assert found.facts["machine"]["device"] in page
    assert page.count("\n| `softmax (published)` |") == 4  # one line in each table
    assert f"written to {written['.json']}" in out


def test_the_slope_is_that_of_its_own_measure():
    found = result_of({
        ("attention", "a", n, measure): [float(n**power)]
        for n in (64, 128, 256) for measure, power in (("train_seconds", 2), ("flops", 1))
    })  # fmt: skip
    (time, *_, flops) = tables(found)
    assert (time.lines[0][-1], flops.lines[0][-1]) == ("2.00", "1.00")
