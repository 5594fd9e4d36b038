"""Figures of converted models: shares of words, and channels."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from lra.base.config import UserError
from lra.cli import main
from lra.figures import runs, students
from luna.convert import convert
from tests.luna.convert.kit import bert

from .conftest import PAIR, TEXT, WORDS, Figure, maps_of, wordpiece


def test_shares_are_the_cls_rows_of_teacher_and_students(text_models: dict[str, Path]):
    opened = students.open_students([text_models["hedgehog"], text_models["luna"]])
    batch = wordpiece()(TEXT, return_tensors="pt")
    places = [at for _, at in students.words_of(batch, (TEXT, ""))]
    words, rows = students.cls_to_words(opened, TEXT, None, text_models["teacher"])
    assert list(rows) == ["softmax teacher", "hedgehog, not fitted", "luna, not fitted"]
    models = [convert(bert(), "softmax"), *(s.model for s in opened)]
    for model, shares in zip(models, rows.values(), strict=True):
        cls = maps_of(model, **batch)[-1].mean(0)[0]
        np.testing.assert_allclose(shares, [cls[at].sum() for at in places], atol=1e-5)
        assert (sum(shares), len(words)) == (pytest.approx(1), len(shares))


def test_words_are_spelt_as_in_the_text():
    encoding = wordpiece()(TEXT, PAIR, return_tensors="pt")
    words = students.words_of(encoding, (TEXT, PAIR))
    assert [text for text, _ in words] == WORDS
    assert words[2] == ("gorgeous", [2, 3])  # gorge ##ous
    assert sorted(i for _, at in words for i in at) == list(range(encoding["input_ids"].shape[1]))


def test_channels_of_a_converted_layer_over_its_own_inputs(
    text_models: dict[str, Path], tmp_path: Path
):
    (student,) = students.open_students([text_models["luna"]])
    (tmp_path / "texts").write_text(f"{TEXT}\n\n{TEXT}\t{PAIR}\n", encoding="utf-8")
    batches = students.text_batches(student, tmp_path / "texts")
    (layer,) = runs.observe(student.model, lambda: [student.model(**b) for b in batches])
    assert layer.name == "layer 1"  # layer 0 is softmax still
    count = sum(b["input_ids"].numel() for b in batches)
    assert layer.u.size == count * 4 * 3 * 2  # 4 heads, M = 3, queries and keys
    attention = student.model.bert.encoder.layer[1].attention.self.luna_layer.attention
    u, c = torch.from_numpy(layer.grid), attention.map.channels
    hidden = (c.e[2, 1] * u[:, None] + c.f[2, 1]).relu()  # head 2, channel 1
    psi = torch.nn.functional.softplus(hidden @ c.a[2, 1] + c.g[2, 1])
    np.testing.assert_allclose(layer.psi[2, :, 1], psi.detach(), rtol=1e-4, atol=1e-6)


def test_models_and_folders_that_cannot_be_drawn(text_models: dict[str, Path], tmp_path: Path):
    luna, teacher = text_models["luna"], text_models["teacher"]
    bert(num_labels=2).save_pretrained(tmp_path / "other")
    convert(bert(), "t2r").save_pretrained(tmp_path / "bare")
    (student,), (bare,) = map(students.open_students, ([luna], [tmp_path / "bare"]))
    for draw, message in (
        (lambda: students.cls_to_words([student], TEXT, None, tmp_path / "other"), "not converted"),
        (lambda: students.cls_to_words([student], TEXT, None, tmp_path), "of the softmax model"),
        (lambda: students.cls_to_words([bare], TEXT, None, teacher), "tokenizer"),
        (lambda: students.text_batches(student, None), "add --texts FILE"),
    ):
        with pytest.raises(UserError, match=message):
            draw()


def test_figures_from_the_command_line(
    text_models: dict[str, Path], tmp_path: Path, capsys, drawn: list[Figure]
):
    out, luna = ["--out", str(tmp_path / "out")], str(text_models["luna"])
    (tmp_path / "texts").write_text(f"{TEXT}\n", encoding="utf-8")
    words = [luna, str(text_models["hedgehog"]), "--teacher", str(text_models["teacher"])]
    for command in (["tokens", *words, "--text", TEXT, "--text-pair", PAIR],
                    ["channels", luna, "--texts", str(tmp_path / "texts")]):  # fmt: skip
        assert main(["figures", *command, *out]) == 0
    written = [Path(line) for line in capsys.readouterr().out.splitlines() if line.startswith("/")]
    assert sorted(p.suffix for p in written) == 2 * [".pdf"] + 2 * [".png"]
    axes = drawn[0].axes[0]
    assert [t.get_text() for t in axes.get_yticklabels()] == WORDS
    shares = [line.get_xdata().sum() for line in axes.get_lines()[:3]]
    assert shares == pytest.approx([100] * 3)
