"""A trained network: from its run, asked, tested, and passed on, from Python and the terminal."""

from __future__ import annotations

import io
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from PIL.PngImagePlugin import PngImageFile

import lra
from lra import data
from lra.base.digests import digest
from lra.base.errors import UserError
from lra.cli import main
from lra.data import registry
from lra.results.examples import read_examples
from lra.results.trained import export_network
from lra.settings.compose import Run

from ..conftest import SMALL

SHORT = ("protocol.recipe.steps=4", "protocol.evaluation.every=2", "attention=luna")
EXPRESSIONS = ["[MAX 2 9 [MIN 4 7 ] 0 ]", "7"]


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory, data_dir: Path) -> lra.Record:
    places = [f"data_dir={data_dir}", f"runs_dir={tmp_path_factory.mktemp('runs')}"]
    return lra.train(lra.compose([*SMALL, *places, *SHORT]))


@pytest.fixture(scope="module")
def trained(record: lra.Record) -> lra.Trained:
    return lra.load(record)


def test_it_is_what_was_trained_and_tested(record: lra.Record, trained: lra.Trained):
    answers = trained.evaluate("test")
    assert answers.digests() == record["answers"]
    assert trained.score(answers) == record.score
    assert not trained.network.training
    assert trained.run.seed == record["seed"]
    assert lra.load(record.path).evaluate().digests() == record["answers"]


def test_predictions_are_the_networks_answers(trained: lra.Trained):
    """To ids, to texts; alone or together."""
    split = trained.prepared.split("test")
    index = np.arange(8)
    rows = zip(split.ids(index), split.lengths(index), strict=True)
    ids = [row[:n] for row, n in rows]
    texts = [trained.task.decode(row) for row in ids]
    expected = trained.evaluate().answers[:8]
    predicted = trained.predict(texts)
    assert predicted.probabilities.shape == (8, 10)
    np.testing.assert_allclose(predicted.probabilities.sum(-1), 1, rtol=1e-5)
    for examples in (texts, ids, [row.tolist() for row in ids]):
        assert (trained.predict(examples).classes == expected).all()
    alone = np.concatenate([trained.predict([text]).probabilities for text in texts])
    np.testing.assert_allclose(alone, predicted.probabilities, atol=1e-5)


def test_attention_maps_have_a_row_per_query(trained: lra.Trained):
    maps = trained.attention_maps(EXPRESSIONS[0])
    n = len(maps.ids)
    assert maps.weights.shape == (1, trained.run.model.n_heads, n, n)
    assert maps.real.sum() == 9
    assert maps.weights[..., ~maps.real].abs().max() == 0  # nobody attends to padding


@pytest.mark.parametrize(
    ("examples", "message"),
    [
        (["[MAX 2 x ]"], "no expression of ListOps: unknown symbol 'x'"),
        ([[1, 2, 99]], "has the id 99, those of task 'listops' are 0 to 16"),
        ([[0.5]], "a row of whole numbers"),
        ([[]], "a row of whole numbers"),
        ([], "no example was given"),
        (3, "predict takes a list of examples"),
    ],
)
def test_what_cannot_be_read_is_said(trained: lra.Trained, examples: Any, message: str):
    with pytest.raises(UserError, match=message):
        trained.predict(examples)


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


def test_other_data_and_folders_without_weights_are_refused(record: lra.Record, tmp_path: Path):
    with pytest.raises(UserError, match=r"it has no result\.json"):
        lra.load(tmp_path)
    with pytest.raises(UserError, match=f"fingerprint {record['data.fingerprint']}, are not in"):
        lra.load(record, data_dir=tmp_path).evaluate()
    with pytest.raises(UserError, match="there is no split 'dev': choose train, val, test"):
        lra.load(record).evaluate("dev")
    copy = shutil.copytree(record.folder, tmp_path / "copy")
    shutil.rmtree(copy / "checkpoints")
    with pytest.raises(UserError, match="is missing: train the run again, with rerun=true"):
        lra.load(copy)


def test_a_task_that_was_made_in_memory_is_named(
    record: lra.Record, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(registry, "names", lambda: ["image"])
    with pytest.raises(UserError, match=r"call data\.from_arrays\('listops', \.\.\.\) before"):
        lra.load(record)


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
        ("config.yaml", b"data_dir: [", "is damaged or invalid"),
        ("config.yaml", b"!!python/object/apply:os.mkdir [outside]", "is damaged or invalid"),
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


def test_mixed_precision_is_that_of_its_training(small: Callable[..., Run]):
    record = lra.train(small(*SHORT, "trainer.precision=bf16-mixed"))
    trained = lra.load(record)
    assert trained.evaluate().digests() == record["answers"]
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
    copy = lra.load(folder, data_dir=trained.data_dir)
    ours, theirs = trained.predict(EXPRESSIONS), copy.predict(EXPRESSIONS)
    assert (ours.probabilities == theirs.probabilities).all()
    assert copy.evaluate().digests() == record["answers"]
    card = (folder / "README.md").read_text(encoding="utf-8")
    for fact in (record["data.fingerprint"], record.score_text, "arxiv.org/abs/2512.08061"):
        assert fact in card
    capsys.readouterr()
    assert main(["export", str(record.folder), "--to", str(folder)]) == 2
    assert "is there already: name a new folder" in capsys.readouterr().err
    [weights] = folder.rglob("*.ckpt")
    content = torch.load(weights, weights_only=True)
    content["state_dict"].popitem()
    torch.save(content, weights)
    with pytest.raises(UserError, match="do not fit the network of its settings"):
        lra.load(folder)


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


# ---------------------------------------------------------------------- on the command line


def test_evaluate_tells_what_the_record_does(record: lra.Record, capsys):
    assert main(["evaluate", str(record.folder)]) == 0
    expected = f"test accuracy {record.score_text}, loss {record.stage['loss']:.3f}, 32 answers\n"
    assert capsys.readouterr().out == expected
    assert main(["evaluate", str(record.folder), "--split", "val"]) == 0
    assert capsys.readouterr().out.startswith("dev accuracy ")


def test_predict_writes_what_the_network_answers(
    record: lra.Record, trained: lra.Trained, tmp_path: Path, capsys
):
    folder, lines, out = str(record.folder), tmp_path / "lines.txt", tmp_path / "out.jsonl"
    lines.write_text("\n".join(EXPRESSIONS) + "\n\n", encoding="utf-8")
    assert main(["predict", folder, str(lines)]) == 0
    printed = capsys.readouterr().out
    assert main(["predict", folder, str(lines), "--to", str(out)]) == 0
    assert out.read_text(encoding="utf-8") == printed
    rows = [json.loads(line) for line in printed.splitlines()]
    expected = trained.predict(EXPRESSIONS)
    assert [row["answer"] for row in rows] == expected.classes.tolist()
    np.testing.assert_allclose(rows[1]["probabilities"], expected.probabilities[1], atol=1e-6)
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "\x1b[2J\u202e.txt").write_text("7", encoding="utf-8")
    capsys.readouterr()
    assert main(["predict", folder, str(tmp_path / "texts")]) == 0
    assert capsys.readouterr().out.startswith(r'{"example": "\u001b[2J\u202e.txt"')


