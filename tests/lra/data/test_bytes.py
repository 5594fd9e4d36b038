"""The next byte of a text: windows, scores, causality, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import lra
from lra.base.errors import UserError
from lra.base.versions import PARTS
from lra.cli import main
from lra.data import registry
from lra.data.arrays import IGNORED
from lra.data.bytes import Bytes
from lra.data.prepare import prepare
from lra.metrics.language import BitsPerByte
from lra.model.build import build
from luna import LunaError

TEXT = bytes(np.random.default_rng(0).integers(97, 101, 3000).tolist())
MODEL = ("model.n_layers=1", "model.d_model=16", "model.qkv_dim=16", "model.mlp_dim=16")
SHORT = ("protocol.recipe.batch=4", "protocol.recipe.steps=8", "protocol.recipe.warmup=2")
SETTINGS = (
    "task=bytes",
    "task.context=32",
    "task.stride=8",
    "task.held_out=0.1",
    "protocol=bytes",
    "protocol.evaluation.every=4",
    "trainer=cpu",
    "trainer.threads=1",
    "compute=off",
    *MODEL,
    *SHORT,
)


@pytest.fixture
def text(tmp_path: Path) -> Path:
    (tmp_path / "text.txt").write_bytes(TEXT)
    return tmp_path / "text.txt"


def options(text: Path, *words: str) -> Any:
    usual = [f"path={text}", "context=32", "stride=8", "held_out=0.1"]
    return lra.data.configure("bytes", [*usual, *words])


@pytest.mark.parametrize(("length", "stride"), [(300, 8), (299, 32), (33, 8), (97, 31)])
def test_every_byte_is_scored_once_and_late_in_its_window(length: int, stride: int):
    ids = np.arange(length) % 250 + 1
    scored = np.zeros(length, int)
    starts: list[int] = []
    task = Bytes()
    for i, (window, labels) in enumerate(task.windows(ids.astype(np.uint16), 32, stride)):
        (where,) = np.nonzero(labels != IGNORED)
        assert len(window) == len(labels) == 32
        start = min(i * stride, length - 33)
        starts.append(start)
        assert (window == ids[start : start + 32]).all()
        assert (labels[where] == ids[start + 1 + where]).all()
        assert i == 0 or where.min() >= 32 - stride
        scored[start + 1 + where] += 1
    assert (scored == [0] + [1] * (length - 1)).all()


def test_parts_follow_each_other_and_another_text_is_other_data(text: Path, tmp_path: Path):
    made = prepare(options(text), max_length=0, data_dir=tmp_path / "d", workers=1)
    first = [made.split(s).ids(np.array([0]), 8)[0] for s in ("train", "val", "test")]
    shown = [made.layout.decode(ids).encode() for ids in first]
    assert shown == [TEXT[:8], TEXT[2400:2408], TEXT[2700:2708]]
    assert sum(made.facts["splits"]["test"]["labels"]) == 299
    text.write_bytes(TEXT[::-1])
    other = prepare(options(text), max_length=0, data_dir=tmp_path / "d", workers=1)
    assert other.folder != made.folder
    (tmp_path / "folder").mkdir()
    for name, part in (("b.txt", TEXT[1000:]), ("a.txt", TEXT[:1000]), (".hidden", b"x")):
        (tmp_path / "folder" / name).write_bytes(part)
    assert Bytes().text(options(tmp_path / "folder")) == TEXT[:1000] + b"\n" + TEXT[1000:]


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["stride=33"], "between two windows would never be scored"),
        (["held_out=0.5"], "held_out=0.5 is out of range: it must be between 0 and 0.5"),
        (["context=400"], "not longer than a context of 400, so give a longer text"),
        (["path=/no/where.txt"], "/no/where.txt does not exist: source=files needs path="),
    ],
)
def test_what_cannot_be_is_one_sentence(text: Path, tmp_path: Path, words: list[str], why: str):
    with pytest.raises(UserError, match=why):
        prepare(options(text, *words), max_length=0, data_dir=tmp_path / "d")


@pytest.mark.parametrize(
    "words",
    [
        ["attention=softmax"],
        ["attention=luna"],
        ["attention=s4d"],
        ["attention=luna", "attention.dwc=conv1d"],
        ["attention=luna", "attention.dwc=conv1d_long"],
    ],
)
def test_no_byte_sees_the_next_one(words: list[str]):
    words = [*SETTINGS, "task.source=tiny", *words]
    run = lra.compose(words)
    task = lra.data.of(run.task)
    network = build(task, run.attention, run.model, run.protocol, seed=1).eval()
    ids = torch.randint(1, 257, (1, 32), generator=torch.Generator().manual_seed(0))
    changed = ids.clone()
    changed[:, 20:] = 1
    with torch.no_grad():
        a, b = network(ids), network(changed)
    torch.testing.assert_close(a[:, :20], b[:, :20], rtol=0, atol=1e-6)
    assert not torch.allclose(a[:, 20:], b[:, 20:], atol=1e-4)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["attention=linformer"], "needs the attention's causal form, which 'linformer' does not"),
        (["attention=luna", "attention.dwc=conv2d"], "dwc=conv2d needs a grid of tokens"),
    ],
)
def test_a_method_that_looks_ahead_is_refused(words: list[str], why: str):
    run = lra.compose([*SETTINGS, "task.source=tiny", *words])
    with pytest.raises((UserError, LunaError), match=why):
        build(lra.data.of(run.task), run.attention, run.model, run.protocol, seed=1)


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> lra.Record:
    place = tmp_path_factory.mktemp("bytes")
    (place / "text.txt").write_bytes(TEXT)
    words = [f"task.path={place / 'text.txt'}", f"data_dir={place / 'd'}", f"runs_dir={place}"]
    return lra.train(lra.compose([*SETTINGS, *words, "attention=linear"]))


def test_a_record_has_bits_per_byte_that_its_answers_give(record: lra.Record):
    assert (record["metric.name"], record["metric.higher_is_better"]) == ("bits_per_byte", False)
    stage = record.stage
    assert record.score == pytest.approx(stage["loss"] / np.log(2), rel=1e-3)
    assert stage["metrics"]["perplexity"] == pytest.approx(2**record.score, rel=1e-9)
    trained = lra.load(record)
    assert trained.score(trained.evaluate()) == record.score
    # From the losses alone, which keeps no answers in memory.
    assert trained.score(trained.evaluate("val")) == pytest.approx(record["dev.score"], rel=1e-3)
    # Four letters that are drawn evenly have two bits; with one more of each possible byte it is
    # more than that.
    assert 2 < record.floor < 2.6
    lowest = min(score for _, score in record["curve"])  # of metrics.csv, which has six digits
    assert record["dev.score"] == pytest.approx(lowest, rel=1e-5)


def test_what_scores_a_run_has_a_declared_version(record: lra.Record):
    assert record["numerics"]["scoring"] == PARTS["scoring"].numerics
    assert not [part for part in record["code"] if "chosen" in part], "no metric from outside"


def test_a_constant_answer_is_how_often_each_byte_occurs():
    train, test = np.array([1, 1, 2, 3]), np.array([1, 2, 4])
    target = registry.get("bytes").target
    share = np.array([3, 2, 1]) / (4 + 257)
    expected = -np.log2(share).mean()
    assert BitsPerByte().constant(train, test, target) == pytest.approx(expected)


def test_a_text_is_continued(record: lra.Record, tmp_path: Path, capsys):
    trained = lra.load(record)
    first = trained.generate("abc", 5, seed=1)
    assert first.startswith("abc")
    assert first == trained.generate("abc", 5, seed=1)
    likely = trained.generate("abca" * 20, 1, temperature=0)  # longer than the context
    logits = trained.predict([("abca" * 20)[-32:]]).probabilities[0, -1]
    assert likely[-1] == chr(int(logits[1:].argmax()))
    (tmp_path / "prompt.txt").write_text("abc\n", encoding="utf-8")
    words = ["predict", str(record.folder), str(tmp_path / "prompt.txt"), "--generate", "5"]
    assert main([*words, "--seed", "1"]) == 0
    assert capsys.readouterr().out.startswith("abc")
    with pytest.raises(UserError, match="nothing to continue"):
        trained.generate("", 5)
