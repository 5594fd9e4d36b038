"""The eight GLUE tasks of the published tables: from the Hugging Face hub, or from TSVs in their
original layout.

The files are `<folder>/<TASK>/train.tsv` and so on, as the benchmark distributes them (plain or
.xz). Fields are split at tabs and quotes mean nothing: a reader that interprets them swallows whole
lines.
"""

from __future__ import annotations

import lzma
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from luna.base import LunaError
from luna.convert import hub, metrics
from luna.convert.host import transformers
from luna.convert.layers import position_limit
from luna.convert.recipe import Recipe
from luna.convert.tasks import HELD_OUT, hold_out, unnamed

BINARY = ("0", "1")
ENTAILMENT = ("entailment", "not_entailment")


@dataclass(frozen=True)
class Glue:
    name: str
    folder: str
    text: tuple[str, ...]  # columns of the sentence or the pair
    label: str
    labels: tuple[str, ...] | None  # None: a number, regression
    metric: metrics.Metric
    header: tuple[str, ...] | None = None  # of files that begin with data
    hub: tuple[str, ...] | None = None  # columns on the hub, where they have other names
    evaluate: tuple[str, ...] = ("dev",)  # the first one is reported, and selects
    skip_short: bool = False  # rows that the benchmark's own files have cut off

    auto_model = "AutoModelForSequenceClassification"
    files = "config.json, tokenizer and safetensors"

    def processor(self, source: str) -> Any:
        return transformers().AutoTokenizer.from_pretrained(source)

    def classes(self, data: str | Path | None) -> tuple[str, ...] | None:
        return self.labels

    def fingerprint(self, data: str | Path | None) -> str | None:
        return None

    def check_head(self, names: Sequence[str], data: str | Path | None) -> None:
        # The hub's MNLI models come in every order; binary tasks have numbers for names.
        given = tuple(name.lower().replace("-", "_") for name in names)
        own = self.labels
        if own in (None, BINARY) or unnamed(names) or own == given:
            return
        raise LunaError(
            f"the checkpoint's classes are {', '.join(names)}, those of '{self.name}' are "
            f"{', '.join(own or ())}, in this order: give a model finetuned on it"
        )

    def open(self, data: str | Path | None, processor: Any, recipe: Recipe, *, seed: int) -> Texts:
        return Texts(self, data, processor, recipe, seed)


PAIR = ("sentence1", "sentence2")
_TASKS = (
    Glue(
        "cola",
        "CoLA",
        ("sentence",),
        "label",
        BINARY,
        metrics.acceptable,
        header=("source", "label", "mark", "sentence"),
    ),
    Glue("sst2", "SST-2", ("sentence",), "label", BINARY, metrics.classified),
    Glue(
        "mrpc",
        "MRPC",
        ("#1 String", "#2 String"),
        "Quality",
        BINARY,
        metrics.paraphrase,
        hub=PAIR,
    ),
    Glue("stsb", "STS-B", PAIR, "score", None, metrics.similarity),
    Glue(
        "qqp",
        "QQP",
        ("question1", "question2"),
        "is_duplicate",
        BINARY,
        metrics.paraphrase,
        skip_short=True,
    ),
    Glue(
        "mnli",
        "MNLI",
        PAIR,
        "gold_label",
        ("entailment", "neutral", "contradiction"),
        metrics.classified,
        hub=("premise", "hypothesis"),
        evaluate=("dev_matched", "dev_mismatched"),
    ),
    Glue("qnli", "QNLI", ("question", "sentence"), "label", ENTAILMENT, metrics.classified),
    Glue("rte", "RTE", PAIR, "label", ENTAILMENT, metrics.classified),
)
TASKS = {task.name: task for task in _TASKS}


@dataclass(frozen=True)
class Examples:
    """Sentences or pairs with their labels (int64 classes or float32 scores)."""

    texts: list[tuple[str, ...]]
    labels: Tensor

    def __len__(self) -> int:
        return len(self.texts)

    def first(self, n: int | None) -> Examples:
        return Examples(self.texts[:n], self.labels[:n])

    def pick(self, which: Sequence[int]) -> Examples:
        return Examples([self.texts[i] for i in which], self.labels[list(which)])


class Texts:
    """One run's examples of a task, tokenised."""

    loss = None

    def __init__(
        self, spec: Glue, data: str | Path | None, tokenizer: Any, recipe: Recipe, seed: int
    ):
        self.tokenizer, self.recipe, self.seed = tokenizer, recipe, seed
        self.examples = read(spec, "train", data).first(recipe.train_examples)
        scored = {split: read(spec, split, data) for split in spec.evaluate}
        if recipe.select == "train_split":
            ours, held_out = hold_out(len(self.examples))
            scored[HELD_OUT] = self.examples.pick(held_out)
            self.examples = self.examples.pick(ours)
        self.labels = {split: each.labels for split, each in scored.items()}
        self.n_train = len(self.examples)
        size = min(32, 4 * recipe.batch)  # so that a smaller batch helps where memory runs out
        self.scored = {
            split: batches(each, tokenizer, size=size, max_length=recipe.max_length)
            for split, each in scored.items()
        }

    def train(self, epoch: int) -> list[Mapping[str, Tensor]]:
        return batches(
            self.examples,
            self.tokenizer,
            size=self.recipe.batch,
            max_length=self.recipe.max_length,
            seed=10_000 * self.seed + epoch,
        )

    def evaluation(self, split: str) -> list[Mapping[str, Tensor]]:
        return self.scored[split]

    def check(self, model: nn.Module) -> None:
        limit = position_limit(model)
        if self.recipe.max_length > limit:
            raise LunaError(
                f"texts of up to {self.recipe.max_length} tokens (recipe.max_length) are longer "
                f"than the model's {limit} positions: recipe.max_length={limit}"
            )


