"""GLUE files in their original layout, batches, and the benchmark's metrics."""

from __future__ import annotations

import lzma
import math

import pytest
import torch

from luna.base import LunaError
from luna.convert import metrics
from luna.convert.glue import TASKS, Examples, batches, read
from luna.convert.tasks import predict, task

from .kit import VOCAB, bert, transformers

MNLI = [
    *("index", "promptID", "pairID", "genre", "sentence1_binary_parse", "sentence2_binary_parse"),
    *("sentence1_parse", "sentence2_parse", "sentence1", "sentence2", "label1", "gold_label"),
]
STSB = [
    *("index", "genre", "filename", "year", "old_index", "source1", "source2"),
    *("sentence1", "sentence2", "score"),
]
FILES = {
    "cola": [["gj04", "1", "", 'He said "no.'], ["gj04", "0", "*", 'Him "yes" said.']],
    "sst2": [["sentence", "label"], ['a "quote never closed', "1"], ["dull", "0"]],
    "mrpc": [
        ["\ufeffQuality", "#1 ID", "#2 ID", "#1 String", "#2 String"],
        ["1", "7", "8", 'He said "', 'She said "x'],
        ["0", "7", "8", "a", "b"],
    ],
    "stsb": [
        STSB,
        ["0", "g", "f", "y", "1", "n", "n", "A plane.", "An air plane.", "4.750"],
        ["1", "g", "f", "y", "1", "n", "n", "A man.", "A dog.", "0"],
    ],
    "qqp": [
        ["id", "qid1", "qid2", "question1", "question2", "is_duplicate"],
        ["1", "2", "3", "Why?", "How come?", "1"],
        ["1", "2", "3", "cut off"],
        ["1", "2", "3", "Why?", "When?", "0"],
    ],
    "mnli": [
        MNLI,
        ["0", "1", "2", "g", "p", "p", "p", "p", "A.", "B.", "neutral", "neutral"],
        ["0", "1", "2", "g", "p", "p", "p", "p", "A.", "C.", "x", "contradiction"],
    ],
    "qnli": [["index", "question", "sentence", "label"], ["0", "Who?", "He.", "not_entailment"]],
    "rte": [["index", "sentence1", "sentence2", "label"], ["0", "A.", "B.", "entailment"]],
}
EXPECTED = {
    "cola": ([('He said "no.',), ('Him "yes" said.',)], [1, 0]),
    "sst2": ([('a "quote never closed',), ("dull",)], [1, 0]),
    "mrpc": ([('He said "', 'She said "x'), ("a", "b")], [1, 0]),
    "stsb": ([("A plane.", "An air plane."), ("A man.", "A dog.")], [4.75, 0.0]),
    "qqp": ([("Why?", "How come?"), ("Why?", "When?")], [1, 0]),
    "mnli": ([("A.", "B."), ("A.", "C.")], [1, 2]),
    "qnli": ([("Who?", "He.")], [1]),
    "rte": ([("A.", "B.")], [0]),
}


def write(folder, name, rows, *, split="train", xz=False):
    path = folder / TASKS[name].folder / f"{split}.tsv"
    path.parent.mkdir(exist_ok=True)
    text = "".join("\t".join(row) + "\n" for row in rows).encode()
    if xz:
        path.with_suffix(".tsv.xz").write_bytes(lzma.compress(text))
    else:
        path.write_bytes(text)
    return path


@pytest.mark.parametrize("name", TASKS)
@pytest.mark.parametrize("xz", [False, True])
def test_original_layouts(name, xz, tmp_path):
    write(tmp_path, name, FILES[name], xz=xz)
    got = read(TASKS[name], "train", tmp_path)
    texts, labels = EXPECTED[name]
    assert got.texts == texts
    assert got.labels.tolist() == labels
    assert got.labels.is_floating_point() == (name == "stsb")
    assert len(task(name).classes(None) or "1") == {"stsb": 1, "mnli": 3}.get(name, 2)


def test_bad_files_are_told(tmp_path):
    with pytest.raises(LunaError, match=r"there is no .*SST-2/dev\.tsv: put GLUE's SST-2 folder"):
        read(TASKS["sst2"], "dev", tmp_path)
    for rows, reason in (
        ([["text", "label"], ["a", "1"]], "has no column 'sentence'"),
        ([["sentence", "label"], ["a", "1"], ["b"]], "line 3 has 1 columns instead of 2"),
        ([["sentence", "label"], ["a", "2"]], "line 2: the label must be 0 or 1, got '2'"),
        ([["sentence", "label"]], "holds no examples"),
    ):
        write(tmp_path, "sst2", rows)
        with pytest.raises(LunaError, match=reason):
            read(TASKS["sst2"], "train", tmp_path)
    write(tmp_path, "stsb", [FILES["stsb"][0], [*FILES["stsb"][1][:-1], "much"]])
    with pytest.raises(LunaError, match="the score must be a number"):
        read(TASKS["stsb"], "train", tmp_path)
    path = write(tmp_path, "rte", FILES["rte"], xz=True).with_suffix(".tsv.xz")
    path.unlink()
    (tmp_path / "RTE/train.tsv.xz").write_bytes(lzma.compress(b"x" * 999)[:40])
    with pytest.raises(LunaError, match="cannot be read"):
        read(TASKS["rte"], "train", tmp_path)
    with pytest.raises(LunaError, match="did you mean sst2"):
        task("sst")
    with pytest.raises(LunaError, match="left out"):
        task("wnli")


# ---------------------------------------------------------------------- batches


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizer")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *(f"w{i}" for i in range(VOCAB - 4))]
    (folder / "vocab.txt").write_text("\n".join(words), encoding="utf-8")
    return transformers.BertTokenizerFast(vocab=str(folder / "vocab.txt"))


