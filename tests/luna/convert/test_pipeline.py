"""A whole run on a small task in GLUE's layout: scores, controls, record, interruption."""

from __future__ import annotations

import json
from dataclasses import fields

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit

from luna.base import LunaError
from luna.convert import card, describe, load, pipeline, tasks
from luna.convert import glue as glue_files
from luna.convert.fit import measure
from luna.convert.pipeline import run
from luna.convert.recipe import Augment, Recipe

from .kit import VOCAB, bert, comes_again, transformers

RECIPE = Recipe(stage1_steps=60, batch=16, lr=1e-3, epochs=2, max_length=16)


@pytest.fixture(scope="module")
def glue(tmp_path_factory):
    """`comes_again` written as SST-2, and a tokenizer that reads it back, word by word."""
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
    return root, tokenizer


def test_the_teacher_goes_through_the_same_loop(glue, tmp_path):
    root, tokenizer = glue
    recipe = Recipe(batch=16, lr=1e-3, epochs=1, max_length=16)
    record = run(
        bert(num_labels=2),
        tokenizer,
        task="sst2",
        data=root,
        folder=tmp_path,
        attention=None,
        recipe=recipe,
    )
    assert list(record["scores"]) == ["teacher", "best", "last"]
    assert record["phi_parameters"] == 0
    cls = transformers.BertForSequenceClassification
    assert describe(cls.from_pretrained(tmp_path / "model")) is None


def test_a_run_from_teacher_to_record(glue, trained, tmp_path):
    root, tokenizer = glue
    said: list[str] = []
    options = {"task": "sst2", "data": root, "attention": "hedgehog", "recipe": RECIPE}
    record = run(trained, tokenizer, folder=tmp_path, log=said.append, **options)
    scores = {stage: s["score"] for stage, s in record["scores"].items()}
    assert list(scores) == ["teacher", "swap", "stage1", "best", "last"]
    assert record["score"] == scores["best"] >= scores["last"]
    assert record["recovery"] == pytest.approx(100 * scores["best"] / scores["teacher"])
    assert record["floor"] >= 0.5
    assert record["headroom_recovery"] < record["recovery"] or record["recovery"] >= 100
    assert record["phi_parameters"] == 2 * 2 * 4 * (8 * 8 + 8)
    assert any("stage 1" in line for line in said)
    assert json.loads((tmp_path / "result.json").read_text(encoding="utf-8")) == json.loads(
        json.dumps(record)
    )

    # Predictions, record and saved model agree.
    labels = [
        int(line[-1])
        for line in (root / "SST-2/dev.tsv").read_text(encoding="utf-8").split("\n")[1:-1]
    ]
    right = [p == y for p, y in zip(record["predictions"]["dev"], labels, strict=True)]
    assert sum(right) / len(right) == pytest.approx(record["score"])
    assert describe(load(tmp_path / "model"))["stage"] == "finetuned"

    # The card tells the same; states to go on from are gone.
    card = (tmp_path / "model" / "README.md").read_text(encoding="utf-8")
    assert f"best epoch | accuracy {100 * record['score']:.2f}" in card
    assert record["teacher"] in card
    assert not list(tmp_path.glob("*.pt"))

    # The same again does nothing; another run in the same folder is refused.
    assert run(trained, tokenizer, folder=tmp_path, **options) == json.loads(json.dumps(record))
    with pytest.raises(LunaError, match=r"another run \(different seed\)"):
        run(trained, tokenizer, folder=tmp_path, seed=1, **options)


def test_the_controls_are_the_same_function(glue, trained, tmp_path):
    root, tokenizer = glue
    common = {"task": "sst2", "data": root}
    softmax = run(
        trained, tokenizer, folder=tmp_path / "a", attention="softmax", recipe=RECIPE, **common
    )
    assert list(softmax["scores"]) == ["teacher", "swap", "best", "last"]  # nothing to distill
    assert softmax["scores"]["swap"] == softmax["scores"]["teacher"]
    swap = run(
        trained,
        tokenizer,
        folder=tmp_path / "b",
        attention="t2r",
        recipe=Recipe(stage1=None, epochs=0, max_length=16),
        **common,
    )
    assert list(swap["scores"]) == ["teacher", "swap"]
    assert swap["stage2"] is None
    assert swap["score"] == swap["scores"]["swap"]["score"] < softmax["score"]


