"""A user's folder of configs adds choices and replaces ours, in every command that reads them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from lra.base import groups
from lra.base.errors import UserError
from lra.base.places import CONFIGS
from lra.cli import main
from lra.compute.budget import budget_of
from lra.settings.compose import compose, task_settings
from lra.settings.search_path import initialised, read
from lra.sweeps.status import jobs

FILES = {
    "attention/narrow.yaml": "defaults: [luna]\nM: 3\n",
    "experiment/mine.yaml": "# @package _global_\n"
    "defaults:\n  - override /attention: narrow\nseed: 7\n",
    "model/small.yaml": "name: tiny\nd_model: 8\nn_layers: 1\nn_heads: 2\nqkv_dim: 8\nmlp_dim: 8\n"
    "dropout: 0.0\nattention_dropout: 0.0\n",
    "protocol/mine.yaml": "defaults: [luna, _self_]\nname: mine\n"
    "tasks:\n  listops: {steps: 30, every: 10, max_length: 70}\n",
    "task/listops.yaml": (CONFIGS / "task/listops.yaml")
    .read_text(encoding="utf-8")
    .replace("source: generated", "source: tiny", 1),
}


@pytest.fixture
def mine(tmp_path) -> Iterator[Path]:
    read.cache_clear()
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    yield tmp_path
    read.cache_clear()


def test_its_files_add_choices_and_replace_ours(mine):
    with groups.searching(mine):
        run = compose(["protocol=mine", "attention=narrow"])
        assert compose(["experiment=mine"]).seed == 7
        assert budget_of(run).cost.examples == 30 * 32
    assert (run.attention["name"], run.attention["M"], run.attention["L"]) == ("luna", 3, 8)
    assert (run.task.source, run.model.d_model) == ("tiny", 8)
    assert (run.protocol.recipe.steps, run.protocol.data.pad_to) == (30, 2048)
    assert not os.environ.get(groups.VARIABLE)
    assert compose([]).task.source == "generated"


def test_what_reads_a_single_file_sees_it_too(mine):
    with groups.searching(mine):
        settings, length = task_settings("listops", "mine")
        assert (settings["source"], length) == ("tiny", 70)
        assert {"narrow", "luna"} <= set(groups.names("attention"))
        with initialised():
            assert [word for [word] in jobs(["attention=glob(n*)"])] == [
                "attention=narrow",
                "attention=nystrom",
            ]
    with pytest.raises(UserError, match="unknown protocol 'mine'"):
        task_settings("listops", "mine")


def test_the_flag_stands_anywhere_among_the_words():
    for flag in (["--config-dir", "DIR"], ["--config-dir=DIR"], ["-cd", "DIR"]):
        assert groups.take_folder(["compute", *flag, "-m", "+a=1", "-c", "job"]) == (
            ["compute", "-m", "+a=1", "-c", "job"],
            "DIR",
        )
    assert groups.take_folder(["train", "--cfg", "job"]) == (["train", "--cfg", "job"], None)


def test_the_command_line_reads_the_folder(mine, capsys):
    assert main(["compute", "attention=narrow", "--config-dir", str(mine)]) == 0
    assert "M=3" in capsys.readouterr().out
    assert main(["train", "--config-dir", str(mine)]) == 0
    assert "\n  mine " in capsys.readouterr().out


def test_a_folder_that_does_not_exist_is_a_sentence(tmp_path, monkeypatch, capsys):
    sentence = f"names {tmp_path / 'nowhere'}, which is not a folder\n"
    assert main(["list", "--config-dir", str(tmp_path / "nowhere")]) == 2
    assert capsys.readouterr().err.endswith(sentence)
    monkeypatch.setenv(groups.VARIABLE, str(tmp_path / "nowhere"))
    assert main(["train", "task=listops", "attention=luna"]) == 2
    assert capsys.readouterr().err.endswith(sentence)
