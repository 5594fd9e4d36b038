"""Tasks that are not ours: registered classes, installed packages, data in memory."""

from __future__ import annotations

import importlib.metadata
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lra
from lra import data
from lra.base import code, groups
from lra.base.errors import UserError
from lra.data import registry
from lra.data.prepare import find_or_prepare
from lra.report.specs import TableSpec
from lra.report.trainings import build
from lra.results.frame import frame_of

from ..conftest import SMALL, command

SETTINGS = [word for word in SMALL if not word.startswith(("task", "protocol.data"))]

MODULE = """
from dataclasses import dataclass
import numpy as np
from lra import data

@dataclass
class Options(data.TaskOptions):
    n: int = 40
    odd: bool = True

class Parity(data.Task):
    name = "parity"
    classes, vocab, max_length = 2, 3, 8
    settings = {"steps": 4, "every": 2, "warmup": 1, "batch": 4}
    Options = Options

    def splits(self, options, job):
        rows = np.random.default_rng(0).integers(1, 3, (3, options.n, 8))
        return [
            data.RawSplit(s, [data.Example(x, self.label(x, options)) for x in xs], len(xs))
            for s, xs in zip(("train", "val", "test"), rows)
        ]

    def label(self, x, options):
        return int((x == 2).sum() + options.odd) % 2
"""


@pytest.fixture(autouse=True)
def forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """No task that a test registers is known to the next."""
    monkeypatch.setattr(registry.TASKS, "added", {})


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """installed(source): a package whose entry point declares the task `parity`."""
    monkeypatch.syspath_prepend(tmp_path)
    entry = importlib.metadata.EntryPoint(
        "parity", "parity_task:Parity", registry.TASKS.entry_points
    )
    monkeypatch.setattr(groups, "installed", lambda _: {"parity": entry})

    def write(source: str = MODULE) -> None:
        (tmp_path / "parity_task.py").write_text(source, encoding="utf-8")
        sys.modules.pop("parity_task", None)
        code.find_source.cache_clear()
        registry.TASKS.added.clear()

    yield write
    sys.modules.pop("parity_task", None)


def test_a_task_imports_no_other():
    code = (
        "import sys, lra, lra.training.run\n"
        "lra.compose(['task=listops', 'attention=softmax'])\n"
        "print(*sorted(m for m in sys.modules if m.startswith('lra.data.')))"
    )
    done = command("-c", code)
    assert "lra.data.listops.task" in done.stdout.split(), done.stderr
    others = ("image", "text", "retrieval", "pathfinder", "recall", "probes", "sources.tfds")
    assert not [m for m in done.stdout.split() if m.removeprefix("lra.data.").startswith(others)]


def test_a_builtin_task_is_where_it_is_said_to_be():
    assert {name: task.name for name, task in data.builtin_tasks().items()} == {
        name: name for name in registry.BUILTIN
    }


def composed(tmp_path: Path, *words: str) -> Any:
    places = [f"data_dir={tmp_path / 'data'}", f"runs_dir={tmp_path / 'runs'}"]
    return lra.compose([*SETTINGS, *places, *words])


def test_an_installed_task_is_like_ours(
    installed: Callable[..., None], tmp_path: Path, lra_data: Callable[..., tuple[int, str, str]]
):
    """Its options, defaults and settings; training, loading, records, tables, `lra data`."""
    installed()
    run = composed(tmp_path, "task=parity", "task.n=24", "compute=report")
    assert run.protocol.recipe.batch == 8  # the command's wins
    assert (run.task.n, run.task.odd, run.task.source) == (24, True, "own")
    assert (run.protocol.data.vocab, run.protocol.data.pad_to) == (3, 8)
    plain = lra.compose(["task=parity"])
    assert (plain.protocol.recipe.batch, plain.protocol.recipe.lr) == (4, 1e-3)  # own, others
    record = lra.train(run)
    assert record["task"] == "parity"
    again = lra.load(record, data_dir=run.data_dir).evaluate()
    assert again.digests() == {key: record[f"answers.{key}"] for key in again.digests()}
    assert lra.load(record).predict([[1, 2, 2]]).classes.shape == (1,)
    table = build(TableSpec(name="t", title="T"), frame_of(lra.records(tmp_path / "runs")))
    assert table.columns == ["parity"]
    for words in (["verify", "parity"], ["show", "parity", "n=24"]):
        code, _, err = lra_data(*words)
        assert (code, err) == (0, "")
    assert "parity" in lra_data("list")[1]
    with pytest.raises(UserError, match=r"'task\.m' is not a setting|'m' is not a setting"):
        composed(tmp_path, "task=parity", "task.m=3")


