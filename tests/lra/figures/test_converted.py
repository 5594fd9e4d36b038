"""Figures of converted models: [CLS] over words and patches, learned channels."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("matplotlib")
transformers = pytest.importorskip("transformers")

from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors  # noqa: E402

from lra.cli import main  # noqa: E402
from lra.config import UserError  # noqa: E402
from lra.figures import channels, patches, students, tokens  # noqa: E402
from luna.base import LunaError  # noqa: E402
from luna.convert import convert  # noqa: E402
from tests.luna.convert.kit import bert, deit, vit  # noqa: E402

from .test_distillation import RECORD, write_run  # noqa: E402

PIECES = "[PAD] [UNK] [CLS] [SEP] a gorge ##ous movie ##s $ 20 < b > / . , that it is"
TEXT, PAIR = "A gorgeous movie, <b>$20</b>.", "It is  movies"
WORDS = ["[CLS]", "A", "gorgeous", "movie", ",", *"<b>", "$", "20", *"</b>.", "[SEP]", "It", "is",
         "movies", "[SEP]"]  # fmt: skip


def wordpiece() -> Any:
    vocabulary = {piece: i for i, piece in enumerate(PIECES.split())}
    plain = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    plain.normalizer = normalizers.BertNormalizer()
    # BERT's rule for $, which it takes for punctuation
    plain.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    plain.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=plain, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]",
        sep_token="[SEP]",
    )  # fmt: skip


@pytest.fixture(scope="module")
def text_models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A teacher, and two models converted from it."""
    root = tmp_path_factory.mktemp("text")
    teacher = bert()
    found = {"teacher": teacher, "hedgehog": convert(teacher, "hedgehog")}
    found["luna"] = convert(teacher, "luna", layers="last:1", M=3, L=2, nonneg="softplus")
    for name, model in found.items():
        model.save_pretrained(root / name / "model")  # as a run has it
        wordpiece().save_pretrained(root / name / "model")
    return {name: root / name for name in found}


@pytest.fixture(scope="module")
def image_models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil

    root = tmp_path_factory.mktemp("image")
    processor = ViTImageProcessorPil(size={"height": 16, "width": 16})
    for name, model in (
        ("hedgehog", convert(vit(), "hedgehog")),
        ("luna", convert(vit(), "luna", M=2, L=2)),
        ("deit", convert(deit(), "hedgehog")),
    ):
        model.save_pretrained(root / name)
        processor.save_pretrained(root / name)
    return {p.name: p for p in root.iterdir()}


@pytest.fixture
def picture(tmp_path: Path) -> Path:
    from PIL import Image

    noise = np.random.default_rng(0).integers(0, 255, (20, 30, 3), dtype=np.uint8)
    Image.fromarray(noise).save(tmp_path / "noise.png")
    return tmp_path / "noise.png"


def maps_of(model: Any, **batch: torch.Tensor) -> list[np.ndarray]:
    """The maps as the model itself returns them, (H, n, n) a layer."""
    with torch.no_grad():
        return [a[0].numpy() for a in model(**batch, output_attentions=True).attentions]


# ---------------------------------------------------------------------- words


def test_words_are_spelt_as_in_the_text(text_models: dict[str, Path]):
    opened = students.open_students([text_models["luna"]])
    words, batch = tokens.encode(opened, TEXT, PAIR)
    assert [w.text for w in words] == WORDS
    assert [w.special for w in words] == [w.startswith("[") for w in WORDS]
    assert words[2].at == [2, 3]  # gorge ##ous
    assert sorted(i for w in words for i in w.at) == list(range(batch["input_ids"].shape[1]))
    for second, text in ((False, TEXT), (True, PAIR)):
        own = [w for w in words if w.second is second and not w.special]
        assert "".join(w.before + w.text for w in own).strip() == text


def test_shares_are_the_cls_rows_of_teacher_and_students(text_models: dict[str, Path]):
    folders = [text_models["hedgehog"], text_models["luna"]]
    teacher = transformers.BertForSequenceClassification.from_pretrained(
        text_models["teacher"] / "model", attn_implementation="eager"
    ).eval()
    loaded = [teacher, *(s.model for s in students.open_students(folders))]
    batch = wordpiece()(TEXT, return_tensors="pt")
    for layer, head in ((-1, None), (0, 2)):
        shown = tokens.cls_to_tokens(
            folders, TEXT, teacher=text_models["teacher"], layer=layer, head=head
        )
        labels = ["softmax teacher", "hedgehog, not fitted", "luna, not fitted"]
        assert [row.label for row in shown.rows] == labels
        for model, row in zip(loaded, shown.rows, strict=True):
            heads = maps_of(model, **batch)[layer]
            cls = heads.mean(0)[0] if head is None else heads[head, 0]
            pieces = [cls[w.at].sum() for w in shown.words]
            np.testing.assert_allclose(row.shares, pieces, atol=1e-5)
            plain = [s for s, w in zip(row.shares, shown.words, strict=True) if not w.special]
            assert row.top == max(plain)
    assert shown.what == "layer 0, head 2"