def read(spec: Glue, split: str, data: str | Path | None) -> Examples:
    """The examples of `data/<TASK>/<split>.tsv` (or .tsv.xz), or the hub's if data is None."""
    if data is None:
        texts, labels = hub.glue(
            spec.name, split, spec.hub or spec.text, spec.labels, files=layout(spec)
        )
    else:
        texts, labels = _parse(spec, _find(spec, split, Path(data)))
    kind = torch.float32 if spec.labels is None else torch.int64
    return Examples(texts, torch.tensor(labels, dtype=kind))


def layout(spec: Glue) -> str:
    """Where the task's files are expected, below the folder of the data."""
    return f"{spec.folder}/{{{','.join(('train', *spec.evaluate))}}}.tsv"


def batches(
    examples: Examples,
    tokenizer: Any,
    *,
    size: int,
    max_length: int = 128,
    seed: int | None = None,
) -> list[Mapping[str, Tensor]]:
    """Tokenised and padded batches of texts of similar length. With a seed their order and make-up
    are drawn from it; without, examples come in their own order (for evaluation)."""
    encoded = tokenizer(
        [t[0] for t in examples.texts],
        [t[1] for t in examples.texts] if len(examples.texts[0]) == 2 else None,
        truncation=True,
        max_length=max_length,
    )
    lengths = [len(ids) for ids in encoded["input_ids"]]
    out: list[Mapping[str, Tensor]] = []
    for part in _parts(lengths, size, seed):
        rows = {key: [column[i] for i in part] for key, column in encoded.items()}
        batch = dict(tokenizer.pad(rows, return_tensors="pt"))
        out.append(batch | {"labels": examples.labels[part]})
    return out


def _parts(lengths: list[int], size: int, seed: int | None) -> list[list[int]]:
    n = len(lengths)
    if seed is None:
        return [list(range(i, min(i + size, n))) for i in range(0, n, size)]
    g = torch.Generator().manual_seed(seed)
    order = torch.randperm(n, generator=g).tolist()
    pool = 32 * size  # sorting all of it would give every epoch the same batches
    order = [
        i
        for start in range(0, n, pool)
        for i in sorted(order[start : start + pool], key=lambda j: lengths[j])
    ]
    parts = [order[i : i + size] for i in range(0, n, size)]
    return [parts[i] for i in torch.randperm(len(parts), generator=g).tolist()]


def _find(spec: Glue, split: str, data: Path) -> Path:
    for suffix in (".tsv", ".tsv.xz"):
        path = data / spec.folder / f"{split}{suffix}"
        if path.is_file():
            return path
    raise LunaError(
        f"there is no {data / spec.folder / split}.tsv: put GLUE's {spec.folder} folder "
        f"({layout(spec)}; gluebenchmark.com/tasks) into {data}"
    )


def _parse(spec: Glue, path: Path) -> tuple[list[tuple[str, ...]], list[float]]:
    rows = _rows(path)
    header = spec.header or next(rows, (0, []))[1]
    place = {column: i for i, column in enumerate(header)}
    missing = [c for c in (*spec.text, spec.label) if c not in place]
    if missing:
        raise LunaError(
            f"{path} has no column {', '.join(map(repr, missing))}: its first line is "
            f"{list(header)}; give GLUE's own {spec.folder}/{path.name}"
        )
    texts: list[tuple[str, ...]] = []
    labels: list[float] = []
    for number, row in rows:
        if len(row) != len(header):
            if spec.skip_short and len(row) < len(header):
                continue
            raise LunaError(
                f"{path} line {number} has {len(row)} columns instead of {len(header)}: the file "
                "is damaged"
            )
        texts.append(tuple(row[place[c]] for c in spec.text))
        labels.append(_label(spec, row[place[spec.label]], f"{path} line {number}"))
    if not texts:
        raise LunaError(f"{path} holds no examples")
    return texts, labels


def _rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Line numbers and fields. MRPC begins with a byte order mark."""
    opened = lzma.open if path.suffix == ".xz" else open
    try:
        with opened(path, "rt", encoding="utf-8-sig", newline="\n") as file:  # type: ignore[operator]
            for number, line in enumerate(file, 1):
                yield number, line.rstrip("\r\n").split("\t")
    except (UnicodeDecodeError, lzma.LZMAError, EOFError) as error:
        raise LunaError(f"{path} cannot be read: {error}") from error


def _label(spec: Glue, given: str, where: str) -> float:
    if spec.labels is None:
        try:
            return float(given)
        except ValueError:
            raise LunaError(f"{where}: the score must be a number, got {given!r}") from None
    if given not in spec.labels:
        raise LunaError(f"{where}: the label must be {' or '.join(spec.labels)}, got {given!r}")
    return spec.labels.index(given)
