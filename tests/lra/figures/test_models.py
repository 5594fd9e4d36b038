"""Figures of converted models: shares of words and patches, channels, distillation."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lra.base.config import UserError
from lra.cli import main
from lra.figures import channels, distillation, patches, students, tokens
from lra.results.record import read_record
from luna.convert import convert
from tests.luna.convert.kit import bert

from .conftest import PAIR, TEXT, WORDS, Figure, maps_of, wordpiece

RECORD = {
    "task": "sst2", "attention": "luna", "options": {"M": 8}, "teacher": "0",
    "schema": 1, "status": "finished",
    "scores": {"teacher": {"score": 0.9}}, "score": 0.8, "floor": 0.5, "phi_parameters": 2,
    "recipe": {"stage1": "ce", "stage1_lr": 0.01, "stage1_steps": 4, "batch": 2, "epochs": 3,
               "train_examples": None},
}  # fmt: skip


def write_run(folder: Path, seed: int, kl: float, **facts: Any) -> Path:
    """`folder` is <model>/<attention>/<key>."""
    layers = {f"bert.encoder.layer.{i}.attention.self": kl * (i + 1) for i in range(2)}
    curve = [{"step": s, "kl": {k: v / (1 + s) for k, v in layers.items()}} for s in (0, 4)]
    path = folder / f"seed-{seed}" / "result.json"
    path.parent.mkdir(parents=True)
    record = RECORD | {"seed": seed, "stage1": {"curve": curve}} | facts
    path.write_text(json.dumps(record), encoding="utf-8")
    return path


def test_shares_are_the_cls_rows_of_teacher_and_students(
    text_models: dict[str, Path], tmp_path: Path, drawn: list[Figure]
):
    folders = [text_models["hedgehog"], text_models["luna"]]
    batch = wordpiece()(TEXT, return_tensors="pt")
    for layer in (-1, 0):
        text = tokens.cls_to_words(folders, TEXT, None, text_models["teacher"], layer)
        labels = ["softmax teacher", "hedgehog, not fitted", "luna, not fitted"]
        assert list(text.rows) == labels
        models = [convert(bert(), "softmax"), *(s.model for s in students.open_students(folders))]
        for model, shares in zip(models, text.rows.values(), strict=True):
            cls = maps_of(model, **batch)[layer].mean(0)[0]
            np.testing.assert_allclose(shares, [cls[w.at].sum() for w in text.words], atol=1e-5)
            assert sum(shares) == pytest.approx(1)
    html = tokens.draw_tokens(text, tmp_path / "t")[0].read_text(encoding="utf-8")
    titles = [float(share) for share in re.findall(r'title="(.*?) %"', html)]
    shown = [100 * share for shares in text.rows.values() for share in shares]
    assert titles == pytest.approx(shown, abs=0.051)
    axes = drawn[0].axes[0]
    lines = [line.get_xdata() for line in axes.get_lines()[:3]]
    np.testing.assert_allclose(np.ravel(lines), shown)
    assert [t.get_text() for t in axes.get_yticklabels()] == [w.text for w in text.words]


def test_words_are_spelt_as_in_the_text():
    encoding = wordpiece()(TEXT, PAIR, return_tensors="pt")
    words = tokens.words_of(encoding, (TEXT, PAIR))
    assert [w.text for w in words] == WORDS
    assert [w.special for w in words] == [w.startswith("[") for w in WORDS]
    assert words[2].at == [2, 3]  # gorge ##ous
    assert sorted(i for w in words for i in w.at) == list(range(encoding["input_ids"].shape[1]))
    for second, text in ((False, TEXT), (True, PAIR)):
        of_text = [w for w in words if w.second is second and not w.special]
        assert "".join(w.before + w.text for w in of_text).strip() == text


def test_the_page_is_text_and_loads_nothing():
    nasty = "</span><script>alert(1)</script>&<img src=x onerror=alert(1)>"
    words = [tokens.Word(text, " ", [i]) for i, text in enumerate((nasty, "fine", "less"))]
    html = tokens.page(tokens.ShadedText(words, {nasty: [0.5, 1.0, -0.25]}, "layer 0"))
    assert "<script" not in html
    assert "<img" not in html
    assert not re.search(r"(src|href)=[\"'](?!data:)|url\(|@import|https?:", html)
    strengths = re.findall(r'<span class="(.*?)" style="--s:(\d+)%" title="(.*?)">', html)
    assert strengths == [("", "50", "50.0 %"), ("", "100", "100.0 %"), (" less", "25", "-25.0 %")]


def test_rollout_is_the_product_of_layers_with_the_residual():
    maps = torch.rand(3, 2, 5, 5, dtype=torch.float64)
    maps = maps / maps.sum(-1, keepdim=True)
    expected = np.eye(5)
    for layer in maps.numpy():
        expected = (0.5 * layer.mean(0) + 0.5 * np.eye(5)) @ expected  # the paper's eq. 1
    np.testing.assert_allclose(patches.rollout(maps), expected, atol=1e-12)
    # layer 0 moves token 1 to token 0, layer 1 looks from CLS (2) at 0: so CLS sees token 1
    moves = torch.eye(3, dtype=torch.float64).repeat(2, 1, 1, 1)
    moves[0, 0, 0] = torch.tensor([0.0, 1, 0])
    moves[1, 0, 2] = torch.tensor([1.0, 0, 0])
    np.testing.assert_allclose(patches.rollout(moves)[2], [0.25, 0.25, 0.5])


@pytest.mark.parametrize(("name", "teacher", "first"), [("luna", "teacher", 1),
                                                        ("deit", "deit-teacher", 2)])  # fmt: skip
def test_overlays_are_the_cls_row_over_the_patches(
    name: str, teacher: str, first: int, image_models: dict[str, Path], picture: Path
):
    folder = image_models[name]  # deit has CLS and a second token before the patches
    image, shares = patches.cls_to_patches([folder], picture, image_models[teacher], -1)
    (student,) = students.open_students([folder])
    values, _ = students.pixels(folder, picture)
    cls = maps_of(student.model, pixel_values=values)[-1].mean(0)[0, first:]
    _, of_layer = shares["layer"].values()
    np.testing.assert_allclose(of_layer.flatten(), cls / cls.sum(), rtol=1e-4)
    np.testing.assert_allclose(image, (values[0].permute(1, 2, 0) + 1) / 2, atol=1e-6)
    assert shares["rollout"]["softmax teacher"].sum() == pytest.approx(1)


def test_channels_of_a_converted_layer_over_its_own_inputs(
    text_models: dict[str, Path], tmp_path: Path
):
    (student,) = students.open_students([text_models["luna"]])
    (tmp_path / "texts").write_text(f"{TEXT}\n\n{TEXT}\t{PAIR}\n", encoding="utf-8")
    batches = students.text_batches(student, tmp_path / "texts")
    (layer,) = channels.of_student(student, batches)
    assert layer.name == "layer 1"  # layer 0 is softmax still
    count = sum(b["input_ids"].numel() for b in batches)
    assert layer.u.size == count * 4 * 3 * 2  # 4 heads, M = 3, queries and keys
    attention = student.model.bert.encoder.layer[1].attention.self.luna_attn
    u, c = torch.from_numpy(layer.grid), attention.map.channels
    hidden = (c.e[2, 1] * u[:, None] + c.f[2, 1]).relu()  # head 2, channel 1
    psi = torch.nn.functional.softplus(hidden @ c.a[2, 1] + c.g[2, 1])
    np.testing.assert_allclose(layer.psi[2, :, 1], psi.detach(), rtol=1e-4, atol=1e-6)


def test_seeds_share_a_line_and_settings_have_their_own(tmp_path: Path, drawn: list[Figure]):
    runs = tmp_path / "tiny" / "luna"
    files = [write_run(runs / "a", 0, 1.0), write_run(runs / "a", 1, 3.0),
             write_run(runs / "b", 0, 2.0, options={"M": 16})]  # fmt: skip
    write_run(runs / "d", 0, 2.0, stage1=None, recipe=RECORD["recipe"] | {"stage1": None})
    frame = distillation.curves([read_record(file) for file in files])
    line = frame[(frame.label == "luna, M = 8") & (frame.layer == 1)]
    assert sorted(zip(line.step, line.kl, strict=True)) == [(0, 2), (0, 6), (4, 0.4), (4, 1.2)]
    assert line.final.unique() == pytest.approx(np.mean([0.2, 0.4, 0.6, 1.2]))
    assert main(["figures", "distillation", str(tmp_path), "--out", str(tmp_path / "f")]) == 0
    drawn_line = drawn[0].axes[1].get_lines()[0]
    assert list(drawn_line.get_ydata()) == pytest.approx([4, 0.8])
    assert "stage 1: 4 steps of 2; epochs of stage 2: 3" in drawn[0].texts[0].get_text()


def test_models_and_folders_that_cannot_be_drawn(
    text_models: dict[str, Path], picture: Path, tmp_path: Path
):
    luna, teacher = text_models["luna"], text_models["teacher"]
    bert(num_labels=2).save_pretrained(tmp_path / "other")
    convert(bert(), "t2r").save_pretrained(tmp_path / "bare")
    (student,) = students.open_students([luna])
    for draw, message in (
        (lambda: tokens.cls_to_words([luna], TEXT, None, tmp_path / "other", -1), "not converted"),
        (lambda: tokens.cls_to_words([luna], TEXT, None, tmp_path, -1), "of the softmax model"),
        (lambda: tokens.cls_to_words([tmp_path / "bare"], TEXT, None, teacher, -1), "tokenizer"),
        (lambda: tokens.cls_to_words([luna], TEXT, None, teacher, 2), "no layer 2: .* 0 to 1"),
        (lambda: patches.cls_to_patches([luna], picture, teacher, -1), "vision transformers"),
        (lambda: students.text_batches(student, None), "add --texts FILE"),
    ):
        with pytest.raises(UserError, match=message):
            draw()
    assert main(["figures", "distillation", str(tmp_path / "bare")]) == 2


def test_models_of_one_method_have_different_names(text_models: dict[str, Path], tmp_path: Path):
    convert(bert(), "luna", M=5).save_pretrained(tmp_path)
    one, other = students.open_students([text_models["luna"], tmp_path])
    assert ("M = 3" in one.label, "M = 5" in other.label) == (True, True)


def test_figures_from_the_command_line(
    text_models: dict[str, Path],
    image_models: dict[str, Path],
    picture: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    drawn: list[Figure],
):
    out, luna = ["--out", str(tmp_path / "out")], str(text_models["luna"])
    (tmp_path / "texts").write_text(f"{TEXT}\n", encoding="utf-8")
    words = [luna, str(text_models["hedgehog"]), "--teacher", str(text_models["teacher"])]
    image = [str(image_models["luna"]), "--teacher", str(image_models["teacher"])]
    for command in (["tokens", *words, "--text", TEXT, "--text-pair", PAIR],
                    ["patches", *image, "--image", str(picture)],
                    ["channels", luna, "--texts", str(tmp_path / "texts")]):  # fmt: skip
        assert main(["figures", *command, *out]) == 0
    written = [Path(line) for line in capsys.readouterr().out.splitlines() if line.startswith("/")]
    assert sorted(p.suffix for p in written) == [".html"] + 3 * [".pdf"] + 3 * [".png"]
