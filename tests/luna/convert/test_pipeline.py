"""Whole runs, on texts in GLUE's layout and on a folder of images: scores, controls, record,
interruption, and what is refused before anything is trained."""

from __future__ import annotations

import json

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit

from luna.base import LunaError
from luna.convert import describe, load, run_folder, tasks
from luna.convert.maps import measure
from luna.convert.pipeline import run
from luna.convert.recipe import Augment, ConversionRecipe
from luna.convert.tasks.base import predict
from luna.convert.tasks.glue import TASKS, Texts, read_examples
from luna.convert.tasks.images import Images

from .kit import PREPROCESSOR, VOCAB, Interrupted, bert, comes_again, paint, transformers, vit

RECIPE = ConversionRecipe(stage1_steps=60, batch=16, lr=1e-3, epochs=2, max_length=16)
COLOURS = {0: "blue", 1: "green", 2: "red"}


def as_json(record: dict) -> dict:
    return json.loads(json.dumps(record))


@pytest.fixture(scope="module")
def glue(tmp_path_factory):
    """`comes_again` written as SST-2: the options of a run, and a tokenizer that reads it back."""
    root = tmp_path_factory.mktemp("glue")
    words = ["[PAD]", "[UNK]", *(f"w{i}" for i in range(2, VOCAB))]
    plain = Tokenizer(WordLevel({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
    plain.pre_tokenizer = WhitespaceSplit()
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=plain, pad_token="[PAD]", unk_token="[UNK]"
    )
    (root / "SST-2").mkdir()
    for split, n, seed in (("train", 320, 10**7), ("dev", 80, 10**8)):
        batch = comes_again(n, seed=seed)
        lines = ["sentence\tlabel"]
        for ids, label in zip(batch["input_ids"], batch["labels"], strict=True):
            lines.append(" ".join(words[i] for i in ids) + f"\t{label}")
        (root / "SST-2" / f"{split}.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return {"processor": tokenizer, "task": "sst2", "data": root, "recipe": RECIPE}


@pytest.fixture(scope="module")
def converted(glue, trained, tmp_path_factory):
    """A run from teacher to record: its options, folder, record and log."""
    folder, log = tmp_path_factory.mktemp("run"), []
    options = glue | {"attention": "hedgehog"}
    return options, folder, run(trained, folder=folder, log=log.append, **options), log


def test_a_run_from_teacher_to_record(converted, trained):
    options, folder, record, log = converted
    scores = {stage: s["score"] for stage, s in record["scores"].items()}
    assert list(scores) == ["teacher", "swap", "stage1", "best", "last"]
    assert record["score"] == scores["best"] >= scores["last"]
    assert record["recovery"] == pytest.approx(100 * scores["best"] / scores["teacher"])
    assert record["floor"] >= 0.5
    assert record["headroom_recovery"] < record["recovery"] or record["recovery"] >= 100
    assert record["phi_parameters"] == 2 * 2 * 4 * (8 * 8 + 8)
    assert any("stage 1" in line for line in log)
    assert as_json(record) == json.loads((folder / "result.json").read_text(encoding="utf-8"))

    # Predictions, record and saved model agree.
    lines = (options["data"] / "SST-2/dev.tsv").read_text(encoding="utf-8").split("\n")[1:-1]
    assert record["labels"]["dev"] == [int(line[-1]) for line in lines]
    right = [p == int(y[-1]) for p, y in zip(record["predictions"]["dev"], lines, strict=True)]
    assert sum(right) / len(right) == pytest.approx(record["score"])
    assert describe(load(folder / "model"))["stage"] == "finetuned"

    # The card agrees as well; states to resume from are gone.
    card = (folder / "model" / "README.md").read_text(encoding="utf-8")
    assert f'"accuracy": {record["score"]}' in card
    assert record["teacher"] in card
    assert not list(folder.glob("*.pt"))

    # The same again does nothing; another run in the same folder is refused.
    assert run(trained, folder=folder, **options) == as_json(record)
    with pytest.raises(LunaError, match=r"another run \(different seed\)"):
        run(trained, folder=folder, seed=1, **options)


def test_an_interrupted_run_resumes_exactly(converted, trained, tmp_path):
    options, _, expected, _ = converted
    for moment in ("stage 1 step 60/", "stage 2 epoch 2/"):

        def log(message, moment=moment):
            if message.startswith(moment):
                raise Interrupted

        with pytest.raises(Interrupted):
            run(trained, folder=tmp_path, log=log, **options)
    assert not (tmp_path / "result.json").exists()
    lines: list[str] = []
    resumed = run(trained, folder=tmp_path, log=lines.append, **options)
    assert not any(line.startswith("stage 1") for line in lines)  # its result is there
    for key in ("scores", "predictions"):
        assert resumed[key] == expected[key]
    assert resumed["stage1"] | {"seconds": 0} == as_json(expected["stage1"]) | {"seconds": 0}


def test_a_teacher_that_was_killed_at_its_end_is_that_of_a_whole_run(glue, tmp_path, monkeypatch):
    recipe = ConversionRecipe(epochs=1, max_length=16, train_examples=32)
    options = glue | {"recipe": recipe, "attention": None}
    whole, folder = tmp_path / "whole", tmp_path / "killed"
    run(bert(num_labels=2), folder=whole, **options)
    with monkeypatch.context() as killed:
        killed.setattr(run_folder, "CARD", None)  # the last file of a model
        with pytest.raises(AttributeError):
            run(bert(num_labels=2), folder=folder, **options)
    assert not (folder / "model").exists()
    run(bert(num_labels=2), folder=folder, **options)
    (folder / "stage2.pt").touch()  # of a kill between the record and its removal
    run(bert(num_labels=2), folder=folder, **options)
    assert sorted(p.name for p in folder.iterdir()) == ["model", "result.json", "run.json"]
    for path in (whole / "model").iterdir():
        assert (folder / "model" / path.name).read_bytes() == path.read_bytes(), path.name


def test_the_controls_are_the_same_function(glue, trained, tmp_path):
    control = glue | {"recipe": ConversionRecipe(batch=16, lr=1e-3, epochs=1, max_length=16)}
    softmax = run(trained, folder=tmp_path / "a", attention="softmax", **control)
    assert list(softmax["scores"]) == ["teacher", "swap", "best", "last"]  # nothing to distill
    assert softmax["scores"]["swap"] == softmax["scores"]["teacher"]
    only_swap = glue | {"recipe": ConversionRecipe(stage1=None, epochs=0, max_length=16)}
    swap = run(trained, folder=tmp_path / "b", attention="t2r", **only_swap)
    assert list(swap["scores"]) == ["teacher", "swap"]
    assert swap["stage2"] is None
    assert swap["score"] == swap["scores"]["swap"]["score"] < softmax["score"]
    teacher = run(bert(num_labels=2), folder=tmp_path / "c", attention=None, **control)
    assert list(teacher["scores"]) == ["teacher", "best", "last"]
    assert teacher["phi_parameters"] == 0
    cls = transformers.BertForSequenceClassification
    assert describe(cls.from_pretrained(tmp_path / "c/model")) is None


def test_a_tenth_of_train_can_select(glue, trained, tmp_path):
    """Then the dev set is reported and chooses nothing."""
    recipe = ConversionRecipe(
        stage1=None, batch=16, lr=1e-3, epochs=2, max_length=16, select="train_split"
    )
    record = run(trained, folder=tmp_path, attention="t2r", **glue | {"recipe": recipe})
    epochs = [epoch["scores"] for epoch in record["stage2"]["epochs"]]
    best = max(epochs, key=lambda scores: scores["held_out_score"])
    assert record["stage2"]["metric"] == "held_out_score"
    assert record["scores"]["best"] == best
    assert record["score"] == best["score"] == best["accuracy"]
    assert record["train_examples"] == 320 - 32
    assert list(record["predictions"]) == list(record["labels"]) == ["dev"]
    # The held-out examples are not trained on, and are the same for every seed, as the dev batches
    # are on which stage 1 is measured: otherwise the KL of two seeds could not be compared.
    examples = [
        Texts(TASKS["sst2"], glue["data"], glue["processor"], recipe, seed).examples
        for seed in (0, 1)
    ]
    assert examples[0] == examples[1]
    assert len(examples[0]) == 288
    assert set(examples[0]) < set(read_examples(TASKS["sst2"], "train", glue["data"]))
    one = ConversionRecipe(select="train_split", train_examples=1)
    with pytest.raises(LunaError, match="at least 2 training examples"):
        Texts(TASKS["sst2"], glue["data"], glue["processor"], one, 0)


def test_a_joint_loss_keeps_the_maps_close_to_softmax(glue, tmp_path):
    teacher, batch = bert(num_labels=2), comes_again(16, seed=1)
    kl = {}
    for joint in (0.0, 10.0):
        recipe = ConversionRecipe(
            stage1_steps=2, batch=16, lr=3e-3, epochs=1, max_length=16, joint=joint
        )
        folder = tmp_path / str(joint)
        run(teacher, folder=folder, attention="t2r", **glue | {"recipe": recipe})
        kl[joint] = measure(load(folder / "model"), [batch]).mean()
    assert kl[10.0] < 0.7 * kl[0.0]


def test_models_that_do_not_fit_are_refused(glue, tmp_path):
    with pytest.raises(LunaError, match="head has 3 outputs, task 'sst2' needs 2"):
        run(bert(), folder=tmp_path, **glue | {"attention": "t2r"})
    assert not (tmp_path / "run.json").exists()
    odd = bert(num_labels=2, hidden_size=28)  # 4 heads of width 7
    with pytest.raises(LunaError, match="polaformer halves"):
        run(odd, folder=tmp_path, **glue | {"attention": "polaformer"})


def test_options_that_are_the_runs_or_the_hosts_are_refused(glue, tmp_path):
    model = bert(num_labels=2)
    for options, reason in (
        ({"seed": 1, "inplace": True}, "a run sets inplace, seed itself: leave it out"),
        ({"dropout": 0.1}, "a conversion cannot be given dropout"),
    ):
        with pytest.raises(LunaError, match=reason):
            run(model, folder=tmp_path, options=options, **glue | {"attention": "t2r"})


# ---------------------------------------------------------------------- images


@pytest.fixture(scope="module")
def colours(folder, plain):
    """A folder of three colours and how a checkpoint wants its images."""
    return {"processor": plain, "task": "image_folder", "data": folder}


@pytest.fixture(scope="module")
def painter(colours, tmp_path_factory):
    """A ViT trained on the folder by the same function, its record and its folder."""
    folder = tmp_path_factory.mktemp("teacher")
    model = vit(id2label=COLOURS, label2id={name: i for i, name in COLOURS.items()})
    recipe = ConversionRecipe(batch=6, lr=3e-3, epochs=4, images=Augment(min_area=0.5))
    record = run(model, folder=folder, attention=None, recipe=recipe, **colours)
    cls = transformers.ViTForImageClassification
    return cls.from_pretrained(folder / "model").eval(), record, folder


def test_a_teacher_learns_a_folder_of_images(painter):
    model, record, folder = painter
    assert record["score"] > 0.9
    assert record["floor"] == pytest.approx(1 / 3)
    assert model.config.id2label == COLOURS
    config = json.loads((folder / "model/preprocessor_config.json").read_text(encoding="utf-8"))
    assert config.items() >= PREPROCESSOR.items()
    assert describe(model) is None


def test_a_run_on_images(painter, colours, tmp_path):
    model, before, folder = painter
    recipe = ConversionRecipe(
        stage1_steps=30,
        batch=12,
        lr=1e-3,
        epochs=2,
        schedule="cosine",
        weight_decay=0.05,
        warmup=0.1,
        images=Augment(min_area=0.3, eval_crop=0.875),
    )
    record = run(model, folder=tmp_path, attention="hedgehog", recipe=recipe, **colours)
    assert list(record["scores"]) == ["teacher", "swap", "stage1", "best", "last"]
    assert record["score"] > 0.9
    kl = record["stage1"]
    assert max(map(max, kl["after"]["kl"].values())) < max(map(max, kl["before"]["kl"].values()))
    assert record["stage2"]["settings"]["warmup"] == 0.1
    assert record["recipe"]["images"]["eval_crop"] == 0.875
    assert record["data"] == before["data"]
    paint(tmp_path / "more", val=7)
    with pytest.raises(LunaError, match=r"another run \(different .*data\)"):
        run(model, folder=folder, **colours | {"data": tmp_path / "more", "attention": None})
    assert record["labels"]["val"] == [0] * 6 + [1] * 6 + [2] * 6
    data = Images(tasks.get("image_folder"), colours["data"], colours["processor"], recipe, 0)
    answers = predict(load(tmp_path / "model"), data.evaluation("val"))
    assert answers.tolist() == record["predictions"]["val"]
