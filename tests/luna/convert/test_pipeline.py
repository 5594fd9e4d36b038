"""A whole run on a small task in GLUE's layout: scores, controls, record, interruption."""

from __future__ import annotations

import json

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit

from luna.base import LunaError
from luna.convert import describe, load, pipeline
from luna.convert.pipeline import Recipe, run

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
        (root / "SST-2" / f"{split}.tsv").write_text("\n".join(lines) + "\n")
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
    assert json.loads((tmp_path / "result.json").read_text()) == json.loads(json.dumps(record))

    # Predictions, record and saved model agree.
    labels = [int(line[-1]) for line in (root / "SST-2/dev.tsv").read_text().split("\n")[1:-1]]
    right = [p == y for p, y in zip(record["predictions"]["dev"], labels, strict=True)]
    assert sum(right) / len(right) == pytest.approx(record["score"])
    assert describe(load(tmp_path / "model"))["stage"] == "finetuned"

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


def test_a_head_of_another_task_is_refused(glue, tmp_path):
    root, tokenizer = glue
    with pytest.raises(LunaError, match="head has 3 outputs, task 'sst2' needs 2"):
        run(bert(), tokenizer, task="sst2", data=root, folder=tmp_path, attention="t2r")
