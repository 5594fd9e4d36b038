"""What a step took elsewhere, as `lra plan` prints it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from lra.bench import elsewhere
from lra.reference import times
from lra.reference.times import Times, Work
from lra.settings.compose import Run

WORK = Work("listops", "luna", "linear", layers=1, width=16, batch=8)
CPU = Times("a CPU", 1, 3, 0.1, 0.125, 0.5, 1.0, 1.0)
GPU = Times("NVIDIA H100", 4, 1, 0.01, 0.01, 0.01, 1.0, 1.0)


@pytest.fixture
def two_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(times, "known", lambda: {WORK: [CPU, GPU]})


def test_each_device_has_a_line(two_devices: None, small: Callable[..., Run]):
    title, *lines = elsewhere.elsewhere([small(), small("seed=2")]).splitlines()
    assert title == elsewhere.TITLE
    assert lines == [
        "  linear on listops, a CPU, 1 thread: 0.12 s (0.1 to 0.5 s, 3 runs)",
        "  linear on listops, NVIDIA H100: 0.01 s",
    ]


@pytest.mark.parametrize(
    "word", ["attention=softmax", "protocol.recipe.batch=4", "model.n_layers=2"]
)
def test_other_work_is_not_taken_for_it(two_devices: None, small: Callable[..., Run], word: str):
    assert elsewhere.elsewhere([small(word)]) == ""


def test_the_file_of_the_package_has_times_of_several_devices():
    every = [line for lines in times.known().values() for line in lines]
    assert all(0 < line.least <= line.median <= line.most for line in every)
    assert len({line.device for line in every}) > 1