def test_softmax_without_a_teacher_says_whose_weights_it_runs_in(
    text_models: dict[str, Path], tmp_path: Path
):
    given = tokens.cls_to_tokens([text_models["luna"]], TEXT, teacher=text_models["teacher"])
    none = tokens.cls_to_tokens([text_models["luna"]], TEXT)
    assert none.rows[0] == given.rows[0]
    (student,) = students.open_students([text_models["luna"]])
    student.model.bert.encoder.layer[0].attention.self.query.weight.data.mul_(1.5)
    student.block["stage"] = "finetuned"
    student.model.save_pretrained(tmp_path)
    wordpiece().save_pretrained(tmp_path)
    tuned = tokens.cls_to_tokens([tmp_path], TEXT)
    assert [r.label for r in tuned.rows] == ["softmax in the weights of luna", "luna, finetuned"]
    assert tuned.rows[0].shares != none.rows[0].shares
    beside = tokens.cls_to_tokens([tmp_path], TEXT, teacher=text_models["teacher"])
    assert beside.rows[0] == none.rows[0]


def test_titles_say_what_the_models_were_given(text_models: dict[str, Path], tmp_path: Path):
    place = tmp_path / "minilm" / "luna" / "key" / "seed-0"
    shutil.copytree(text_models["luna"], place)
    write_run(place, 0, 1.0, recipe=RECORD["recipe"] | {"epochs": 1})
    budget = "sst2, minilm; stage 1: 4 steps of 2; stage 2: 1 epoch; all examples"
    shown = tokens.cls_to_tokens([place, text_models["hedgehog"]], TEXT)
    html, _, svg = tokens.draw(shown, tmp_path / "figure")
    assert budget in html.read_text(encoding="utf-8")
    assert budget in svg.read_text(encoding="utf-8")
    (student,) = students.open_students([place])
    assert student.title.splitlines()[1] == budget
    (student,) = students.open_students([place / "model"])  # no run around it
    assert "\n" not in student.title


def test_models_that_cannot_stand_side_by_side_are_refused(
    text_models: dict[str, Path], tmp_path: Path
):
    luna = text_models["luna"]
    bert(num_labels=2).save_pretrained(tmp_path / "other")
    with pytest.raises(UserError, match="was converted from another model"):
        tokens.cls_to_tokens([luna], TEXT, teacher=tmp_path / "other")
    with pytest.raises(UserError, match="holds no softmax model"):
        tokens.cls_to_tokens([luna], TEXT, teacher=tmp_path)
    convert(bert(), "t2r").save_pretrained(tmp_path / "bare")
    with pytest.raises(UserError, match=r"no tokenizer_config\.json: save the model's tokenizer"):
        tokens.cls_to_tokens([tmp_path / "bare"], TEXT)
    for wrong, message in (({"layer": 2}, "layers 0 to 1"), ({"head": 4}, "heads 0 to 3")):
        with pytest.raises(UserError, match=message):
            tokens.cls_to_tokens([luna], TEXT, **wrong)


def test_models_of_one_method_are_told_apart(text_models: dict[str, Path], tmp_path: Path):
    convert(bert(), "luna", M=5).save_pretrained(tmp_path)
    other = students.open_students([text_models["luna"], tmp_path])
    assert [s.label.split()[0] for s in other] == ["luna", "luna"]
    assert "M=3" in other[0].label
    assert "M=5" in other[1].label
    twice = students.open_students([tmp_path, tmp_path / "."])
    assert len({s.label for s in twice}) == 1  # the same folder is the same model
    assert str(tmp_path) in twice[0].label


# ---------------------------------------------------------------------- patches


def test_rollout_is_the_product_of_layers_with_the_residual():
    g = torch.Generator().manual_seed(0)
    maps = torch.rand(3, 2, 5, 5, generator=g, dtype=torch.float64)
    maps = maps / maps.sum(-1, keepdim=True)
    expected = np.eye(5)
    for layer in maps.numpy():
        expected = (0.5 * layer.mean(0) + 0.5 * np.eye(5)) @ expected  # the paper's eq. 1
    np.testing.assert_allclose(patches.rollout(maps), expected, atol=1e-12)
    np.testing.assert_allclose(patches.rollout(maps).sum(-1), 1, atol=1e-12)
    # layer 0 moves token 1 to token 0, layer 1 looks from CLS (2) at 0: so CLS sees token 1
    moves = torch.eye(3, dtype=torch.float64).repeat(2, 1, 1, 1).view(2, 1, 3, 3)
    moves[0, 0, 0] = torch.tensor([0.0, 1, 0])
    moves[1, 0, 2] = torch.tensor([1.0, 0, 0])
    np.testing.assert_allclose(patches.rollout(moves)[2], [0.25, 0.25, 0.5])