def test_changed_code_is_other_data(installed: Callable[..., None], tmp_path: Path):
    prints = []
    for source in (MODULE, "# a comment\n" + MODULE, MODULE.replace("== 2", "== 1")):
        installed(source)
        prepared = find_or_prepare(data.configure("parity"), max_length=8, data_dir=tmp_path)
        prints.append(prepared.fingerprint)
    assert prints[0] == prints[1] != prints[2]


def test_a_subclass_has_its_own_code_and_its_parents():
    @data.register
    class First(data.Task):
        name, classes, vocab, max_length = "first", 2, 3, 4

    @data.register
    class Second(First):
        name = "second"

    @data.register
    class Third(Second):
        name, encoding = "third", {**Second.encoding, "words": "1"}

    first, second, third = (cls.encoding["code"] for cls in (First, Second, Third))
    assert second.startswith(first)
    assert third.startswith(second)
    assert len({first, second, third}) == 3
    assert data.register(Third).encoding["code"] == third


def test_the_code_of_a_class_in_a_notebook_is_its_functions_and_constants(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(code, "find_source", lambda module: None)

    def one(self):
        return 1

    def two(self):
        return 2

    def digest(**content: Any) -> str:
        return registry._hash_class(type("Mine", (), content))

    first = digest(n=4, read=one)
    assert digest(n=4, read=one) == first
    kinds = (staticmethod, classmethod, property)
    changed = [digest(n=5, read=one), digest(n=4, read=two)]
    assert first not in changed + [digest(n=4, read=kind(two)) for kind in kinds]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": "Parity"}, "lower-case letters"),
        ({"name": "a" * 101}, "at most 100"),  # no record could hold it
        ({"name": "listops"}, "there is a task 'listops' already"),
        ({"vocab": None}, "lacks vocab"),
        ({"Options": int}, "must be a dataclass"),
    ],
)
def test_what_a_class_lacks_is_said(change: dict[str, Any], message: str):
    facts = {"name": "mine", "classes": 2, "vocab": 3, "max_length": 4} | change
    facts = {key: value for key, value in facts.items() if value is not None}
    with pytest.raises(UserError, match=message):
        data.register(type("Mine", (data.Task,), facts))


def test_a_wrong_setting_and_a_broken_package_are_named(
    installed: Callable[..., None], tmp_path: Path
):
    installed(MODULE.replace('"steps"', '"stebs"'))
    with pytest.raises(UserError, match=r"Parity\.settings: 'stebs' .* did you mean steps"):
        lra.compose(["task=parity"])
    installed("import nothing_of_that_name\n")
    with pytest.raises(UserError, match="task 'parity' of parity_task:Parity cannot be imported"):
        lra.compose(["task=parity"])


# ---------------------------------------------------------------------- data in memory


def trained(tmp_path: Path, name: str, *words: str) -> Any:
    steps = ["protocol.recipe.steps=2", "protocol.evaluation.every=2"]
    return lra.train(composed(tmp_path, f"task={name}", *steps, *words))


def test_texts_are_bytes_and_a_tenth_is_held_out(tmp_path: Path):
    texts = [f"review {i} é" for i in range(40)]
    data.from_arrays("reviews", (texts, [i % 2 for i in range(40)]))
    record = trained(tmp_path, "reviews")
    assert record["data.examples"] == {"train": 32, "val": 4, "test": 4}
    prepared = find_or_prepare(data.configure("reviews"), max_length=0, data_dir=tmp_path / "data")
    kept = []
    for name in ("train", "val", "test"):
        split = prepared.split(name)
        index = np.arange(len(split))
        rows = zip(split.ids(index), split.lengths(index), split.labels, strict=True)
        kept += [(data.get("reviews").decode(ids[:n]), int(y)) for ids, n, y in rows]
    assert sorted(kept) == sorted(zip(texts, [i % 2 for i in range(40)], strict=True))
    assert lra.load(record).predict(["a review", "é"]).classes.shape == (2,)


