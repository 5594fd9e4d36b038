"""The eight GLUE tasks of the published tables, from the Hugging Face hub or from local TSV files.

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
from luna.convert.host import transformers
from luna.convert.layers import position_limit
from luna.convert.recipe import ConversionRecipe
from luna.convert.tasks import hub, metrics
from luna.convert.tasks.base import (
    ConversionData,
    ConversionTask,
    Example,
    are_numbers,
    labels_of,
    split_into_batches,
)

BINARY = ("0", "1")
ENTAILMENT = ("entailment", "not_entailment")
PAIR = ("sentence1", "sentence2")


@dataclass(frozen=True)
class Glue(ConversionTask):
    name: str
    folder: str
    text: tuple[str, ...]  # columns of the sentence or the pair
    label: str
    labels: tuple[str, ...] | None  # None: a regression
    metric: metrics.Metric
    header: tuple[str, ...] | None = None  # for files without a header line
    hub: tuple[str, ...] | None = None  # columns of the text on the hub, where they differ
    evaluate: tuple[str, ...] = ("dev",)  # the first one gives the result
    skip_short: bool = False  # whether the benchmark's own files have rows that are cut off

    auto_model = "AutoModelForSequenceClassification"
    files = "config.json, tokenizer and safetensors"

    def processor(self, source: str) -> Any:
        return transformers().AutoTokenizer.from_pretrained(source)

    def classes(self, data: str | Path | None) -> tuple[str, ...] | None:
        return self.labels

    def check_head(self, names: Sequence[str], data: str | Path | None) -> None:
        # The hub's MNLI models come in every order; binary tasks have numbers for names.
        lowered = tuple(name.lower().replace("-", "_") for name in names)
        classes = self.labels
        if classes in (None, BINARY) or are_numbers(names) or classes == lowered:
            return
        raise LunaError(
            f"the checkpoint's classes are {', '.join(names)}, those of '{self.name}' are "
            f"{', '.join(classes or ())}, in this order: give a model finetuned on it"
        )

    def open(
        self, data: str | Path | None, processor: Any, recipe: ConversionRecipe, *, seed: int
    ) -> Texts:
        return Texts(self, data, processor, recipe, seed)


_COLA_HEADER = ("source", "label", "mark", "sentence")
_NLI = ("entailment", "neutral", "contradiction")
_BOTH = ("dev_matched", "dev_mismatched")
# Name, folder, columns of the text, column of the label, classes, metric.
_COLA = Glue(
    "cola", "CoLA", ("sentence",), "label", BINARY, metrics.acceptable, header=_COLA_HEADER
)
_SST2 = Glue("sst2", "SST-2", ("sentence",), "label", BINARY, metrics.classified)
_MRPC = Glue(
    "mrpc", "MRPC", ("#1 String", "#2 String"), "Quality", BINARY, metrics.paraphrase, hub=PAIR
)
_STSB = Glue("stsb", "STS-B", PAIR, "score", None, metrics.similarity)
_QQP = Glue(
    "qqp",
    "QQP",
    ("question1", "question2"),
    "is_duplicate",
    BINARY,
    metrics.paraphrase,
    skip_short=True,
)
_MNLI = Glue(
    "mnli",
    "MNLI",
    PAIR,
    "gold_label",
    _NLI,
    metrics.classified,
    hub=("premise", "hypothesis"),
    evaluate=_BOTH,
)
_QNLI = Glue("qnli", "QNLI", ("question", "sentence"), "label", ENTAILMENT, metrics.classified)
_RTE = Glue("rte", "RTE", PAIR, "label", ENTAILMENT, metrics.classified)
TASKS = {task.name: task for task in (_COLA, _SST2, _MRPC, _STSB, _QQP, _MNLI, _QNLI, _RTE)}


class Texts(ConversionData):
    """Sentences or pairs, tokenised."""

    def __init__(
        self,
        spec: Glue,
        data: str | Path | None,
        tokenizer: Any,
        recipe: ConversionRecipe,
        seed: int,
    ):
        train = read(spec, "train", data)
        super().__init__(train, {s: read(spec, s, data) for s in spec.evaluate}, recipe, seed)
        self.tokenizer = tokenizer
        size = min(32, 4 * recipe.batch)  # so that a smaller batch helps where memory runs out
        self.evaluations = {
            split: batches(examples, tokenizer, size=size, max_length=recipe.max_length)
            for split, examples in self.scored.items()
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
        return self.evaluations[split]

    def check(self, model: nn.Module) -> None:
        limit = position_limit(model)
        if self.recipe.max_length > limit:
            raise LunaError(
                f"texts of up to {self.recipe.max_length} tokens (recipe.max_length) are longer "
                f"than the model's {limit} positions: recipe.max_length={limit}"
            )


def batches(
    examples: Sequence[Example],
    tokenizer: Any,
    *,
    size: int,
    max_length: int = 128,
    seed: int | None = None,
) -> list[Mapping[str, Tensor]]:
    """Tokenised and padded batches. With a seed they are drawn from it and hold texts of similar
    length; without, examples keep their order."""
    texts = [text for text, _ in examples]
    encoded = tokenizer(
        [text[0] for text in texts],
        [text[1] for text in texts] if len(texts[0]) == 2 else None,
        truncation=True,
        max_length=max_length,
    )
    lengths = [len(ids) for ids in encoded["input_ids"]]
    in_order = split_into_batches(range(len(texts)), size)
    out: list[Mapping[str, Tensor]] = []
    for part in in_order if seed is None else _draw(lengths, size, seed):
        rows = {key: [column[i] for i in part] for key, column in encoded.items()}
        batch = dict(tokenizer.pad(rows, return_tensors="pt"))
        out.append(batch | {"labels": labels_of([examples[i] for i in part])})
    return out


def _draw(lengths: list[int], size: int, seed: int) -> list[list[int]]:
    """Random batches of similar length, in random order."""
    g = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(lengths), generator=g).tolist()
    pool = 32 * size  # sorting all of it would give every epoch the same batches
    order = [
        i
        for start in range(0, len(order), pool)
        for i in sorted(order[start : start + pool], key=lambda j: lengths[j])
    ]
    parts = split_into_batches(order, size)
    return [parts[i] for i in torch.randperm(len(parts), generator=g).tolist()]


# ---------------------------------------------------------------------- reading


def read(spec: Glue, split: str, data: str | Path | None) -> list[Example]:
    """The examples of `data/<TASK>/<split>.tsv` (or .tsv.xz), or the hub's if data is None."""
    if data is None:
        return hub.glue(spec.name, split, spec.hub or spec.text, spec.labels, files=layout(spec))
    return _parse(spec, _find(spec, split, Path(data)))


