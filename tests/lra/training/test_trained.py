"""A trained network: from its run, asked, tested, and passed on."""

from __future__ import annotations

import io
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import lra
from lra import data
from lra.base.config import UserError
from lra.cli import main
from lra.settings.compose import Run

from ..conftest import SMALL

SHORT = ("protocol.recipe.steps=4", "protocol.evaluation.every=2", "attention=luna")


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory, data_dir: Path) -> lra.Record:
    places = [f"data_dir={data_dir}", f"runs_dir={tmp_path_factory.mktemp('runs')}"]
    return lra.train(lra.compose([*SMALL, *places, *SHORT]))


@pytest.fixture(scope="module")
def trained(record: lra.Record, data_dir: Path) -> lra.Trained:
    return lra.load(record, data_dir=data_dir)


def test_it_is_what_was_trained_and_tested(record: lra.Record, trained: lra.Trained):
    found = trained.evaluate("test")
    assert found.digest == record["answers.digest"]
    assert found.accuracy == pytest.approx(record["test.accuracy"])
    assert not trained.network.training
    assert trained.run.seed == record["seed"]
    assert lra.load(record.path, data_dir=trained.data_dir).evaluate().digest == found.digest


def test_predictions_are_the_networks_answers(trained: lra.Trained):
    """To ids, to texts; alone or together."""
    split = trained.prepared.split("test")
    index = np.arange(8)
    rows = zip(split.ids(index), split.lengths(index), strict=True)
    ids = [row[:n] for row, n in rows]
    texts = [trained.task.decode(row) for row in ids]
    expected = trained.evaluate().answers[:8]
    found = trained.predict(texts)
    assert found.probabilities.shape == (8, 10)
    np.testing.assert_allclose(found.probabilities.sum(-1), 1, rtol=1e-5)
    assert (found.classes == expected).all()
    for examples in (ids, [row.tolist() for row in ids]):
        assert (trained.predict(examples).classes == expected).all()
    alone = np.concatenate([trained.predict([text]).probabilities for text in texts])
    np.testing.assert_allclose(alone, found.probabilities, atol=1e-5)


def test_attention_maps_have_a_row_per_query(trained: lra.Trained):
    maps = trained.attention_maps("[MAX 2 9 [MIN 4 7 ] 0 ]")
    layers, heads, n = 1, len(maps.heads), len(maps.ids)
    assert maps.weights.shape == (layers, heads, n, n)
    assert maps.real.sum() == 9
    assert maps.weights[..., ~maps.real].abs().max() == 0  # nobody attends to padding


@pytest.mark.parametrize(
    ("example", "message"),
    [
        ("[MAX 2 x ]", "no expression of ListOps: unknown symbol 'x'"),
        ([1, 2, 99], "has the id 99, those of task 'listops' are 0 to 16"),
        ([0.5], "a row of whole numbers"),
        ([], "a row of whole numbers"),
    ],
)
def test_what_cannot_be_read_is_said(trained: lra.Trained, example: Any, message: str):
    with pytest.raises(UserError, match=message):
        trained.predict([example])
    with pytest.raises(UserError, match="no example was given"):
        trained.predict([])
    with pytest.raises(UserError, match="predict takes a list of examples"):
        trained.predict(3)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="there is no split 'dev': choose train, val, test"):
        trained.evaluate("dev")


def test_examples_are_read_as_their_tasks_prepare_them():
    colours = np.random.default_rng(0).integers(0, 256, (32, 32, 3), dtype=np.uint8)
    image = data.get("image")
    levels = image.encode(colours)
    assert levels.shape == (1024,)
    assert (image.encode(levels.reshape(32, 32)) == levels).all()
    with pytest.raises(UserError, match="has 28 x 28 numbers, those of task 'image' have 32 x 32"):
        image.encode(np.zeros((28, 28), int))
    with pytest.raises(UserError, match="reads no colours"):
        data.get("pathfinder").encode(colours)
    first, second = data.get("retrieval").encode(("ab", "c"))
    assert (first.tolist(), second.tolist()) == ([98, 99], [100])
    with pytest.raises(UserError, match="is a pair of texts"):
        data.get("retrieval").encode("ab")
    assert data.get("text").encode("é").tolist() == [0xC3 + 1, 0xA9 + 1]


def test_other_data_and_folders_without_weights_are_refused(
    record: lra.Record, tmp_path: Path, small: Callable[..., Run], data_dir: Path
):
    with pytest.raises(UserError, match=r"because it has no config\.yaml"):
        lra.load(tmp_path)
    copy = tmp_path / "copy"
    shutil.copytree(record.folder, copy)
    with pytest.raises(UserError, match="was trained on data with fingerprint 0000000000000000"):
        replace(lra.load(copy), fingerprint="0" * 16).evaluate()
    shutil.rmtree(copy / "checkpoints")
    with pytest.raises(UserError, match="has no checkpoint: train the run again"):
        lra.load(copy)


