"""A task, a metric and an attention in files of the folder that --config-dir names."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import luna
from lra import data, metrics
from lra.base import groups
from lra.base.errors import UserError
from lra.cli import main
from lra.data.registry import TASKS
from lra.metrics.metric import METRICS
from lra.results.record import load_records
from luna.method import _classes

from ..conftest import REPOSITORY

PAGE = (REPOSITORY / "docs/tasks.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE, re.M | re.S)
[TASK] = [block.partition("words = [")[0] for block in BLOCKS if "class Majority" in block]
METRIC = """
from lra.metrics import Metric, register


@register
class Half(Metric):
    name, title, unit, digits = "half", "half", "%", 1
    targets = ("classes",)

    def score(self, answers, target):
        return 50 * float((answers.answers == answers.labels).mean())
"""
ATTENTION = """
from luna.base import Attention, Paper, register


@register("first")
class First(Attention):
    paper = Paper("First", 2026, "mine")
    complexity = "O(n e)"

    def attend(self, q, k, v, mask, x):
        return v[:, :, :1].expand_as(v)
"""
MODULES = "majority", "half", "first", "broken", "silent"


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr(TASKS, "added", {})
    monkeypatch.setattr(METRICS, "added", {})
    files = {
        "tasks/majority.py": TASK.replace(
            "    Options =", '    metrics = ("half", "accuracy")\n    Options ='
        ),
        "metrics/half.py": METRIC,
        "attentions/first.py": ATTENTION,
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    yield tmp_path
    forget()


def forget() -> None:
    """As a new process does not know of them."""
    for name in MODULES:
        sys.modules.pop(name, None)
    _classes.pop("first", None)


def test_each_is_found_by_the_name_of_its_file_and_forgotten_outside(mine: Path):
    before = list(sys.path)
    with groups.searching(mine):
        assert "majority" in data.names()
        assert data.get("majority").metrics == ("half", "accuracy")
        assert metrics.get("half").title == "half"
        assert "first" in luna.names()
        assert luna.get("first").paper.title == "First"
    assert data.names()  # asks again
    assert sys.path == before
    assert "majority" not in groups.installed("lra.tasks")


def test_it_trains_sweeps_and_is_trained_anew_once_edited(
    mine: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    words = [
        "task=majority",
        "attention=first,linear",
        "trainer=cpu",
        "trainer.threads=1",
        "compute=report",
        "hydra/launcher=laptop",
        f"runs_dir={tmp_path / 'runs'}",
        f"data_dir={tmp_path / 'data'}",
    ]
    sweep = ["train", "-m", "--config-dir", str(mine), *words]
    assert main(sweep) == 0
    assert "sweep of 2: 2 done" in capsys.readouterr().out
    records = load_records([tmp_path / "runs"])
    assert {record["metric.name"] for record in records} == {"half"}
    assert {record.attention for record in records} == {"first", "linear"}
    file = mine / "attentions/first.py"
    file.write_text(ATTENTION.replace("[:, :, :1]", "[:, :, 1:2]"), encoding="utf-8")
    forget()
    assert main(sweep) == 0
    out = capsys.readouterr().out
    assert "1 done, 1 finished before" in out


def test_runs_of_a_sweep_find_an_attention_beside_a_task_of_ours(
    mine: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    words = ["task=listops", "task.source=tiny", "attention=first", "seed=1,2"]
    words += ["steps_share=1e-6", "min_evaluations=1", "compute=report"]
    words += ["trainer=cpu", "trainer.threads=1", f"runs_dir={tmp_path / 'runs'}"]
    words += [f"data_dir={tmp_path / 'data'}"]
    assert main(["train", "-m", "--config-dir", str(mine), *words]) == 0
    assert "sweep of 2: 2 done" in capsys.readouterr().out


def test_files_that_cannot_serve_are_named(mine: Path):
    (mine / "tasks/broken.py").write_text("1 / 0", encoding="utf-8")
    (mine / "tasks/silent.py").write_text("x = 1", encoding="utf-8")
    (mine / "tasks/json.py").write_text(TASK, encoding="utf-8")
    with groups.searching(mine):
        with pytest.raises(UserError, match="'broken' of broken cannot be imported: division by"):
            data.get("broken")
        with pytest.raises(UserError, match=r"silent\.py registers no task 'silent'"):
            data.get("silent")
        with pytest.raises(UserError, match=r"json.__init__\.py registers no task 'json'"):
            data.get("json")  # a module of Python's has this name