def test_pairs_tokens_and_pictures(tmp_path: Path):
    rng = np.random.default_rng(0)
    pairs = [(rng.integers(1, 9, 5), rng.integers(1, 9, 7)) for _ in range(30)]
    data.from_arrays("twins", (pairs, [0, 1] * 15))
    assert trained(tmp_path, "twins")["data.examples"]["train"] == 24
    tokens = [rng.integers(1, 5, 6) for _ in range(30)]
    data.from_arrays("tags", (tokens, [list(x % 2) for x in tokens]), targets="tokens")
    record = trained(tmp_path, "tags")  # labels of tokens are not pooled, whatever the protocol
    assert record.stage["scored"] == 6 * record.stage["examples"]
    pictures = rng.integers(0, 256, (30, 4, 6), dtype=np.uint8)
    data.from_arrays("stamps", (pictures, [0, 1, 2] * 10), grid=(4, 6))
    assert trained(tmp_path, "stamps", "protocol.data.mask=none")["compute.parameters"] > 0


def test_a_dataset_of_columns(tmp_path: Path):
    """What `datasets` gives: a mapping of splits to columns; hidden labels of a test set are -1."""

    def split(n: int, label: int | None = None) -> dict[str, list[Any]]:
        labels = [i % 2 if label is None else label for i in range(n)]
        return {"a": [f"a {i}" for i in range(n)], "b": ["b"] * n, "label": labels}

    given = {"train": split(30), "validation": split(6), "test": split(6, -1)}
    data.from_hf("glued", given, text=("a", "b"), settings={"batch": 4})
    record = trained(tmp_path, "glued")
    assert record["data.examples"] == {"train": 27, "val": 6, "test": 3}
    with pytest.raises(UserError, match="split train has no column 'c'"):
        data.from_hf("glued", given, text="c")
    with pytest.raises(UserError, match="test has 0 examples and 0 labels: give as many of both"):
        data.from_hf("glued", given | {"test": split(0)}, text="a")
    named = {"text": ["a", "b"], "label": ["good", "bad"]}
    with pytest.raises(UserError, match="labels must be whole numbers"):
        data.from_hf("glued", {"train": named})


@pytest.mark.parametrize(
    ("train", "message"),
    [
        (([[1], [2]], [0]), "train has 2 examples and 1 labels"),
        (([[1], [-2]] * 9, [0, 1] * 9), "whole numbers from 0 on"),
        (([[1], [2]], [0, 1]), "too few"),
        (([[], [2]] * 9, [0, 1] * 9), "whole numbers from 0 on"),
        (([[[1], [2]], [[1], [2], [3]]] * 9, [0, 1] * 9), "an example is no pair"),
        (([[1], [2]] * 9, ["good", "bad"] * 9), "labels must be whole numbers"),
        (([[1, 2], [2, 3]] * 9, [[0], [1]] * 9), "more or fewer labels than ids"),
        (([[1], "a"] * 9, [0, 1] * 9), "texts and ids are mixed"),
        ((["a", "\ud800"] * 9, [0, 1] * 9), "a text holds half of a character"),
        (([[1], [2]] * 9, [0, [1]] * 9), "every example one label, or every one a list"),
    ],
)
def test_what_cannot_be_examples_is_refused(train: Any, message: str):
    with pytest.raises(UserError, match=message):
        data.from_arrays("wrong", train)


def test_pictures_of_another_size_than_the_grid_are_refused(tmp_path: Path):
    colours = [np.full((4, 4, 3), i) for i in range(20)]  # are 48 numbers, and no grey picture
    data.from_arrays("rgb", (colours, [0, 1] * 10), grid=(4, 4))
    with pytest.raises(UserError, match="an image of train has 48 pixels; rgb has 16"):
        trained(tmp_path, "rgb")