def sentences(n: int, *, pairs: bool = False) -> Examples:
    g = torch.Generator().manual_seed(0)
    lengths = torch.randint(1, 20, (n,), generator=g).tolist()
    texts = [" ".join(f"w{(i + j) % 50}" for j in range(k)) for i, k in enumerate(lengths)]
    rows = [(t, "w1 w2") if pairs else (t,) for t in texts]
    return Examples(rows, torch.arange(n))


def test_batches_of_an_evaluation_keep_the_order(tokenizer):
    examples = sentences(10)
    got = batches(examples, tokenizer, size=4)
    assert [len(b["labels"]) for b in got] == [4, 4, 2]
    assert torch.cat([b["labels"] for b in got]).tolist() == list(range(10))
    n = [len(t[0].split()) + 2 for t in examples.texts]
    for i, batch in enumerate(got):
        assert batch["attention_mask"].sum(1).tolist() == n[4 * i : 4 * i + 4]
        assert batch["input_ids"].shape[1] == max(n[4 * i : 4 * i + 4])


def test_batches_of_training_are_drawn_and_bucketed(tokenizer):
    examples = sentences(300)
    first, again, other = (batches(examples, tokenizer, size=8, seed=s) for s in (1, 1, 2))
    order, order2, order3 = ([b["labels"].tolist() for b in x] for x in (first, again, other))
    assert order == order2 != order3
    assert sorted(i for part in order for i in part) == list(range(300))
    assert {frozenset(p) for p in order} != {frozenset(p) for p in order3}

    def padding(bs):
        return 1 - sum(int(b["attention_mask"].sum()) for b in bs) / sum(
            b["attention_mask"].numel() for b in bs
        )

    assert padding(first) < 0.5 * padding(batches(examples, tokenizer, size=8))


def test_pairs_and_truncation(tokenizer):
    got = batches(sentences(6, pairs=True), tokenizer, size=6, max_length=10)[0]
    assert got["input_ids"].shape == (6, 10)
    assert int(got["token_type_ids"].max()) == 1


def test_predictions_come_in_order(tokenizer):
    examples = sentences(7)
    model = bert()
    one, all_ = (batches(examples, tokenizer, size=s) for s in (1, 7))
    assert torch.equal(predict(model, one), predict(model, all_))
    scores = predict(bert(num_labels=1), all_)
    assert scores.shape == (7,)
    assert scores.is_floating_point()


# ---------------------------------------------------------------------- metrics

# Values of scikit-learn 1.9.1 and scipy 1.17.1 on the vectors below.
P = torch.tensor([1, 0, 1, 1, 0, 1, 0, 1, 1, 0])
Y = torch.tensor([1, 0, 0, 1, 1, 1, 0, 1, 0, 1])
A = torch.tensor([0.3, 2.0, 2.0, 5.0, 1.1, 4.4, 2.0, 0.3])
B = torch.tensor([1.0, 2.5, 2.0, 4.0, 1.0, 5.0, 3.0, 0.5])


def test_metrics_are_the_oracles():
    assert metrics.accuracy(P, Y) == pytest.approx(0.6, abs=1e-12)
    assert metrics.f1(P, Y) == pytest.approx(2 / 3, abs=1e-12)
    assert metrics.matthews(P, Y) == pytest.approx(1 / 6, abs=1e-12)
    assert metrics.pearson(A.double(), B.double()) == pytest.approx(0.9346400369462446, abs=1e-7)
    assert metrics.spearman(A, B) == pytest.approx(0.932383028557168, abs=1e-12)  # with ties


def test_metrics_of_constant_answers():
    for constant in (torch.zeros(10, dtype=torch.long), torch.ones(10, dtype=torch.long)):
        assert metrics.matthews(constant, Y) == 0
    assert metrics.f1(torch.zeros_like(Y), torch.zeros_like(Y)) == 0
    assert metrics.pearson(torch.full((8,), 2.0), B) == 0
    assert metrics.spearman(torch.full((8,), 2.0), B) == 0


def test_what_each_task_reports():
    score = {name: set(task(name).metric(P, Y)) - {"score"} for name in TASKS}
    assert score["cola"] == {"mcc", "accuracy"}
    assert score["mrpc"] == score["qqp"] == {"accuracy", "f1"}
    assert score["stsb"] == {"pearson", "spearman"}
    assert all(score[name] == {"accuracy"} for name in ("sst2", "mnli", "qnli", "rte"))
    assert task("mrpc").metric(P, Y)["score"] == pytest.approx((0.6 + 2 / 3) / 2)
    assert task("cola").metric(P, Y)["score"] == pytest.approx(1 / 6)
    assert TASKS["mnli"].evaluate == ("dev_matched", "dev_mismatched")


def test_floors_of_the_published_dev_sets():
    """MRPC: always "paraphrase" is right in 279 of 408 pairs, and its F1 is 81.2."""
    labels = torch.cat([torch.ones(279), torch.zeros(129)]).long()
    floor = metrics.constant(labels, metrics.paraphrase)
    assert floor["accuracy"] == pytest.approx(0.684, abs=5e-4)
    assert floor["f1"] == pytest.approx(0.812, abs=5e-4)
    sst2 = metrics.constant(torch.tensor([0] * 428 + [1] * 444), metrics.classified)
    assert sst2["score"] == pytest.approx(0.509, abs=5e-4)
    assert metrics.constant(Y, metrics.acceptable)["score"] == 0
    assert metrics.constant(torch.rand(9), metrics.similarity)["score"] == 0
    assert math.isclose(metrics.constant(Y, metrics.classified)["score"], 0.6)
