"""Loss, score and rate of runs by step."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from pathlib import Path

import pytest

from lra.base.errors import UserError
from lra.figures import steps
from lra.results.export import export

from ..synthetic import write_run
from .conftest import LUNA, Figure


def test_loss_and_rate_by_step(
    trained_folder: Callable[..., Path], tmp_path: Path, drawn: list[Figure]
):
    steps.draw(Namespace(runs=[trained_folder(*LUNA)], out=tmp_path))
    names = [axes.get_ylabel() for axes in drawn[0].axes]
    assert names == ["training loss", "score on dev", "rate"]
    sweep = tmp_path / "records.jsonl"
    export({sweep: [write_run(tmp_path / "runs", "luna", 0.4)]})
    with pytest.raises(UserError, match="give folders of finished runs of one setting, not of 0"):
        steps.draw(Namespace(runs=[sweep], out=tmp_path))