def pickled(value: Any) -> bytes:
    content = io.BytesIO()
    torch.save(value, content)
    return content.getvalue()


class Call:
    """A call that an unpickler would make."""

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.mkdir, (Path("outside"),)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("config.yaml", b"settings: [", "is damaged or invalid"),
        ("config.yaml", b"!!python/object/apply:os.mkdir [outside]", "is damaged or invalid"),
        ("config.yaml", b"settings: {attention: {}}\nseed: 1", "was edited after its run"),
        ("result.json", b'{"test": {"accu', "is damaged"),
        ("checkpoints/best.ckpt", pickled(Call()), "holds more than tensors and plain values"),
        ("checkpoints/best.ckpt", pickled([1]), "is damaged"),
        ("checkpoints/best.ckpt", pickled({"a": 1})[:-50], "is damaged"),
    ],
)
def test_a_damaged_file_of_a_run_is_named(
    record: lra.Record, tmp_path: Path, monkeypatch, name: str, content: bytes, message: str
):
    monkeypatch.chdir(tmp_path)  # where a call would leave its trace
    copy = shutil.copytree(record.folder, tmp_path / "copy")
    (copy / name).write_bytes(content)
    with pytest.raises(UserError) as refused:
        lra.load(copy)
    assert str(copy / name) in str(refused.value)
    assert message in str(refused.value)
    assert not Path("outside").exists()


def test_mixed_precision_is_that_of_its_training(small: Callable[..., Run], data_dir: Path):
    record = lra.train(small(*SHORT, "trainer.precision=bf16-mixed"))
    trained = lra.load(record, data_dir=data_dir)
    assert trained.evaluate().digest == record["answers.digest"]
    kinds = []
    head = trained.network.encoder.blocks[0].attention
    head.register_forward_hook(lambda *_: kinds.append(torch.is_autocast_enabled("cpu")))
    trained.predict(["3"])
    assert kinds == [True]


def test_an_export_answers_alike_and_says_what_it_is(
    record: lra.Record, trained: lra.Trained, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    folder = tmp_path / "model"
    assert main(["export", str(record.folder), "--to", str(folder)]) == 0
    assert {p.name for p in folder.iterdir()} == {"model.safetensors", "config.json", "README.md"}
    copy = lra.load(folder, data_dir=trained.data_dir)
    texts = ["[MAX 2 9 [MIN 4 7 ] 0 ]", "7"]
    ours, theirs = trained.predict(texts), copy.predict(texts)
    assert (ours.probabilities == theirs.probabilities).all()
    assert copy.evaluate().digest == record["answers.digest"]
    card = (folder / "README.md").read_text(encoding="utf-8")
    for fact in (record["data.fingerprint"], f"{record.score:.2f}%", "arxiv.org/abs/2512.08061"):
        assert fact in card
    capsys.readouterr()
    assert main(["export", str(record.folder), "--to", str(folder)]) == 2
    assert "is there already: name a new folder" in capsys.readouterr().err
    settings, weights = folder / "config.json", folder / "model.safetensors"
    text = settings.read_text(encoding="utf-8")
    for key in ("n_layers", "d_model", "mlp_dim"):
        settings.write_text(re.sub(rf'"{key}": \d+', f'"{key}": 64', text), encoding="utf-8")
        with pytest.raises(UserError, match="do not fit the network of its settings"):
            lra.load(folder)
    settings.write_text(text, encoding="utf-8")
    weights.write_bytes(b"\0" * 100)
    with pytest.raises(UserError, match=r"model\.safetensors is damaged"):
        lra.load(folder)
    shutil.copytree(record.folder, tmp_path / "run")
    (tmp_path / "run" / "result.json").unlink()
    assert main(["export", str(tmp_path / "run"), "--to", str(tmp_path / "out")]) == 2
    assert "has not finished" in capsys.readouterr().err


def test_what_is_public_is_there_and_importing_is_light():
    for name in lra.__all__:
        assert getattr(lra, name).__doc__
    with pytest.raises(AttributeError, match="no attribute 'learn'"):
        lra.learn  # noqa: B018
    heavy = "torch, pytorch_lightning, hydra, numpy"
    code = f"import sys, lra; print([m for m in '{heavy}'.split(', ') if m in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert found.stdout == "[]\n", found.stderr


def test_several_processes_are_the_command_lines_business():
    """The children of `lra.train` would be this very script once more."""
    with pytest.raises(UserError, match=r"this process alone: set trainer\.devices=1"):
        lra.train(lra.compose([*SMALL, *SHORT, "trainer=ddp", "trainer.devices=2"]))
