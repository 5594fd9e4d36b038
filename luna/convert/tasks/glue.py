"""The eight GLUE tasks of the published tables.

The files are `<folder>/<TASK>/train.tsv` and so on, as the benchmark distributes them (plain or
.xz). Fields are split at tabs and quotes mean nothing: a reader that interprets them swallows whole
lines. Without a folder the package `datasets` gets them from the Hugging Face hub.
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
from luna.convert.tasks import metrics
from luna.convert.tasks.base import (
    ConversionData,
    ConversionTask,
    Example,
    labels_of,
    split_into_batches,
)

PAIR = ("sentence1", "sentence2")
BINARY = ("0", "1")
ENTAILMENT = ("entailment", "not_entailment")
REPOSITORY = "nyu-mll/glue"  # on the Hugging Face hub


@dataclass(frozen=True)
class Glue(ConversionTask):
    name: str
    folder: str
    text: tuple[str, ...] = ("sentence",)  # columns of the sentence or the pair
    label: str = "label"
    labels: tuple[str, ...] | None = BINARY  # None: a regression
    metric: metrics.Metric = metrics.classified
    header: tuple[str, ...] | None = None  # for files without a header line
    hub: tuple[str, ...] | None = None  # columns of the text on the hub, where they differ
    evaluate: tuple[str, ...] = ("dev",)  # the first one gives the result
    skip_short: bool = False  # the benchmark's own files have rows that are cut off

    auto_model = "AutoModelForSequenceClassification"
    files = "config.json, tokenizer and safetensors"

    @property
    def layout(self) -> str:
        """Names of the task's files, below the data's folder."""
        return f"{self.folder}/{{{','.join(('train', *self.evaluate))}}}.tsv"

    def processor(self, source: str) -> Any:
        return transformers().AutoTokenizer.from_pretrained(source, trust_remote_code=False)

    def classes(self, data: str | Path | None) -> tuple[str, ...] | None:
        return self.labels

    def open(
        self, data: str | Path | None, processor: Any, recipe: ConversionRecipe, *, seed: int
    ) -> Texts:
        return Texts(self, data, processor, recipe, seed)


_MNLI = ("entailment", "neutral", "contradiction")
_COLA = ("source", "label", "mark", "sentence")
_DEV = ("dev_matched", "dev_mismatched")
TASKS = {
    task.name: task
    for task in (
        Glue("cola", "CoLA", metric=metrics.acceptable, header=_COLA),
        Glue("sst2", "SST-2"),
        Glue(
            *("mrpc", "MRPC", ("#1 String", "#2 String"), "Quality"),
            metric=metrics.paraphrase,
            hub=PAIR,
        ),
        Glue("stsb", "STS-B", PAIR, "score", None, metrics.similarity),
        Glue(
            *("qqp", "QQP", ("question1", "question2"), "is_duplicate"),
            metric=metrics.paraphrase,
            skip_short=True,
        ),
        Glue(
            "mnli", "MNLI", PAIR, "gold_label", _MNLI, hub=("premise", "hypothesis"), evaluate=_DEV
        ),
        Glue("qnli", "QNLI", ("question", "sentence"), labels=ENTAILMENT),
        Glue("rte", "RTE", PAIR, labels=ENTAILMENT),
    )
}


class Texts(ConversionData):
    """Sentences or pairs, tokenised."""

    def __init__(
        self,
        task: Glue,
        data: str | Path | None,
        tokenizer: Any,
        recipe: ConversionRecipe,
        seed: int,
    ):
        train, *scored = (read_examples(task, s, data) for s in ("train", *task.evaluate))
        super().__init__(train, dict(zip(task.evaluate, scored, strict=True)), recipe, seed)
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


def read_examples(task: Glue, split: str, data: str | Path | None) -> list[Example]:
    """The examples of `data/<TASK>/<split>.tsv` (or .tsv.xz), or the hub's if data is None."""
    if data is None:
        return _read_hub(task, split)
    path = Path(data) / task.folder / f"{split}.tsv"
    packed = path.with_suffix(".tsv.xz")
    if path.is_file() or packed.is_file():
        return _read_file(task, path if path.is_file() else packed)
    raise LunaError(
        f"{path} is missing: put GLUE's {task.folder} folder ({task.layout}; "
        f"gluebenchmark.com/tasks) into {data}"
    )


def _read_file(task: Glue, path: Path) -> list[Example]:
    rows = _rows(path)
    header = task.header or next(rows, (0, []))[1]
    place = {column: i for i, column in enumerate(header)}
    missing = [c for c in (*task.text, task.label) if c not in place]
    if missing:
        raise LunaError(
            f"{path} has no column {', '.join(map(repr, missing))}: its first line is "
            f"{str(list(header))[:200]}; give GLUE's own {task.folder}/{path.name}"
        )
    examples: list[Example] = []
    for number, row in rows:
        where = f"{path} line {number}"
        if len(row) == len(header):
            text = tuple(row[place[c]] for c in task.text)
            examples.append((text, _label(task, row[place[task.label]], where)))
        elif len(row) > len(header) or not task.skip_short:
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


def _label(task: Glue, text: str, where: str) -> float:
    try:
        return float(text) if task.labels is None else task.labels.index(text)
    except ValueError:
        labels = "a number" if task.labels is None else " or ".join(task.labels)
        raise LunaError(f"{where}: the label must be {labels}, got {text[:40]!r}") from None


def _read_hub(task: Glue, split: str) -> list[Example]:
    """One split by the package `datasets`, in the order of the benchmark's own files."""
    otherwise = f"or give a folder with {task.layout} (gluebenchmark.com/tasks), data.path=<folder>"
    try:
        import datasets
    except ImportError as error:
        raise LunaError(
            f"without data.path, '{task.name}' comes from the Hugging Face hub by the package "
            f"datasets, which is not installed: pip install datasets, {otherwise}"
        ) from error
    columns = task.hub or task.text
    theirs = split.replace("dev", "validation")  # dev_matched: validation_matched
    try:
        rows = datasets.load_dataset(REPOSITORY, task.name, split=theirs)
        texts = list(zip(*(list(rows[c]) for c in columns), strict=True))
        labels = list(map(float if task.labels is None else int, rows["label"]))
    except Exception as error:  # whatever no network, a proxy or a full disk causes
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise LunaError(
            f"'{task.name}' cannot be loaded from the Hugging Face hub ({reason}): try again, "
            f"{otherwise}"
        ) from error
    names: Sequence[str] = getattr((rows.features or {}).get("label"), "names", ())
    if task.labels is not None and set(names) == set(task.labels):  # else 0 and 1 by other names
        labels = [task.labels.index(names[int(label)]) for label in labels]
    return list(zip(texts, labels, strict=True))
