"""Images from teacher to record, with a tiny ViT on a folder of three colours."""

from __future__ import annotations

import json

import pytest

from luna.base import LunaError
from luna.convert import describe, load
from luna.convert.pipeline import run
from luna.convert.pixels import Pixels
from luna.convert.recipe import Augment, Recipe
from luna.convert.tasks import predict, task

from .kit import PREPROCESSOR, paint, transformers, vit

RECIPE = Recipe(
    stage1_steps=60,
    batch=12,
    lr=1e-3,
    epochs=3,
    schedule="cosine",
    weight_decay=0.05,
    warmup=0.1,
    images=Augment(min_area=0.3, mixup=0.2, label_smoothing=0.1, eval_crop=0.875),
)
CLASSES = {0: "blue", 1: "green", 2: "red"}


class Interrupted(Exception):
    pass


@pytest.fixture(scope="module")
def colours(tmp_path_factory):
    root = tmp_path_factory.mktemp("run")
    paint(root / "colours")
    (root / "preprocessor_config.json").write_text(json.dumps(PREPROCESSOR), encoding="utf-8")
    return root / "colours", Pixels.read(str(root))


@pytest.fixture(scope="module")
def teacher(colours, tmp_path_factory):
    """Trained on the folder by the same function, and its record."""
    data, processor = colours
    folder = tmp_path_factory.mktemp("teacher")
    model = vit(id2label=CLASSES, label2id={name: i for i, name in CLASSES.items()})
    record = run(
        model,
        processor,
        task="image_folder",
        data=data,
        folder=folder,
        attention=None,
        recipe=Recipe(batch=6, lr=3e-3, epochs=4, images=Augment(min_area=0.5)),
    )
    cls = transformers.ViTForImageClassification
    return cls.from_pretrained(folder / "model").eval(), record, folder


def test_the_teacher_learns_its_folder(teacher):
    model, record, folder = teacher
    assert record["score"] > 0.9
    assert record["floor"] == pytest.approx(1 / 3)
    assert model.config.id2label == CLASSES
    assert Pixels.read(str(folder / "model")).given == PREPROCESSOR
    assert describe(model) is None


def test_both_stages_and_the_record(teacher, colours, tmp_path):
    model, before, _ = teacher
    data, processor = colours
    options = {"task": "image_folder", "data": data, "attention": "hedgehog", "recipe": RECIPE}
    record = run(model, processor, folder=tmp_path / "whole", **options)
    assert list(record["scores"]) == ["teacher", "swap", "stage1", "best", "last"]
    assert record["score"] > 0.9
    kl = record["stage1"]
    assert max(map(max, kl["after"]["kl"].values())) < max(map(max, kl["before"]["kl"].values()))
    assert record["stage2"]["settings"]["warmup"] == 0.1
    assert record["recipe"]["images"]["mixup"] == 0.2
    assert record["data"] == before["data"]
    assert record["labels"]["val"] == [0] * 6 + [1] * 6 + [2] * 6

    # Record, predictions and saved model agree.
    saved = load(tmp_path / "whole/model")
    again = task("image_folder").open(data, processor, RECIPE, seed=0)
    assert predict(saved, again.evaluation("val")).tolist() == record["predictions"]["val"]
    answers, truth = record["predictions"]["val"], record["labels"]["val"]
    right = [p == y for p, y in zip(answers, truth, strict=True)]
    assert sum(right) / len(right) == record["score"]

    # Interrupted within stage 1 and within stage 2, it gets to the same end.
    for moment in ("stage 1 step 60/", "stage 2 epoch 1/"):

        def log(message, moment=moment):
            if message.startswith(moment):
                raise Interrupted

        with pytest.raises(Interrupted):
            run(model, processor, folder=tmp_path / "torn", log=log, **options)
    resumed = run(model, processor, folder=tmp_path / "torn", **options)
    for key in ("scores", "predictions", "stage1"):
        changes = {"seconds": None} if key == "stage1" else {}
        assert resumed[key] | changes == record[key] | changes


def test_another_folder_is_another_run(teacher, colours, tmp_path):
    model, _, folder = teacher
    _, processor = colours
    paint(tmp_path / "more", val=7)
    options = {"task": "image_folder", "data": tmp_path / "more", "attention": None}
    with pytest.raises(LunaError, match=r"another run \(different .*data\)"):
        run(model, processor, folder=folder, **options)
    (tmp_path / "more/train/violet").mkdir()
    (tmp_path / "more/train/violet/0.png").touch()
    with pytest.raises(LunaError, match="head has 3 outputs, task 'image_folder' needs 4"):
        run(model, processor, folder=tmp_path / "other", **options)
