"""GLUE files in their original layout, heads of checkpoints, and batches."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest
import torch

from luna.base import LunaError
from luna.convert import tasks
from luna.convert.tasks.base import labels_of, predict
from luna.convert.tasks.glue import TASKS, batches, read_examples

from ..kit import VOCAB, bert, transformers

MNLI = [
    *("index", "promptID", "pairID", "genre", "sentence1_binary_parse", "sentence2_binary_parse"),
    *("sentence1_parse", "sentence2_parse", "sentence1", "sentence2", "label1", "gold_label"),
]
STSB = [
    *("index", "genre", "filename", "year", "old_index", "source1", "source2"),
    *("sentence1", "sentence2", "score"),
]
# Lines of each task's file, and the examples in them.
FILES = {
    "cola": (
        [["gj04", "1", "", 'He said "no.'], ["gj04", "0", "*", 'Him "yes" said.']],
        [(('He said "no.',), 1), (('Him "yes" said.',), 0)],
    ),
    "sst2": (
        [["sentence", "label"], ['a "quote never closed', "1"], ["dull", "0"]],
        [(('a "quote never closed',), 1), (("dull",), 0)],
    ),
    "mrpc": (
        [
            ["\ufeffQuality", "#1 ID", "#2 ID", "#1 String", "#2 String"],
            ["1", "7", "8", 'He said "', 'She said "x'],
            ["0", "7", "8", "a", "b"],
        ],
        [(('He said "', 'She said "x'), 1), (("a", "b"), 0)],
    ),
    "stsb": (
        [
            STSB,
            ["0", "g", "f", "y", "1", "n", "n", "A plane.", "An air plane.", "4.750"],
            ["1", "g", "f", "y", "1", "n", "n", "A man.", "A dog.", "0"],
        ],
        [(("A plane.", "An air plane."), 4.75), (("A man.", "A dog."), 0.0)],
    ),
    "qqp": (
        [
            ["id", "qid1", "qid2", "question1", "question2", "is_duplicate"],
            ["1", "2", "3", "Why?", "How come?", "1"],
            ["1", "2", "3", "cut off"],
            ["1", "2", "3", "Why?", "When?", "0"],
        ],
        [(("Why?", "How come?"), 1), (("Why?", "When?"), 0)],
    ),
    "mnli": (
        [
            MNLI,
            ["0", "1", "2", "g", "p", "p", "p", "p", "A.", "B.", "neutral", "neutral"],
            ["0", "1", "2", "g", "p", "p", "p", "p", "A.", "C.", "x", "contradiction"],
        ],
        [(("A.", "B."), 1), (("A.", "C."), 2)],
    ),
    "qnli": (
        [["index", "question", "sentence", "label"], ["0", "Who?", "He.", "not_entailment"]],
        [(("Who?", "He."), 1)],
    ),
    "rte": (
        [["index", "sentence1", "sentence2", "label"], ["0", "A.", "B.", "entailment"]],
        [(("A.", "B."), 0)],
    ),
}


def write(folder, name, rows, *, split="train", end="\n"):
    path = folder / TASKS[name].folder / f"{split}.tsv"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes("".join("\t".join(row) + end for row in rows).encode())


@pytest.mark.parametrize("name", TASKS)
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_the_original_layouts_are_read(name, end, tmp_path):
    lines, examples = FILES[name]
    write(tmp_path, name, lines, end=end)
    got = read_examples(TASKS[name], "train", tmp_path)
    assert got == examples
    assert labels_of(got).is_floating_point() == (name == "stsb")
    assert len(TASKS[name].classes(None) or "1") == {"stsb": 1, "mnli": 3}.get(name, 2)


def test_damaged_files_and_unknown_tasks_are_errors(tmp_path):
    with pytest.raises(LunaError, match=r"SST-2/dev\.tsv cannot be read .*/\{train,dev\}\.tsv"):
        read_examples(TASKS["sst2"], "dev", tmp_path)
    for name, rows, reason in (
        ("sst2", [["text", "label"], ["a", "1"]], "line 2 is no example .*'sentence'"),
        ("sst2", [["sentence", "label"], ["a", "1"], ["b"]], "line 3 is no example"),
        ("sst2", [["sentence", "label"], ["a", "1", "b"]], "line 2 is no example"),
        ("sst2", [["sentence", "label"], ["a", "2"]], "line 2 is no example"),
        ("sst2", [["sentence", "label"]], "contains no examples"),
        ("stsb", [STSB, [*"0gfy1nnab", "much"]], "to float: 'much'"),
    ):
        write(tmp_path, name, rows)
        with pytest.raises(LunaError, match=reason):
            read_examples(TASKS[name], "train", tmp_path)
    with pytest.raises(LunaError, match="did you mean sst2"):
        tasks.get("sst")


HUB = {  # the columns of nyu-mll/glue where they are not those of the files
    "mrpc": ("sentence1", "sentence2"),
    "mnli": ("premise", "hypothesis"),
}


@pytest.mark.parametrize("name", TASKS)
def test_every_task_comes_from_the_hub(name, monkeypatch):
    asked, labels = [], [0.5, 4.75] if name == "stsb" else [1, 0]
    columns = HUB.get(name, TASKS[name].text)
    rows = {c: [f"{c} {i}" for i in (0, 1)] for c in columns} | {"label": labels}

    def load_dataset(*words, split):
        asked.append((*words, split))
        return rows

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))
    split = TASKS[name].evaluate[-1]
    got = read_examples(TASKS[name], split, None)
    assert asked == [("nyu-mll/glue", name, split.replace("dev", "validation"))]
    assert got == list(zip(zip(*(rows[c] for c in columns), strict=True), labels, strict=True))
    assert labels_of(got).is_floating_point() == (name == "stsb")
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(LunaError, match=r"pip install datasets, or give a folder with"):
        read_examples(TASKS[name], split, None)


def test_a_head_with_classes_in_another_order_is_refused():
    """Published MNLI models have them in every order."""
    ours = ["entailment", "neutral", "contradiction"]
    for names in (ours, ["ENTAILMENT", "NEUTRAL", "CONTRADICTION"], ["LABEL_0", "LABEL_1"]):
        TASKS["mnli"].check_head(names, None)
    with pytest.raises(LunaError, match="class 0 is 'contradiction', that of 'mnli' is 'ent"):
        TASKS["mnli"].check_head(ours[::-1], None)
    TASKS["sst2"].check_head(["negative", "positive"], None)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizer")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *(f"w{i}" for i in range(VOCAB - 4))]
    (folder / "vocab.txt").write_text("\n".join(words), encoding="utf-8")
    return transformers.BertTokenizerFast(vocab=str(folder / "vocab.txt"))


def sentences(n: int, *, pairs: bool = False) -> list:
    g = torch.Generator().manual_seed(0)
    lengths = torch.randint(1, 20, (n,), generator=g).tolist()
    texts = [" ".join(f"w{(i + j) % 50}" for j in range(k)) for i, k in enumerate(lengths)]
    return [((t, "w1 w2") if pairs else (t,), i) for i, t in enumerate(texts)]


def test_batches_of_an_evaluation_keep_the_order(tokenizer):
    examples = sentences(10)
    got = batches(examples, tokenizer, size=4)
    assert [len(b["labels"]) for b in got] == [4, 4, 2]
    assert torch.cat([b["labels"] for b in got]).tolist() == list(range(10))
    n = [len(t[0].split()) + 2 for t, _ in examples]
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
