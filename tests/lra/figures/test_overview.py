"""Pictures over several tables: what they show is what the records have."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from pathlib import Path

import pytest

from lra.base.errors import UserError
from lra.figures import overview, steps
from lra.report.build import build_all
from lra.report.specs import TableSpec

from ..synthetic import Make, frame
from .conftest import LUNA, Figure

RESULTS = Path("results")


def test_costs_seeds_and_dead_queries(
    make: Make, runs: Path, tmp_path: Path, drawn: list[Figure], capsys
):
    for i, nonneg in enumerate((True, False)):
        options = {"M": 8, "L": 8, "nonneg": nonneg}
        for seed in (1, 2):
            score = 0.5 + i / 4 + seed / 50
            for pairs in (32, 64):
                make(
                    "luna",
                    score,
                    seed=seed,
                    task="recall",
                    pairs=pairs,
                    options=options,
                    stages__best__dead_rows=0.1 * seed,
                )
    for pairs in (32, 64):
        make("linear", 0.9, task="recall", pairs=pairs)
    specs = [
        TableSpec(name="recall", title="R", where={"task": "recall"}, columns="task.pairs"),
        TableSpec(name="recall_luna", title="L", where={"attention": "luna", "task.pairs": 32}),
    ]
    tables = {table.spec.name: table for table in build_all(specs, frame(runs), runs)}
    for draw in (overview.draw_costs, overview.draw_seeds, overview.draw_dead):
        assert draw(RESULTS, frame(runs), tables, tmp_path)
    costs, seeds, dead = (figure.axes for figure in drawn)
    assert {text.get_text() for text in costs[0].texts} == {"luna", "linear"}
    assert [label.get_text() for label in seeds[0].get_yticklabels()] == [
        "luna",
        "luna, signed",
        "linear",
    ]
    relu = dead[0].get_lines()[0]
    assert list(relu.get_xdata()) == pytest.approx([10, 20])
    assert list(relu.get_ydata()) == pytest.approx([52, 54])


def test_loss_and_rate_by_step(
    trained_folder: Callable[..., Path], tmp_path: Path, drawn: list[Figure]
):
    steps.draw(Namespace(runs=[trained_folder(*LUNA)], out=tmp_path))
    names = [axes.get_ylabel() for axes in drawn[0].axes]
    assert names == ["training loss", "score on dev", "rate"]
    with pytest.raises(UserError, match="give folders of finished runs of one setting, not of 0"):
        steps.draw(Namespace(runs=[RESULTS / "records" / "short_luna.jsonl"], out=tmp_path))


def test_depth_needs_the_data_of_its_runs(tmp_path: Path):
    with pytest.raises(UserError, match=r"lra data prepare listops brackets=keep .*max_length=60"):
        overview.draw_depth(Namespace(results=RESULTS, data_dir=tmp_path, out=tmp_path))