def layout(spec: Glue) -> str:
    """Where the task's files are expected, below the data's folder."""
    return f"{spec.folder}/{{{','.join(('train', *spec.evaluate))}}}.tsv"


def _find(spec: Glue, split: str, data: Path) -> Path:
    for suffix in (".tsv", ".tsv.xz"):
        path = data / spec.folder / f"{split}{suffix}"
        if path.is_file():
            return path
    raise LunaError(
        f"{data / spec.folder / split}.tsv is missing: put GLUE's {spec.folder} folder "
        f"({layout(spec)}; gluebenchmark.com/tasks) into {data}"
    )


def _parse(spec: Glue, path: Path) -> list[Example]:
    rows = _rows(path)
    header = spec.header or next(rows, (0, []))[1]
    place = {column: i for i, column in enumerate(header)}
    missing = [c for c in (*spec.text, spec.label) if c not in place]
    if missing:
        raise LunaError(
            f"{path} has no column {', '.join(map(repr, missing))}: its first line is "
            f"{str(list(header))[:200]}; give GLUE's own {spec.folder}/{path.name}"
        )
    examples: list[Example] = []
    for number, row in rows:
        where = f"{path} line {number}"
        if len(row) == len(header):
            text = tuple(row[place[c]] for c in spec.text)
            examples.append((text, _label(spec, row[place[spec.label]], where)))
        elif len(row) > len(header) or not spec.skip_short:
            raise LunaError(
                f"{where} has {len(row)} columns instead of {len(header)}: the file is damaged, "
                "get it again"
            )
    if not examples:
        raise LunaError(f"{path} contains no examples: get the file again")
    return examples


def _rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Line numbers and fields. MRPC's files begin with a byte order mark."""
    opened = lzma.open if path.suffix == ".xz" else open
    try:
        with opened(path, "rt", encoding="utf-8-sig", newline="\n") as file:  # type: ignore[operator]
            for number, line in enumerate(file, 1):
                yield number, line.rstrip("\r\n").split("\t")
    except (UnicodeDecodeError, lzma.LZMAError, EOFError) as error:
        raise LunaError(f"{path} cannot be read ({error}): get the file again") from error


def _label(spec: Glue, given: str, where: str) -> float:
    if spec.labels is None:
        try:
            return float(given)
        except ValueError:
            raise LunaError(f"{where}: the score must be a number, got {given[:40]!r}") from None
    if given not in spec.labels:
        raise LunaError(
            f"{where}: the label must be {' or '.join(spec.labels)}, got {given[:40]!r}"
        )
    return spec.labels.index(given)
