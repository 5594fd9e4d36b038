"""Figures of converted models: shares of words, channels, stage 1."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from lra.base.errors import UserError
from lra.cli import main
from lra.figures import runs, steps, students
from lra.results.record import read_record
from lra.training.conversion import record_of
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


def test_a_line_of_stage_1_is_a_setting_and_its_band_the_seeds(tmp_path: Path, drawn: list[Figure]):
    recipe = {
        "stage1": "ce",
        "stage1_lr": 0.01,
        "stage1_steps": 4,
        "batch": 2,
        "epochs": 3,
        "train_examples": None,
    }
    for i, (seed, M, kl) in enumerate([(0, 8, 1.0), (1, 8, 3.0), (0, 16, 2.0)]):
        layers = {f"bert.encoder.layer.{j}.attention.self": kl * (j + 1) for j in range(2)}
        curve = [{"step": s, "kl": {k: v / (1 + s) for k, v in layers.items()}} for s in (0, 4)]
        record = {
            "task": "sst2",
            "attention": "luna",
            "options": {"M": M},
            "teacher": "0",
            "schema": 1,
            "status": "finished",
            "scores": {"teacher": {"score": 0.9}, "stage1": {"score": 0.8}},
            "score": 0.8,
            "floor": 0.5,
            "phi_parameters": 2,
            "recipe": recipe,
            "seed": seed,
            "stage1": {"curve": curve},
            "device": "cpu",
            "threads": 1,
            "torch": "2",
            "versions": {},
            "seconds": 1.0,
        }
        folder = tmp_path / "tiny" / "luna" / str(i)
        folder.mkdir(parents=True)
        (folder / "result.json").write_text(json.dumps(record_of(record, "tiny")), encoding="utf-8")
    frame = steps.kl_by_step([read_record(p) for p in sorted(tmp_path.rglob("result.json"))])
    line = frame[(frame.label == "LUNA, M = 8") & (frame.layer == 1)]
    assert sorted(zip(line.step, line.kl, strict=True)) == [(0, 2), (0, 6), (4, 0.4), (4, 1.2)]
    assert main(["figures", "curves", str(tmp_path), "--out", str(tmp_path / "f")]) == 0
    assert list(drawn[0].axes[1].get_lines()[0].get_ydata()) == pytest.approx([4, 0.8])


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
    for command in (
        ["tokens", *words, "--text", TEXT, "--text-pair", PAIR],
        ["channels", luna, "--texts", str(tmp_path / "texts")],
    ):
        assert main(["figures", *command, *out]) == 0
    written = [Path(line) for line in capsys.readouterr().out.splitlines() if line.startswith("/")]
    assert sorted(p.suffix for p in written) == 2 * [".pdf"] + 2 * [".png"]
    axes = drawn[0].axes[0]
    assert [t.get_text() for t in axes.get_yticklabels()] == WORDS
    shares = [line.get_xdata().sum() for line in axes.get_lines()[:3]]
    assert shares == pytest.approx([100] * 3)
