"""Three tasks made of numbers, so that every id is known; and the bundled miniature, prepared."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

import lra.data
from lra.cli import main
from lra.data import registry
from lra.data.arrays import SPLITS, Example, Prepared
from lra.data.prepare import prepare
from lra.data.task import Job, RawSplit, Source, Task, TaskOptions


class Numbers(Task):
    """Example i of a split is a row of i+1 ids that are i everywhere (0 included, so i=0 looks like
    padding); the longest has 150."""

    name = "numbers"
    title = "one number, repeated"
    classes = 3
    vocab = 300
    max_length = 150
    sources: ClassVar = {"generated": Source("made up")}
    Options = TaskOptions
    sizes = (150, 20, 11)

    def splits(self, options: Any, job: Job) -> list[RawSplit]:
        return [
            RawSplit(s, (Example(np.full(i + 1, i), i % 3) for i in range(n)), n)
            for s, n in zip(SPLITS, self.sizes, strict=True)
        ]


class Pairs(Numbers):
    """Example i pairs text i with text 2i mod 7: seven texts, used again and again."""

    name = "pairs"
    dual = True

    def splits(self, options: Any, job: Job) -> list[RawSplit]:
        def text(i: int) -> np.ndarray:
            return np.full(70 * (i % 7), i % 7 + 1)

        return [
            RawSplit(s, (Example((text(i), text(2 * i)), i % 3) for i in range(n)), n)
            for s, n in zip(SPLITS, self.sizes, strict=True)
        ]


class Pictures(Numbers):
    """2 x 3 pixels; every fifth picture is all black."""

    name = "pictures"
    vocab = 256
    grid = (2, 3)

    def width(self, options: Any, max_length: int) -> int:
        return 6

    def splits(self, options: Any, job: Job) -> list[RawSplit]:
        return [
            RawSplit(
                s, (Example(np.arange(6) * (i % 5) + (i if i % 5 else 0), 0) for i in range(n)), n
            )
            for s, n in zip(SPLITS, self.sizes, strict=True)
        ]


FAKES = {cls.name: cls for cls in (Numbers, Pairs, Pictures)}


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The made-up tasks, known to lra.data like any other."""
    for name, cls in FAKES.items():
        monkeypatch.setitem(registry.TASKS.added, name, cls)


@pytest.fixture
def fake(fakes: None, tmp_path: Path) -> Callable[[str], Prepared]:
    def make(name: str) -> Prepared:
        options = lra.data.configure(name)
        return prepare(options, max_length=150, data_dir=tmp_path / "data", workers=1)

    return make


@pytest.fixture
def tiny(tmp_path: Path) -> Prepared:
    options = lra.data.configure("listops", ["source=tiny"])
    return prepare(options, max_length=2000, data_dir=tmp_path / "data", workers=1)


@pytest.fixture
def lra_data(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    """`lra data <words> --data-dir tmp_path/data`, in this process: (exit code, stdout, stderr)."""

    def call(*words: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = main(["data", *words, "--data-dir", str(tmp_path / "data")])
        return code, *capsys.readouterr()

    return call
