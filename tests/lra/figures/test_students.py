"""Converted models and their softmax teacher, side by side."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from lra.base.config import UserError
from lra.figures import channels, students, tokens
from luna.convert import convert
from tests.luna.convert.kit import bert

from .conftest import PAIR, TEXT, wordpiece
from .test_distillation import RECORD, write_run

pytest.importorskip("matplotlib")


def test_softmax_without_a_teacher_says_whose_weights_it_runs_in(
    text_models: dict[str, Path], tmp_path: Path
):
    given = tokens.cls_to_words([text_models["luna"]], TEXT, teacher=text_models["teacher"])
    none = tokens.cls_to_words([text_models["luna"]], TEXT)
    assert none.rows[0] == given.rows[0]
    (student,) = students.open_students([text_models["luna"]])
    student.model.bert.encoder.layer[0].attention.self.query.weight.data.mul_(1.5)
    student.block["stage"] = "finetuned"
    student.model.save_pretrained(tmp_path)
    wordpiece().save_pretrained(tmp_path)
    tuned = tokens.cls_to_words([tmp_path], TEXT)
    assert [r.label for r in tuned.rows] == ["softmax in the weights of luna", "luna, finetuned"]
    assert tuned.rows[0].shares != none.rows[0].shares
    beside = tokens.cls_to_words([tmp_path], TEXT, teacher=text_models["teacher"])
    assert beside.rows[0] == none.rows[0]


def test_titles_say_what_the_models_were_given(text_models: dict[str, Path], tmp_path: Path):
    place = tmp_path / "minilm" / "luna" / "key" / "seed-0"
    shutil.copytree(text_models["luna"], place)
    write_run(place, 0, 1.0, recipe=RECORD["recipe"] | {"epochs": 1})
    budget = "sst2, minilm; stage 1: 4 steps of 2; stage 2: 1 epoch; all examples"
    shown = tokens.cls_to_words([place, text_models["hedgehog"]], TEXT)
    html, _, svg = tokens.draw_tokens(shown, tmp_path / "figure")
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
    with pytest.raises(UserError, match="was not converted from"):
        tokens.cls_to_words([luna], TEXT, teacher=tmp_path / "other")
    with pytest.raises(UserError, match="does not hold a softmax model"):
        tokens.cls_to_words([luna], TEXT, teacher=tmp_path)
    convert(bert(), "t2r").save_pretrained(tmp_path / "bare")
    with pytest.raises(UserError, match=r"no tokenizer_config\.json: save the model's tokenizer"):
        tokens.cls_to_words([tmp_path / "bare"], TEXT)
    for wrong, message in (
        ({"layer": 2}, "no layer 2: .* 0 to 1"),
        ({"head": 4}, "no head 4: .* 0 to 3"),
    ):
        with pytest.raises(UserError, match=message):
            tokens.cls_to_words([luna], TEXT, **wrong)


def test_models_of_one_method_have_different_names(text_models: dict[str, Path], tmp_path: Path):
    convert(bert(), "luna", M=5).save_pretrained(tmp_path)
    other = students.open_students([text_models["luna"], tmp_path])
    assert [s.label.split()[0] for s in other] == ["luna", "luna"]
    assert "M=3" in other[0].label
    assert "M=5" in other[1].label
    twice = students.open_students([tmp_path, tmp_path / "."])
    assert len({s.label for s in twice}) == 1  # the same folder is the same model
    assert str(tmp_path) in twice[0].label


def test_channels_need_something_to_look_at(text_models: dict[str, Path], tmp_path: Path):
    (student,) = students.open_students([text_models["luna"]])
    with pytest.raises(UserError, match="whose channels need inputs"):
        students.examples(student, [], None, [])
    (tmp_path / "texts").write_text(f"{TEXT}\n\n{PAIR}\n", encoding="utf-8")
    assert len(students.examples(student, [TEXT], tmp_path / "texts", [])) == 3
    (hedgehog,) = students.open_students([text_models["hedgehog"]])
    with pytest.raises(UserError, match="has no learned channels"):
        channels.of_student(hedgehog, [])
