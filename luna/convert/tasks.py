"""The eight GLUE tasks of the published tables, read from TSVs in their original layout.

`<folder>/<TASK>/train.tsv` and so on, as the benchmark distributes them (plain or .xz). Fields are
split at tabs and quotes mean nothing: a reader that interprets them swallows whole lines.
"""

from __future__ import annotations

import lzma
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from luna.base import LunaError, nearest
from luna.convert import metrics
from luna.convert.batches import forward

BINARY = ("0", "1")
ENTAILMENT = ("entailment", "not_entailment")


@dataclass(frozen=True)
class Task:
    folder: str
    text: tuple[str, ...]  # columns of the sentence or the pair
    label: str
    labels: tuple[str, ...] | None  # None: a number, regression
    metric: metrics.Metric
    header: tuple[str, ...] | None = None  # of files that begin with data
    evaluate: tuple[str, ...] = ("dev",)  # the first one selects
    skip_short: bool = False  # rows that the benchmark's own files have cut off

    @property
    def n_labels(self) -> int:
        return 1 if self.labels is None else len(self.labels)


PAIR = ("sentence1", "sentence2")
TASKS: dict[str, Task] = {
    "cola": Task(
        "CoLA",
        ("sentence",),
        "label",
        BINARY,
        metrics.acceptable,
        header=("source", "label", "mark", "sentence"),
    ),
    "sst2": Task("SST-2", ("sentence",), "label", BINARY, metrics.classified),
    "mrpc": Task("MRPC", ("#1 String", "#2 String"), "Quality", BINARY, metrics.paraphrase),
    "stsb": Task("STS-B", PAIR, "score", None, metrics.similarity),
    "qqp": Task(
        "QQP",
        ("question1", "question2"),
        "is_duplicate",
        BINARY,
        metrics.paraphrase,
        skip_short=True,
    ),
    "mnli": Task(
        "MNLI",
        PAIR,
        "gold_label",
        ("entailment", "neutral", "contradiction"),
        metrics.classified,
        evaluate=("dev_matched", "dev_mismatched"),
    ),
    "qnli": Task("QNLI", ("question", "sentence"), "label", ENTAILMENT, metrics.classified),
    "rte": Task("RTE", PAIR, "label", ENTAILMENT, metrics.classified),
}


@dataclass(frozen=True)
class Examples:
    """Sentences or pairs with their labels (int64 classes or float32 scores)."""

    texts: list[tuple[str, ...]]
    labels: Tensor

    def __len__(self) -> int:
        return len(self.texts)

    def first(self, n: int) -> Examples:
        return Examples(self.texts[:n], self.labels[:n])


def task(name: str) -> Task:
    if name == "wnli":
        raise LunaError("WNLI is left out, as in the published tables: its dev set is adversarial")
    if name not in TASKS:
        raise LunaError(f"unknown task '{name}'{nearest(name, TASKS)}")
    return TASKS[name]


def read(name: str, split: str, data: str | Path) -> Examples:
    """The examples of `data/<TASK>/<split>.tsv` (or .tsv.xz)."""
    spec = task(name)
    path = _find(spec, split, Path(data))
    rows = _rows(path)
    header = spec.header or next(rows, (0, []))[1]
    place = {column: i for i, column in enumerate(header)}
    missing = [c for c in (*spec.text, spec.label) if c not in place]
    if missing:
        raise LunaError(
            f"{path} has no column {', '.join(map(repr, missing))}: its first line is "
            f"{list(header)}; give GLUE's own {spec.folder}/{split}.tsv"
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
    kind = torch.float32 if spec.labels is None else torch.int64
    return Examples(texts, torch.tensor(labels, dtype=kind))


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


def predict(model: nn.Module, batches: Sequence[Mapping[str, Tensor]]) -> Tensor:
    """One answer for each example, in order: the class, or the number of a regression."""
    found = []
    with torch.no_grad():
        for batch in batches:
            logits = forward(model, batch).logits.float().cpu()
            found.append(logits.squeeze(-1) if logits.shape[-1] == 1 else logits.argmax(-1))
    return torch.cat(found)


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


def _find(spec: Task, split: str, data: Path) -> Path:
    for suffix in (".tsv", ".tsv.xz"):
        path = data / spec.folder / f"{split}{suffix}"
        if path.is_file():
            return path
    files = ", ".join(f"{s}.tsv" for s in ("train", *spec.evaluate))
    raise LunaError(
        f"there is no {data / spec.folder / split}.tsv: put GLUE's {spec.folder} folder ({files}; "
        f"gluebenchmark.com/tasks) into {data}"
    )


def _rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Line numbers and fields. MRPC begins with a byte order mark."""
    opened = lzma.open if path.suffix == ".xz" else open
    try:
        with opened(path, "rt", encoding="utf-8-sig", newline="\n") as file:  # type: ignore[operator]
            for number, line in enumerate(file, 1):
                yield number, line.rstrip("\r\n").split("\t")
    except (UnicodeDecodeError, lzma.LZMAError, EOFError) as error:
        raise LunaError(f"{path} cannot be read: {error}") from error


def _label(spec: Task, given: str, where: str) -> float:
    if spec.labels is None:
        try:
            return float(given)
        except ValueError:
            raise LunaError(f"{where}: the score must be a number, got {given!r}") from None
    if given not in spec.labels:
        raise LunaError(f"{where}: the label must be {' or '.join(spec.labels)}, got {given!r}")
    return spec.labels.index(given)