@pytest.mark.parametrize("device", ["nosuch", "cuda", "meta"])
def test_a_device_that_is_not_there_is_named(record: lra.Record, device: str, capsys):
    if device == "cuda" and torch.cuda.is_available():
        pytest.skip("this machine has one")
    assert main(["evaluate", str(record.folder), "--device", device]) == 2
    assert f"error: --device {device} cannot be used: " in capsys.readouterr().err


def test_every_kind_of_file_is_read(tmp_path: Path):
    listops, retrieval, image = map(data.get, ("listops", "retrieval", "image"))
    for name, text, task, expected in (
        ("basic.tsv", "Source\tTarget\n3\t3\n[MAX 1 2 ]\t2\n", listops, ["3", "[MAX 1 2 ]"]),
        ("PAIRS.CSV", 'text1,text2\n"a, b",c\n', retrieval, [["a, b", "c"]]),
        ("pairs.txt", "a\tb\n", retrieval, [["a", "b"]]),
        ("lines.txt", "3\n\n4\u2028\x0c5\n", listops, ["3", "4\u2028\x0c5"]),
    ):
        (tmp_path / name).write_text(text, encoding="utf-8")
        assert read_examples(tmp_path / name, task) == [(str(i), e) for i, e in enumerate(expected)]
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder/b.txt").write_text("7", encoding="utf-8")
    (tmp_path / "folder/a.txt").write_text("[MAX 1\n 2 ]", encoding="utf-8")
    folder = read_examples(tmp_path / "folder", listops)
    assert folder == [("a.txt", "[MAX 1\n 2 ]"), ("b.txt", "7")]
    np.save(tmp_path / "ids.npy", np.array([[1, 2], [3, 4]]))
    rows = [row.tolist() for _, row in read_examples(tmp_path / "ids.npy", listops)]
    assert rows == [[1, 2], [3, 4]]
    for mode in ("L", "RGB", "RGBA", "P"):
        Image.new(mode, (32, 32)).save(tmp_path / "p.png")
        ((name, picture),) = read_examples(tmp_path / "p.png", image)
        assert (name, image.encode(picture).shape) == ("p.png", (1024,))


NUMBER = io.BytesIO()
np.save(NUMBER, np.array(7))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.tsv", b"words\n7\n", r"a\.tsv .*no column is named text.* \['words'\]"),
        ("a.tsv", b'text\n"7\n', r"a\.tsv is damaged or invalid"),
        ("a.csv", b"text\na,b,c\n", r"a\.csv .*row 2 has 3 fields, and the head has 1"),
        ("a.png", b"%!PS-Adobe-3.0 EPSF-3.0\n", r"a\.png .*cannot identify"),  # for Ghostscript
        ("a.npy", NUMBER.getvalue(), r"a\.npy is damaged or invalid \(iteration over a 0-d"),
        ("a.npy", b"no array", r"a\.npy is damaged or invalid"),
        ("a.txt", b"\n\n", r"a\.txt holds no example"),
        ("a.txt", None, r"a\.txt .*No such file"),
    ],
)
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, name: str, content, message: str):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=message):
        read_examples(tmp_path / name, data.get("listops"))


def test_a_huge_picture_is_refused_before_it_is_decoded(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(PngImageFile, "load", lambda self: pytest.fail("it was decoded"))
    Image.new("1", (5000, 5000)).save(tmp_path / "a.png")
    with pytest.raises(UserError, match=r"a\.png .*it has 5000 x 5000 pixels.*: give a picture"):
        read_examples(tmp_path / "a.png", data.get("image"))


def test_a_title_is_no_markup_on_the_card(record: lra.Record, tmp_path: Path):
    """Wherever the record came from; Markdown would make HTML of it."""
    copy = shutil.copytree(record.folder, tmp_path / "copy")
    facts = json.loads((copy / "result.json").read_text("utf-8"))
    facts["metric"]["title"] = "<img src=x> | [a](b)"
    facts["digest"] = digest(facts)
    (copy / "result.json").write_text(json.dumps(facts), encoding="utf-8")
    export_network(copy, tmp_path / "out")
    card = (tmp_path / "out/README.md").read_text("utf-8")
    assert r"| test &lt;img src=x> \| \[a\](b) |" in card
