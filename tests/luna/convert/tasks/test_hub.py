"""GLUE through a stand-in for the package `datasets`, and the errors where it cannot be had."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import pytest

from luna.base import LunaError
from luna.convert.tasks.base import labels_of
from luna.convert.tasks.glue import TASKS, read_examples

PAIR = ("sentence1", "sentence2")
COLUMNS = {  # as the hub's nyu-mll/glue has them
    "cola": ("sentence",),
    "sst2": ("sentence",),
    "mrpc": PAIR,
    "stsb": PAIR,
    "qqp": ("question1", "question2"),
    "mnli": ("premise", "hypothesis"),
    "qnli": ("question", "sentence"),
    "rte": PAIR,
}


class Rows(dict):
    column_names = property(list)

    def __init__(self, columns, names):
        super().__init__(columns)
        self.features = {"label": SimpleNamespace(names=names) if names else SimpleNamespace()}


@pytest.fixture
def hub(monkeypatch):
    """The calls of `load_dataset`, and its answer."""
    asked: list = []
    answer: dict = {}

    def load_dataset(repository, name, *, split):
        asked.append((repository, name, split))
        if "error" in answer:
            raise answer["error"]
        return answer["rows"]

    module = ModuleType("datasets")
    module.load_dataset = load_dataset
    monkeypatch.setitem(sys.modules, "datasets", module)
    return asked, answer


def rows(columns, labels, names=None) -> Rows:
    texts = {c: [f"{c} {i}" for i in range(len(labels))] for c in columns}
    return Rows(texts | {"label": labels, "idx": list(range(len(labels)))}, names)


@pytest.mark.parametrize("name", TASKS)
def test_every_task_comes_from_the_hub(name, hub):
    asked, answer = hub
    labels = [0.5, 4.75] if name == "stsb" else [1, 0]
    answer["rows"] = rows(COLUMNS[name], labels)
    split = TASKS[name].evaluate[-1]
    got = read_examples(TASKS[name], split, None)
    assert asked == [("nyu-mll/glue", name, split.replace("dev", "validation"))]
    texts = [tuple(f"{c} {i}" for c in COLUMNS[name]) for i in (0, 1)]
    assert got == list(zip(texts, labels, strict=True))
    assert labels_of(got).is_floating_point() == (name == "stsb")


def test_labels_follow_the_names_of_classes(hub):
    """The hub may have the classes in another order."""
    hub[1]["rows"] = rows(PAIR, [0, 1, 1], names=["not_entailment", "entailment"])
    assert [label for _, label in read_examples(TASKS["rte"], "train", None)] == [1, 0, 0]
    hub[1]["rows"] = rows(("sentence",), [0, 1, 1], names=["negative", "positive"])
    assert [label for _, label in read_examples(TASKS["sst2"], "train", None)] == [0, 1, 1]


def test_errors_name_the_local_files(hub, monkeypatch):
    _, answer = hub
    files = r"MNLI/\{train,dev_matched,dev_mismatched\}\.tsv .*data\.path=<folder>"
    answer["error"] = ConnectionError("Couldn't reach the Hub\nat all")
    with pytest.raises(LunaError, match=r"\(Couldn't reach the Hub\): try again, .*" + files):
        read_examples(TASKS["mnli"], "train", None)
    del answer["error"]
    answer["rows"] = rows(PAIR, [0])
    with pytest.raises(LunaError, match=r"'mnli' cannot be loaded .*'premise'"):
        read_examples(TASKS["mnli"], "train", None)
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(LunaError, match="pip install datasets, or give a folder with " + files):
        read_examples(TASKS["mnli"], "train", None)