def test_an_interrupted_run_goes_on_exactly(glue, trained, tmp_path, monkeypatch):
    root, tokenizer = glue
    options = {"task": "sst2", "data": root, "attention": "t2r", "recipe": RECIPE}
    expected = run(trained, tokenizer, folder=tmp_path / "whole", **options)

    finetune, calls = pipeline.finetune, []
    monkeypatch.setattr(pipeline, "finetune", lambda *a, **k: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        run(trained, tokenizer, folder=tmp_path / "torn", **options)
    assert not (tmp_path / "torn/result.json").exists()
    monkeypatch.setattr(pipeline, "finetune", finetune)
    monkeypatch.setattr(pipeline, "distill", lambda *a, **k: calls.append(1))
    resumed = run(trained, tokenizer, folder=tmp_path / "torn", **options)
    assert not calls  # stage 1 was there
    assert resumed["scores"] == expected["scores"]
    assert resumed["predictions"] == expected["predictions"]


def test_a_tenth_of_train_can_select(glue, trained, tmp_path):
    """Then the dev set is reported and chooses nothing."""
    root, tokenizer = glue
    recipe = Recipe(stage1=None, batch=16, lr=1e-3, epochs=2, max_length=16, select="train_split")
    options = {"task": "sst2", "data": root, "attention": "t2r", "recipe": recipe}
    record = run(trained, tokenizer, folder=tmp_path, **options)
    epochs = [epoch["scores"] for epoch in record["stage2"]["epochs"]]
    best = max(epochs, key=lambda scores: scores["held_out_score"])
    assert record["stage2"]["metric"] == "held_out_score"
    assert record["scores"]["best"] == best
    assert record["score"] == best["score"] == best["accuracy"]
    assert record["train_examples"] == 320 - 32
    assert list(record["predictions"]) == list(record["labels"]) == ["dev"]
    # The held-out examples are no training examples, and the same for every seed.
    texts = [
        tasks.task("sst2").open(root, tokenizer, recipe, seed=seed).examples.texts
        for seed in (0, 1)
    ]
    whole = glue_files.read(glue_files.TASKS["sst2"], "train", root).texts
    assert texts[0] == texts[1]
    assert len(texts[0]) == 288
    assert set(texts[0]) < set(whole)
    with pytest.raises(LunaError, match="at least 2 training examples"):
        tasks.hold_out(1)


def test_the_card_of_a_converted_luna_says_which_one_it_is():
    options = {"M": 64, "L": 1, "nonneg": "exp", "share": "head"}
    facts = {"task": "mrpc", "attention": "luna", "options": options, "scores": {}, "floor": 0.5,
             "phi_parameters": 1, "recovery": None, "headroom_recovery": None, "teacher": "hash",
             "recipe": {}, "seed": 1, "train_examples": 2, "torch": "2"}  # fmt: skip
    assert "# mrpc with luna (M=64, L=1, nonneg=exp) attention" in card.card("model", facts)


def test_records_made_before_an_option_existed_keep_their_identity():
    known = {f.name for f in fields(Recipe)}
    later = {"weight_decay", "warmup", "joint", "select", "images"}
    assert set(Recipe().facts()) == known - later
    changed = Recipe(select="train_split", images=Augment(flip=0.0)).facts()
    assert set(changed) == known - {"weight_decay", "warmup", "joint"}


@pytest.mark.parametrize(
    "wrong", [{"batch": 0}, {"epochs": -1}, {"train_examples": 0}, {"select": "test"}]
)
def test_a_recipe_says_what_it_takes(wrong):
    with pytest.raises(LunaError, match=f"{next(iter(wrong))} must be"):
        Recipe(**wrong)


# ---------------------------------------------------------------------- bad input


def test_a_head_of_another_task_is_refused(glue, tmp_path):
    root, tokenizer = glue
    with pytest.raises(LunaError, match="head has 3 outputs, task 'sst2' needs 2"):
        run(bert(), tokenizer, task="sst2", data=root, folder=tmp_path, attention="t2r")


def test_a_head_in_another_order_is_refused():
    """Published MNLI models count in every order."""
    own = ["entailment", "neutral", "contradiction"]
    for names in (own, ["ENTAILMENT", "NEUTRAL", "CONTRADICTION"], ["LABEL_0", "LABEL_1"]):
        tasks.task("mnli").check_head(names, None)
    with pytest.raises(LunaError, match="are contradiction, neutral, entailment, those of 'mnli'"):
        tasks.task("mnli").check_head(own[::-1], None)
    tasks.task("sst2").check_head(["negative", "positive"], None)


def test_stage_1_is_measured_on_the_same_dev_examples_whatever_the_seed(
    glue, tmp_path, monkeypatch
):
    """On training batches, which the seed draws, the KL of two seeds could not be compared."""
    root, tokenizer = glue
    seen = []

    def stop(student, batches, *, held_out, **options):
        seen.append((batches[0]["input_ids"], held_out))
        raise LunaError("seen")

    monkeypatch.setattr(pipeline, "distill", stop)
    for seed in (1, 2):
        options = {"task": "sst2", "data": root, "attention": "t2r", "recipe": RECIPE, "seed": seed}
        with pytest.raises(LunaError, match="seen"):
            run(bert(num_labels=2), tokenizer, folder=tmp_path / str(seed), **options)
    (train, dev), (other_train, other_dev) = seen
    assert not torch.equal(train, other_train)
    assert len(dev) == 2
    for mine, other in zip(dev, other_dev, strict=True):
        assert torch.equal(mine["input_ids"], other["input_ids"])


def test_maps_stay_close_to_softmax_if_stage_2_is_told_to(glue, tmp_path):
    root, tokenizer = glue
    teacher, batch = bert(num_labels=2), comes_again(16, seed=1)
    kl = {}
    for joint in (0.0, 10.0):
        recipe = Recipe(stage1_steps=2, batch=16, lr=3e-3, epochs=1, max_length=16, joint=joint)
        options = {"task": "sst2", "data": root, "attention": "t2r", "recipe": recipe}
        run(teacher, tokenizer, folder=tmp_path / str(joint), **options)
        student = load(tmp_path / str(joint) / "model")
        kl[joint] = measure(student, [batch]).mean()
    assert kl[10.0] < 0.7 * kl[0.0]
    with pytest.raises(LunaError, match="joint weighs stage 1's loss"):
        Recipe(stage1=None, joint=1.0)


def test_texts_longer_than_the_position_table(glue, tmp_path):
    root, tokenizer = glue
    options = {"task": "sst2", "data": root, "folder": tmp_path, "attention": "t2r"}
    with pytest.raises(LunaError, match=r"longer than the model's 40 .*recipe\.max_length=40"):
        run(bert(num_labels=2), tokenizer, recipe=Recipe(max_length=41), **options)
    assert not (tmp_path / "run.json").exists()  # the folder is free for the right one


@pytest.mark.parametrize(
    ("where", "size"), [("torch.nn.Linear.forward", 32), ("torch.optim.AdamW.step", 16)]
)
def test_no_gpu_memory(where, size, glue, tmp_path, monkeypatch):
    """In a forward, or when the optimizer makes room for its moments."""

    def full(*args, **kwargs):
        raise torch.cuda.OutOfMemoryError

    root, tokenizer = glue
    monkeypatch.setattr(where, full)
    options = {"task": "sst2", "data": root, "folder": tmp_path, "attention": "t2r"}
    with pytest.raises(LunaError, match=f"a batch of {size}: try batches of {size // 2}"):
        run(bert(num_labels=2), tokenizer, recipe=RECIPE, **options)


def test_a_head_width_that_a_method_cannot_split(glue, tmp_path):
    root, tokenizer = glue
    odd = bert(num_labels=2, hidden_size=28)  # 4 heads of 7
    with pytest.raises(LunaError, match="polaformer halves the values: their width must be even"):
        run(
            odd,
            tokenizer,
            task="sst2",
            data=root,
            folder=tmp_path,
            attention="polaformer",
            recipe=RECIPE,
        )