def test_overlays_are_the_cls_row_over_the_patches(image_models: dict[str, Path], picture: Path):
    shown = patches.cls_to_patches([image_models["hedgehog"], image_models["luna"]], picture)
    assert [o.label for o in shown.overlays] == [
        "softmax teacher", "hedgehog, not fitted", "luna, not fitted",
    ]  # fmt: skip
    (student,) = students.open_students([image_models["luna"]])
    values = students.pixels(image_models["luna"], picture)
    cls = maps_of(student.model, pixel_values=values)[-1].mean(0)[0, 1:]
    for i, j in ((0, 0), (1, 3), (3, 2)):  # row by row
        assert shown.overlays[2].layer[i, j] == pytest.approx(cls[4 * i + j] / cls.sum(), rel=1e-4)
    np.testing.assert_allclose(shown.image, (values[0].permute(1, 2, 0) + 1) / 2, atol=1e-6)
    extra = patches.cls_to_patches([image_models["deit"]], picture)  # CLS and a second token first
    assert extra.overlays[1].rollout.shape == (4, 4)
    (student,) = students.open_students([image_models["deit"]])
    cls = maps_of(student.model, pixel_values=values)[-1].mean(0)[0, 2:]
    np.testing.assert_allclose(extra.overlays[1].layer.flatten(), cls / cls.sum(), rtol=1e-4)


def test_what_is_no_image_or_no_image_model_is_refused(
    image_models: dict[str, Path], text_models: dict[str, Path], picture: Path, tmp_path: Path
):
    (tmp_path / "torn.png").write_bytes(picture.read_bytes()[:200])
    for name in ("torn.png", "absent.png"):
        with pytest.raises(LunaError, match="cannot be decoded"):
            patches.cls_to_patches([image_models["luna"]], tmp_path / name)
    with pytest.raises(UserError, match="is no vision transformer"):
        patches.cls_to_patches([text_models["luna"]], picture)


# ---------------------------------------------------------------------- channels


def test_channels_of_a_converted_layer_over_its_own_inputs(text_models: dict[str, Path]):
    (student,) = students.open_students([text_models["luna"]])
    batches = students.examples(student, [TEXT, f"{TEXT}\t{PAIR}"], None, [])
    (layer,) = channels.of_student(student, batches, points=30)
    assert layer.name == "layer 1"  # layer 0 is softmax still
    count = sum(b["input_ids"].numel() for b in batches)
    assert layer.u.size == count * 4 * 3 * 2  # 4 heads, M = 3, queries and keys
    attention = student.model.bert.encoder.layer[1].attention.self.luna_attn
    u, c = torch.from_numpy(layer.grid), attention.map.channels
    hidden = (c.e[2, 1] * u[:, None] + c.f[2, 1]).relu()  # head 2, channel 1
    psi = torch.nn.functional.softplus(hidden @ c.a[2, 1] + c.g[2, 1])
    np.testing.assert_allclose(layer.psi[2, :, 1], psi.detach(), rtol=1e-4, atol=1e-6)


def test_channels_need_something_to_look_at(text_models: dict[str, Path], tmp_path: Path):
    (student,) = students.open_students([text_models["luna"]])
    with pytest.raises(UserError, match="say what to show it"):
        students.examples(student, [], None, [])
    (tmp_path / "texts").write_text(f"{TEXT}\n\n{PAIR}\n", encoding="utf-8")
    assert len(students.examples(student, [TEXT], tmp_path / "texts", [])) == 3
    (hedgehog,) = students.open_students([text_models["hedgehog"]])
    with pytest.raises(UserError, match="has no learned channels"):
        channels.of_student(hedgehog, [])


# ---------------------------------------------------------------------- the commands


def test_from_the_command_line(
    text_models: dict[str, Path],
    image_models: dict[str, Path],
    picture: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
):
    write_run(tmp_path / "run" / "luna" / "a" / "seed-0", 0, 1.0)
    out, luna = ["--out", str(tmp_path / "out")], str(text_models["luna"])
    words = [luna, str(text_models["hedgehog"]), "--text", TEXT, "--text-pair", PAIR]
    assert main(["figures", "tokens", *words, "--layer", "-2", *out]) == 0
    image = [str(image_models["hedgehog"]), str(image_models["luna"]), "--image", str(picture)]
    assert main(["figures", "patches", *image, *out]) == 0
    assert main(["figures", "distillation", str(tmp_path / "run"), *out]) == 0
    named = ["--text", TEXT, "--layout", "overlay", "--name", "psi"]
    assert main(["figures", "channels", luna, *named, *out]) == 0
    assert main(["figures", "channels", luna, *out]) == 2
    captured = capsys.readouterr()
    assert "say what to show it" in captured.err
    written = [Path(line) for line in captured.out.splitlines() if line.startswith("/")]
    assert sorted(p.suffix for p in written) == [".html"] + 4 * [".png"] + 4 * [".svg"]
    assert all(p.stat().st_size > 4000 for p in written)
    assert {"psi.png", "psi.svg"} < {p.name for p in written}
