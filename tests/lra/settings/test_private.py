"""Keys and passwords for loggers and callbacks that move nothing: no file of a run holds them."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from lra.settings.command import public

from ..conftest import SMALL, command, environment

CODE = """
from pytorch_lightning import Callback
from pytorch_lightning.loggers.logger import DummyLogger


class Telegram(Callback):
    def __init__(self, key, room="a"):
        assert key == "PLANTED-environment", key


class Mute(DummyLogger):
    def __init__(self, password):
        super().__init__()
        assert password.startswith("PLANTED"), password
"""
FILES = {
    "private_things.py": CODE,
    "callbacks/telegram.yaml": """
telegram:
  _target_: private_things.Telegram
  moves_results: false
  key: ${oc.env:TELEGRAM_KEY}
  room: a
""",
    "logger/mute.yaml": "mute: {_target_: private_things.Mute, password: none}",
}
WORDS = (
    "callbacks=[telegram]",
    "callbacks.telegram.room=PLANTED-room",
    "logger=[mute]",
    "logger.mute.password=PLANTED-password",
    "protocol.recipe.steps=2",
    "protocol.evaluation.every=2",
)


def planted_in(folder: Path) -> list[str]:
    """The files that hold one of the planted secrets; the arrays in answers hold no text."""
    files = [file for file in folder.rglob("*") if file.is_file() and file.suffix != ".pyc"]
    return [file.name for file in files if b"PLANTED" in file.read_bytes()]


@pytest.mark.rest
@pytest.mark.parametrize("how", [[], ["-m", "seed=1,2"], ["-m", "hydra/launcher=laptop"]])
def test_no_file_of_a_run_or_a_sweep_and_no_export_holds_a_secret(
    how: list[str], tmp_path: Path, data_dir: Path
):
    mine, runs = tmp_path / "mine", tmp_path / "runs"
    for name, text in FILES.items():
        (mine / name).parent.mkdir(parents=True, exist_ok=True)
        (mine / name).write_text(text, encoding="utf-8")
    call = ["-m", "lra", "train", "--config-dir", str(mine), *how, *SMALL, *WORDS]
    places = [f"data_dir={data_dir}", f"runs_dir={runs}"]
    secrets = environment() | {"TELEGRAM_KEY": "PLANTED-environment"}
    done = command(*call, *places, env=secrets)
    assert done.returncode == 0, done.stderr
    export = command(
        "-m", "lra", "records", "export", str(tmp_path / "out.jsonl"), "--runs", str(runs)
    )
    assert export.returncode == 0, export.stderr
    assert (tmp_path / "out.jsonl").stat().st_size > 1000
    assert planted_in(tmp_path) == ["private_things.py"]
    assert "callbacks=[telegram]" in (tmp_path / "out.jsonl").read_text("utf-8"), "it is named"


@pytest.mark.rest
def test_a_word_from_the_environment_stays_as_it_was_typed(tmp_path: Path, data_dir: Path):
    """In the command. What it says decides the run: this one has seed 7."""
    words = [*SMALL, *WORDS[-2:], "seed=${oc.env:MY_SEED}", f"data_dir={data_dir}"]
    done = command(
        "-m", "lra", "train", *words, f"runs_dir={tmp_path}", env=environment() | {"MY_SEED": "7"}
    )
    assert done.returncode == 0, done.stderr
    [result] = tmp_path.rglob("seed-7/result.json")
    assert "seed=${oc.env:MY_SEED}" in result.read_text("utf-8")


CALLBACKS = {"quiet": {"moves_results": False}, "ema": {"decay": 0.9}, "other": {}}


@pytest.mark.parametrize(
    ("words", "kept"),
    [
        ("seed=1 logger=[wandb] logger.wandb.key=x +logger.own={a:1} ~logger.csv", "seed=1"),
        ("callbacks=[quiet,ema] callbacks.quiet.key=x", "callbacks=[quiet,ema]"),
        ("+callbacks.quiet={key:x} callbacks.ema.decay=0.9", "callbacks.ema.decay=0.9"),
        ("callbacks.quieter.key=x", "callbacks.quieter.key=x"),
        ("+callbacks={quiet:{key:x}} task=image", "task=image"),
        ("task.loggers=2 callbacks.other.logger=1", "task.loggers=2 callbacks.other.logger=1"),
    ],
)
def test_words_that_may_be_private_are_left_out(words: str, kept: str):
    assert public(shlex.split(words), CALLBACKS) == shlex.split(kept)
