"""Runs of somebody else, forged or damaged: neither loaded nor passed on."""

from __future__ import annotations

import copy
import dataclasses
import os
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import lra
from lra.base.errors import UserError
from lra.results.trained import export_network

from ..conftest import SMALL

SHORT = ("protocol.recipe.steps=4", "protocol.evaluation.every=2", "attention=luna")


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory, data_dir: Path) -> lra.Record:
    places = [f"data_dir={data_dir}", f"runs_dir={tmp_path_factory.mktemp('runs')}"]
    return lra.train(lra.compose([*SMALL, *places, *SHORT]))


@pytest.fixture
def folder(record: lra.Record, tmp_path: Path) -> Path:
    return Path(shutil.copytree(record.folder, tmp_path / "run"))


def rewritten(folder: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    path = folder / "checkpoints/best.ckpt"
    torch.save(change(torch.load(path, weights_only=True)), path)


def linked(folder: Path, name: str) -> None:
    (folder / "secret").write_bytes((folder / name).read_bytes())
    (folder / name).unlink()
    (folder / name).symlink_to(folder / "secret")


def packed(folder: Path, method: int) -> None:
    path = folder / "checkpoints/best.ckpt"
    with zipfile.ZipFile(path) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, content in parts.items():
            archive.writestr(name, content)


def weights(value: Callable[[torch.Tensor], Any]) -> Callable[[dict[str, Any]], Any]:
    def change(checkpoint: dict[str, Any]) -> dict[str, Any]:
        state = checkpoint["state_dict"].items()
        changed = {k: value(v) if torch.is_tensor(v) else v for k, v in state}
        return checkpoint | {"state_dict": changed}

    return change


FORGED: dict[str, tuple[Callable[[Path], Any], str]] = {
    "another seed": (lambda f: rewritten(f, lambda c: c | {"identity": "x-seed-2"}), "belongs to"),
    "other weights": (lambda f: rewritten(f, weights(lambda v: v + 1)), "not hold the weights"),
    "no weights": (lambda f: rewritten(f, lambda c: {"identity": c["identity"]}), "no weights"),
    "a list": (lambda f: rewritten(f, lambda c: c | {"state_dict": [1]}), "no weights"),
    "a number as name": (
        lambda f: rewritten(f, lambda c: c | {"state_dict": {1: 2}}),
        "no weights",
    ),
    "complex weights": (lambda f: rewritten(f, weights(lambda v: v + 0j)), "do not fit"),
    "packed": (lambda f: packed(f, zipfile.ZIP_DEFLATED), "is damaged"),
    "packed by bzip2": (lambda f: packed(f, zipfile.ZIP_BZIP2), "is damaged"),
    "a pipe": (lambda f: piped(f / "checkpoints/best.ckpt"), "is damaged"),
    "a pipe as record": (lambda f: piped(f / "result.json"), "no result.json"),
}
LINKS = ("answers.npz", "metrics.csv", "checkpoints/best.ckpt")


def piped(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize("name", FORGED)
def test_a_forged_run_is_neither_loaded_nor_exported(folder: Path, tmp_path: Path, name: str):
    forge, why = FORGED[name]
    forge(folder)
    for use in (lra.load, lambda f: export_network(f, tmp_path / "model")):
        with pytest.raises(UserError, match=why):
            use(folder)
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize("name", LINKS)
def test_a_link_is_not_exported(folder: Path, tmp_path: Path, name: str):
    linked(folder, name)
    with pytest.raises(UserError, match="is a link, which is not passed on"):
        export_network(folder, tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_weights_that_are_no_numbers_answer_nothing(record: lra.Record):
    trained = lra.load(record)
    network = copy.deepcopy(trained.network)
    with torch.no_grad():
        next(network.parameters()).fill_(torch.nan)
    with pytest.raises(UserError, match="no finite number"):
        dataclasses.replace(trained, network=network).predict(["7"])
