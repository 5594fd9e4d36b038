"""A user's attention and metric, in files of their own: an edit of them, or of a file beside them
that they import, makes the same command run anew; other edits do not."""

from __future__ import annotations

from pathlib import Path

import pytest

from ..conftest import command

SCRIPT = """
import numpy as np

import lra
from lra import data
from own_metric import Close
import own_attention

rng = np.random.default_rng(0)
rows = rng.integers(1, 4, (60, 8))
few = {"batch": 8, "steps": 2, "every": 2, "warmup": 1}
data.from_arrays("twos", (rows, (rows == 2).mean(1)), metrics=(Close, "rmse"), settings=few)
words = ["task=twos", "attention=scaled", "compute=report", "trainer=cpu", "trainer.threads=1"]
lra.train(lra.compose(words))
"""
ATTENTION = """
import torch.nn.functional as F

from luna import register
from luna.linear import KernelAttention


@register("scaled")
class Scaled(KernelAttention):
    declared = KernelAttention.declared

    def __init__(self, slot):
        super().__init__(slot)
        self.feature_dim = slot.head_dim

    def phi(self, x, mask, start=0):
        from scales import scale  # imported when it is called

        return F.softplus(x * scale())
"""
METRIC = """
from lra.metrics import Metric, register
from tolerances import tolerance


@register
class Close(Metric):
    name, title, unit, digits = "close", "near answers", "%", 1
    targets = ("numbers",)

    def score(self, answers, target):
        return 100 * float((abs(answers.answers - answers.labels) < tolerance()).mean())
"""
FILES = {
    "script.py": SCRIPT,
    "own_attention.py": ATTENTION,
    "own_metric.py": METRIC,
    "scales.py": "def scale():\n    return 2.0\n",
    "tolerances.py": "def tolerance():\n    return 0.1\n",
    "apart.py": "unused = 1\n",
}


@pytest.mark.rest
def test_an_edited_file_of_ones_own_runs_anew(tmp_path: Path):
    for name, text in FILES.items():
        (tmp_path / name).write_text(text, encoding="utf-8")

    def finished_before() -> bool:
        done = command("script.py", cwd=tmp_path)
        assert done.returncode == 0, done.stdout + done.stderr
        assert ("already finished" in done.stdout) != ("done: test" in done.stdout), done.stdout
        return "already finished" in done.stdout

    def edit(name: str, old: str, new: str) -> None:
        file = tmp_path / name
        text = file.read_text(encoding="utf-8")
        assert old in text
        file.write_text(text.replace(old, new), encoding="utf-8")

    assert not finished_before()
    assert finished_before()
    edit("scales.py", "2.0", "3.0")  # beside the attention
    assert not finished_before()
    edit("tolerances.py", "0.1", "0.2")  # beside the metric
    assert not finished_before()
    edit("own_attention.py", "x * scale()", "x / scale()")
    assert not finished_before()
    edit("own_metric.py", "100 *", "50 *")
    assert not finished_before()
    edit("scales.py", "def scale", "# in words\ndef scale")
    edit("apart.py", "1", "2")
    assert finished_before()
    edit("scales.py", "3.0", "2.0")
    edit("tolerances.py", "0.2", "0.1")
    edit("own_attention.py", "x / scale()", "x * scale()")
    edit("own_metric.py", "50 *", "100 *")
    assert finished_before(), "the first run is still there"
