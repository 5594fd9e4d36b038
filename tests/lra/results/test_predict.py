"""`lra evaluate` and `lra predict`."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from PIL.PngImagePlugin import PngImageFile

import lra
from lra import data
from lra.base.config import UserError
from lra.cli import main
from lra.results.examples import read_examples

from ..conftest import SMALL
from ..training.test_trained import SHORT

NUMBER = io.BytesIO()
np.save(NUMBER, np.array(7))
EXPRESSIONS = ["[MAX 2 9 [MIN 4 7 ] 0 ]", "7"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, data_dir: Path) -> Path:
    places = [f"data_dir={data_dir}", f"runs_dir={tmp_path_factory.mktemp('runs')}"]
    return lra.train(lra.compose([*SMALL, *places, *SHORT])).folder


def test_evaluate_tells_what_the_record_does(
    folder: Path, data_dir: Path, capsys: pytest.CaptureFixture[str]
):
    assert main(["evaluate", str(folder), "--data-dir", str(data_dir)]) == 0
    (record,) = lra.records(folder)
    expected = f"test accuracy {record.score:.2f}%, loss {record['test.loss']:.3f}, 32 answers\n"
    assert capsys.readouterr().out == expected
    assert main(["evaluate", str(folder), "--data-dir", str(data_dir), "--split", "val"]) == 0
    assert capsys.readouterr().out.startswith("val accuracy ")


def test_predict_writes_what_the_network_answers(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    lines = tmp_path / "lines.txt"
    lines.write_text("\n".join(EXPRESSIONS) + "\n\n", encoding="utf-8")
    expected = lra.load(folder).predict(EXPRESSIONS)
    assert main(["predict", str(folder), str(lines)]) == 0
    out = tmp_path / "out.jsonl"
    printed = capsys.readouterr().out
    assert main(["predict", str(folder), str(lines), "--to", str(out)]) == 0
    assert out.read_text(encoding="utf-8") == printed
    rows = [json.loads(line) for line in printed.splitlines()]
    assert [row["answer"] for row in rows] == expected.classes.tolist()
    np.testing.assert_allclose(rows[1]["probabilities"], expected.probabilities[1], atol=1e-6)


@pytest.mark.parametrize("device", ["nosuch", "cuda", "meta"])
def test_a_device_that_is_not_there_is_named(folder: Path, device: str, capsys):
    if device == "cuda" and torch.cuda.is_available():
        pytest.skip("this machine has one")
    assert main(["evaluate", str(folder), "--device", device]) == 2
    assert f"error: --device {device} cannot be used: " in capsys.readouterr().err


def test_names_of_files_are_no_commands(folder: Path, tmp_path: Path, capsys):
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "\x1b[2J\u202e.txt").write_text("7", encoding="utf-8")
    assert main(["predict", str(folder), str(tmp_path / "texts")]) == 0
    assert capsys.readouterr().out.startswith(r'{"example": "\u001b[2J\u202e.txt"')


def test_every_kind_of_file_is_read(tmp_path: Path):
    listops, retrieval, image = map(data.get, ("listops", "retrieval", "image"))

    def write(name: str, text: str) -> Path:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
        return tmp_path / name

    official = write("basic.tsv", "Source\tTarget\n3\t3\n[MAX 1 2 ]\t2\n")
    assert read_examples(official, listops) == [("0", "3"), ("1", "[MAX 1 2 ]")]
    quoted = write("pairs.csv", 'text1,text2\n"a, b",c\n')
    assert read_examples(quoted, retrieval) == [("0", ["a, b", "c"])]
    tabbed = write("pairs.txt", "a\tb\n")
    assert read_examples(tabbed, retrieval) == [("0", ["a", "b"])]
    write("folder/b.txt", "7")
    write("folder/a.txt", "[MAX 1\n 2 ]")
    folder = read_examples(tmp_path / "folder", listops)
    assert [(name, listops.encode(text).tolist()) for name, text in folder] == [
        ("a.txt", listops.encode("[MAX 1 2 ]").tolist()), ("b.txt", [8])
    ]  # fmt: skip
    np.save(tmp_path / "ids.npy", np.array([[1, 2], [3, 4]]))
    assert [row.tolist() for _, row in read_examples(tmp_path / "ids.npy", listops)] == [
        [1, 2],
        [3, 4],
    ]
    for mode in ("L", "RGB", "RGBA", "P"):
        Image.new(mode, (32, 32)).save(tmp_path / "p.png")
        ((name, picture),) = read_examples(tmp_path / "p.png", image)
        assert (name, image.encode(picture).shape) == ("p.png", (1024,))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.tsv", b"words\n7\n", r"a\.tsv .*no column is named text.* \['words'\]"),
        ("a.tsv", b'text\n"7\n', r"a\.tsv is damaged or invalid"),
        ("a.png", b"no picture", r"a\.png is damaged or invalid \(cannot identify"),
        ("a.png", b"%!PS-Adobe-3.0 EPSF-3.0\n", r"a\.png .*cannot identify"),  # for Ghostscript
        ("a.npy", NUMBER.getvalue(), r"a\.npy is damaged or invalid \(iteration over a 0-d"),
        ("a.npy", b"no array", r"a\.npy is damaged or invalid"),
        ("a.txt", b"\n\n", r"a\.txt holds no example"),
        ("a.txt", None, r"a\.txt .*No such file"),
    ],
)
def test_what_cannot_be_read_is_named(tmp_path: Path, name: str, content: bytes, message: str):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=message):
        read_examples(tmp_path / name, data.get("listops"))


def test_a_huge_picture_is_refused_before_it_is_decoded(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(PngImageFile, "load", lambda self: pytest.fail("it was decoded"))
    Image.new("1", (5000, 5000)).save(tmp_path / "a.png")
    with pytest.raises(UserError, match=r"a\.png .*it has 5000 x 5000 pixels.*: give a picture"):
        read_examples(tmp_path / "a.png", data.get("image"))
