"""Small runs on the bundled miniature, in this process or through the real command line."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from lra.base.config import Model, Protocol
from lra.settings.compose import Run, compose
from lra.settings.search_path import read as read_group

from .report.browser import Browser, browser
from .synthetic import Make, write_conversion, write_run

REPOSITORY = Path(__file__).resolve().parents[2]

# Trains in a second; dropout stays on, so that random state matters.
SMALL = (
    "task=listops",
    "task.source=tiny",
    "attention=linear",
    "trainer=cpu",
    "trainer.threads=1",
    "trainer.progress=lines",
    "trainer.checkpoint_every=4",
    "trainer.log_every=5",
    "model.n_layers=1",
    "model.d_model=16",
    "model.qkv_dim=16",
    "model.mlp_dim=16",
    "protocol.data.pad_to=512",
    "protocol.data.max_length=512",
    "protocol.data.pad=batch",
    "protocol.recipe.batch=8",
    "protocol.recipe.steps=30",
    "protocol.recipe.warmup=5",
    "protocol.recipe.lr=0.01",
    "protocol.evaluation.every=10",
    "compute=off",
)

Completed = subprocess.CompletedProcess[str]


def environment() -> dict[str, str]:
    """One thread a process: tests run side by side, and results must not depend on how many."""
    quiet = {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", "WANDB_SILENT": "true"}
    return os.environ | quiet


def command(*words: str, **options: Any) -> Completed:
    """`python <words>` in the repository, waited for."""
    return subprocess.run(
        [sys.executable, *words],
        **{"cwd": REPOSITORY, "env": environment(), "timeout": 240} | options,
        capture_output=True,
        text=True,
    )


def start(*words: str, new_session: bool = False) -> subprocess.Popen[str]:
    """The same in the background; its output can be read line by line."""
    return subprocess.Popen(
        [sys.executable, *words],
        cwd=REPOSITORY,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=new_session,
    )


@pytest.fixture(scope="session")
def data_dir(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("data")


@pytest.fixture
def overrides(tmp_path, data_dir) -> list[str]:
    return [*SMALL, f"data_dir={data_dir}", f"runs_dir={tmp_path / 'runs'}"]


@cache
def composed(*words: str) -> Run:
    """`compose`, which takes longer than training the small run, once per command; not to be
    changed in place."""
    return compose(words)


@pytest.fixture
def small(tmp_path, data_dir) -> Callable[..., Run]:
    """The small run, with more settings."""

    def build(*more: str) -> Run:
        words = (f"runs_dir={tmp_path / 'runs'}", *more)  # what is given in `more` wins
        places = dict(word.split("=") for word in words if word.startswith("runs_dir="))
        others = (word for word in more if not word.startswith("runs_dir="))
        return replace(composed(*SMALL, f"data_dir={data_dir}", *others), **places)

    return build


@pytest.fixture
def train(overrides) -> Callable[..., Completed]:
    """`python train.py` with the small run's settings and more."""
    return lambda *more, **options: command("train.py", *overrides, *more, **options)


def read_settings(
    protocol: str, task: str, model: str = "small", *words: str
) -> tuple[Protocol, Model]:
    """Two groups as a run on a task has them, with `key=value` words."""
    cfg = OmegaConf.create({"task": {"name": task}, "attention": {"name": "softmax"}})
    cfg.protocol, cfg.model = OmegaConf.structured(Protocol), OmegaConf.structured(Model)
    groups = {"protocol": read_group("protocol", protocol), "model": read_group("model", model)}
    cfg = OmegaConf.merge(cfg, groups, OmegaConf.from_dotlist(list(words)))
    OmegaConf.resolve(cfg)
    return OmegaConf.to_object(cfg.protocol), OmegaConf.to_object(cfg.model)


@pytest.fixture(scope="session")
def window() -> Iterator[Browser]:
    """One browser for all tests."""
    with browser() as opened:
        yield opened


@pytest.fixture
def runs(tmp_path) -> Path:
    return tmp_path / "runs"


@pytest.fixture
def make(runs) -> Make:
    """make("luna", 0.4, seed=2, ...): the folder of one synthetic run below `runs`."""
    return lambda attention, accuracy, **more: write_run(runs, attention, accuracy, **more)


@pytest.fixture
def convert(runs) -> Make:
    """convert("luna", 0.87, task="sst2", ...): the folder of one synthetic conversion."""
    return lambda attention, score, **more: write_conversion(runs, attention, score, **more)


# ---------------------------------------------------------------- a copy of the repository


STUDY = ("results", "scripts/study", "tests/study")


def not_copied(folder: str, names: list[str]) -> list[str]:
    """Leave out hidden files, caches, and at the top what a clone has made."""
    made = ("runs", "data") if Path(folder) == REPOSITORY else ()
    return [name for name in names if name.startswith((".", "__pycache__")) or name in made]


def without_study(folder: str, names: list[str]) -> list[str]:
    """Leave out the study, too."""
    of_study = {REPOSITORY / place for place in STUDY}
    left_out = [name for name in names if Path(folder, name) in of_study]
    return not_copied(folder, names) + left_out


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A fresh copy of the tool, apart from its study."""
    return Path(shutil.copytree(REPOSITORY, tmp_path / "clone", ignore=without_study))


def call_in(clone: Path, *words: str) -> str:
    """What a command prints that is run in a copy."""
    done = subprocess.run(
        words,
        cwd=clone,
        env=os.environ | {"PYTHONPATH": str(clone)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def run_in(clone: Path, *words: str) -> str:
    """The same of `python -m <words>`."""
    return call_in(clone, sys.executable, "-m", *words)
