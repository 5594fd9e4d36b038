"""Bad input, time-boxed; and again what once escaped a reader."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image
from PIL.PngImagePlugin import PngImageFile

from lra import ask
from lra.config import UserError
from lra.data.pathfinder import files as pathfinder

from .fuzz import one_input
from .readers import Readers
from .works import Works

# Seeds of inputs that were once neither read nor refused in one sentence.
FOUND = {
    "listops TSV": (75, 102, 18746),
    "GLUE TSV": (31, 1322),
    "texts to predict": (40, 3419),
    "pictures": (597,),
    "arrays of ids": (12, 377),
    "manifest": (688,),
    "prepared arrays": (483,),
    "records, tables, page": (69, 181, 338, 410, 655),
    "result.json": (10,),
    "config.yaml": (0, 2, 3, 5, 7, 14, 1860),
    "metrics.csv": (16, 78),
    "status.json": (43,),
    "answers": (2, 112),
    "checkpoints": (16, 77),
    "exported config": (0, 1, 5, 89),
    "converted config": (6, 28, 6726),
    "tables.yaml": (0, 205),
    "--config-dir": (0, 3, 4),
    "overrides": (321,),
    "outcomes of a sweep": (10, 30),
}
SLOW = ("--config-dir", "overrides", "config.yaml", "exported config")


@pytest.fixture(scope="module")
def readers(tmp_path_factory: pytest.TempPathFactory) -> Readers:
    works = Works(tmp_path_factory.mktemp("fuzz"))
    for name, kept in (("prepare", "data"), ("train", "runs")):
        works.fresh(works.all[name])
        works.all[name].do(works.home)
        works.keep("data", kept)
    return Readers(works)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.slow
def test_what_once_escaped_is_refused(readers: Readers, folder: Path) -> None:
    for name, seeds in FOUND.items():
        for seed in seeds:
            outcome = one_input(readers.all[name], folder, Random(f"{name} {seed}"))
            assert outcome[0] != "escaped", (name, seed, outcome[1])


def test_a_picture_that_is_huge_is_refused_before_it_is_decoded(
    tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setattr(PngImageFile, "load", lambda self: pytest.fail("it was decoded"))
    Image.new("1", (5000, 5000)).save(tmp_path / "a.png")
    with pytest.raises(UserError, match=r"a\.png .*it has 5000 x 5000 pixels.*: give a picture"):
        ask._picture(tmp_path / "a.png")
    with pytest.raises(UserError, match=r"a\.png: 32 x 32 L .* expected, 5000 x 5000 1 found"):
        pathfinder.read(tmp_path / "a.png", 32)


@pytest.mark.slow
def test_bad_input_is_read_or_refused_in_one_sentence(readers: Readers, folder: Path) -> None:
    assert len(readers.all) > 25
    quick = [name for name in readers.all if name not in SLOW]

    @settings(
        max_examples=200, deadline=None, database=None, derandomize=True,
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(st.sampled_from(quick), st.randoms(use_true_random=False))
    def check(name: str, draw: Random) -> None:
        outcome, why = one_input(readers.all[name], folder, draw)
        assert outcome != "escaped", f"{name}: {why}"

    check()
