"""Figures of stage 1 of conversions, from their records."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lra.base.config import UserError
from lra.figures import distillation

RECORD = {
    "task": "sst2", "attention": "luna", "options": {"M": 8}, "teacher": "0",
    "schema": 1, "status": "finished",
    "scores": {"teacher": {"score": 0.9}}, "score": 0.8, "floor": 0.5, "phi_parameters": 2,
    "recipe": {"stage1": "ce", "stage1_lr": 0.01, "stage1_steps": 4, "batch": 2, "epochs": 3,
               "train_examples": None},
}  # fmt: skip


def write_run(folder: Path, seed: int, kl: float, **facts: Any) -> None:
    """`folder` is <model>/<attention>/<key>/seed-<n>."""
    layers = {f"bert.encoder.layer.{i}.attention.self": kl * (i + 1) for i in range(2)}
    curve = [{"step": s, "kl": {k: v / (1 + s) for k, v in layers.items()}} for s in (0, 4)]
    folder.mkdir(parents=True, exist_ok=True)
    record = RECORD | {"seed": seed, "stage1": {"curve": curve}} | facts
    (folder / "result.json").write_text(json.dumps(record), encoding="utf-8")


def test_seeds_share_a_line_and_settings_have_lines_of_their_own(tmp_path: Path):
    runs, recipe = tmp_path / "tiny" / "luna", RECORD["recipe"]
    write_run(runs / "a" / "seed-0", 0, 1.0)
    write_run(runs / "a" / "seed-1", 1, 3.0)
    write_run(runs / "b" / "seed-0", 0, 2.0, options={"M": 16})
    fewer = recipe | {"train_examples": 2500}
    write_run(runs / "c" / "seed-0", 0, 2.0, attention="t2r", options={}, recipe=fewer,
              train_examples=600)  # fmt: skip
    write_run(runs / "d" / "seed-0", 0, 2.0, stage1=None, recipe=recipe | {"stage1": None})
    write_run(runs / "e" / "seed-0", 0, 2.0, attention=None, stage1=None)  # a teacher
    shown = distillation.curves([tmp_path])
    assert sorted(line.label for line in shown) == ["luna M=16", "luna M=8", "t2r"]
    line = next(line for line in shown if line.label == "luna M=8")
    by_step = line.layer(1)
    assert list(by_step) == [0, 4]
    np.testing.assert_allclose(np.sort(list(by_step.values())), [[2, 6], [0.4, 1.2]])
    assert line.final() == pytest.approx(np.mean([0.2, 0.4, 0.6, 1.2]))
    one = distillation.curves([runs / "a" / "seed-0" / "result.json"])
    assert [line.label for line in one] == ["luna"]
    pytest.importorskip("matplotlib")
    svg = distillation.draw_distillation(shown, tmp_path / "figure")[1].read_text(encoding="utf-8")
    assert "sst2, tiny; stage 1: 4 steps of 2; stage 2: 3 epochs; all / 600 examples" in svg


def test_folders_without_a_stage_1_are_refused(tmp_path: Path):
    with pytest.raises(UserError, match="holds no finished conversion whose stage 1 measured"):
        distillation.curves([tmp_path])
    (tmp_path / "result.json").write_text("{", encoding="utf-8")
    with pytest.raises(UserError, match="is damaged"):
        distillation.curves([tmp_path])
