"""What any task must satisfy, on ours and on broken ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import pytest

from lra import data
from lra.data import registry
from lra.data.verify import check_task

FEW = ["n_train=60", "n_val=20", "n_test=20"]  # of the tasks that have no bundled files
LARGE = ("pathx", "pathfinder256")


@pytest.mark.parametrize("task", [name for name in data.builtin_tasks() if name not in LARGE])
def test_our_tasks_satisfy_it(task: str):
    words = ["source=tiny"] if "tiny" in data.get(task).sources else FEW
    checks = list(check_task(data.configure(task, words), 0))
    assert len(checks) >= 12
    assert not [check.text for check in checks if check.status == "differs"]
    assert any("statistics committed" in check.text for check in checks)


class Counting(data.Task):
    name = "counting"
    classes, vocab, max_length = 2, 5, 4
    encoding: ClassVar[dict[str, str]] = {"code": "1"}
    drawn = 0

    def splits(self, options: Any, job: Any) -> list[data.RawSplit]:
        rows = np.random.default_rng(self.drawn).integers(1, 5, (3, 12, 4))
        return [
            data.RawSplit(s, [data.Example(x, int(x[0] % 2)) for x in xs], len(xs))
            for s, xs in zip(("train", "val", "test"), rows, strict=True)
        ]


class Unseeded(Counting):
    name = "unseeded"

    def splits(self, options: Any, job: Any) -> list[data.RawSplit]:
        type(self).drawn += 1
        return super().splits(options, job)


class OneLabel(Counting):
    name = "one_label"

    def splits(self, options: Any, job: Any) -> list[data.RawSplit]:
        return [
            s._replace(examples=[x._replace(label=1) for x in s.examples])
            for s in super().splits(options, job)
        ]


class Misread(Counting):
    name = "misread"

    def tokenize(self, text: str) -> np.ndarray:
        return np.array([int(word) + 1 for word in text.split()])


@pytest.mark.parametrize(
    ("task", "broken"),
    [
        (Counting, None),
        (Unseeded, "prepared twice"),
        (OneLabel, "train: more than one label occurs"),
        (Misread, "the text of example 0 has other ids"),
    ],
)
def test_a_broken_task_is_found(
    task: type[Counting],
    broken: str | None,
    monkeypatch: pytest.MonkeyPatch,
    lra_data: Callable[..., tuple[int, str, str]],
):
    monkeypatch.setitem(registry.TASKS.added, task.name, task)
    code, out, err = lra_data("check", task.name)
    lines = [line for line in out.splitlines() if "differs" in line]
    assert bool(code) is bool(broken) is bool(lines), out + err
    assert broken is None or any(broken in line for line in lines)
